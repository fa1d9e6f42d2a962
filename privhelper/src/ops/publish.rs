//! Publishing volumes at targets.

use bulkhead_protocol::{Error, ErrorKind, MountFlags, Reply};

use super::loops::{attached, lend};
use super::target::{is_gone, moved, published, shows, still_published};
use super::use_first;
use crate::bookkeeping::{check_number_of_targets, put_back};
use crate::state::{Held, HeldTarget, Joined, Kind, Lent, exists, in_use, invalid};

/// Binds a directory volume, or the directory in a volume's mounted filesystem, to a target.
pub fn bind_mount(held: Held<'_>, at: HeldTarget<'_>, flags: MountFlags, exclusive: bool) -> Result<Reply, Error> {
    let has_filesystem = held.known().is_some_and(|volume| volume.kind() == Kind::Filesystem);
    let kind = if has_filesystem { Kind::Filesystem } else { Kind::Directory };
    let (_, pool) = held.existing(kind)?;
    // Flags of the pool's own mount cannot be cleared, and a restart will find them on this mount.
    let inherited = if has_filesystem { MountFlags::default() } else { pool.inherited };
    let flags = MountFlags {
        read_only: flags.read_only,
        no_atime: flags.no_atime,
        no_exec: flags.no_exec || inherited.no_exec,
        no_diratime: flags.no_diratime || inherited.no_diratime,
    };
    let joined = check_target(&held, &at, kind)?;
    publish(held, &joined, None, flags, exclusive)
}

/// Binds the node of a block volume's attached loop device to a target.
pub fn make_device(mut held: Held<'_>, at: HeldTarget<'_>, exclusive: bool) -> Result<Reply, Error> {
    held.existing(Kind::Block)?;
    let joined = check_target(&held, &at, Kind::Block)?;
    let Some(attached) = attached(&mut held)? else {
        return Err(invalid(format!("volume {} is not attached to a loop device; attach it first", held.id)));
    };
    let node = lend(&held, &attached)?;
    let flags = MountFlags { read_only: node.device().read_only, ..MountFlags::default() };
    publish(held, &joined, Some(&node), flags, exclusive)
}

/// Checks that a volume of this kind may be published at a target; before the first use of a volume, which is recorded, also
/// what is checked again when it is bound there.
fn check_target<'a>(held: &Held<'_>, at: &'a HeldTarget<'_>, kind: Kind) -> Result<Joined<'a>, Error> {
    at.directory.check(at.path, kind)?;
    let joined = at.joined(&held.state.host)?;
    if held.known().is_some_and(|volume| volume.record.unused) {
        held.state.placer.look(at.path, Some((held.id.clone(), kind)))?;
    }
    Ok(joined)
}

/// Publishes a volume at a target, unless it is already published there in the same way.
///
/// # Errors
/// `AlreadyExists` when the target holds something else, or this volume in another way; `InUse` when the volume is
/// mounted elsewhere and `exclusive` forbids that.
fn publish(
    mut held: Held<'_>,
    joined: &Joined<'_>,
    node: Option<&Lent>,
    flags: MountFlags,
    exclusive: bool,
) -> Result<Reply, Error> {
    let (state, at) = (held.state, joined.target());
    let path = at.path;
    let Some(volume) = held.known() else { return Err(state.unknown(held.id)) };
    if let Some(published) = volume.published_at(path) {
        if shows(state, path, volume, Some(published))? {
            if published.flags == flags {
                return Ok(Reply::Done);
            }
            let id = held.id;
            return Err(exists(format!(
                "volume {id} is published at {path} with other flags; unpublish it there first"
            )));
        }
        // Somebody privileged has unmounted it or moved it away.
        if !is_gone(state, published) {
            return Err(moved(&held, path));
        }
        held.change(|volume| volume.unpublish(path));
    }
    if exclusive {
        if let Some(other) = still_published(&mut held, Some(path)) {
            let id = held.id;
            return Err(in_use(format!(
                "volume {id} is published at {other}, and the access mode allows one target only"
            )));
        }
        held.check_unmounted()?;
    }
    check_number_of_targets(&held)?;
    if held.known().is_some_and(|volume| volume.kind() == Kind::Directory) {
        put_back(&mut held)?;
    }
    let bound = use_first(&mut held, |held| {
        let volume = held.known().ok_or_else(|| state.unknown(held.id))?;
        state.placer.bind((held.id, volume), node, joined, flags)
    });
    let (source, proof) = bound.map_err(|error| match state.volumes.holder(path) {
        Some(holder) if error.kind == ErrorKind::AlreadyExists => {
            exists(format!("volume {holder} is published at {path}; unpublish it there first"))
        }
        _ => error,
    })?;
    let published = published(at.directory, path, source, flags, proof);
    held.change(|volume| volume.publish(published));
    Ok(Reply::Done)
}
