//! Growing volumes. Nothing is ever made smaller, except the number of inodes that a volume may use.

use bulkhead_protocol::{Bytes, Error, Inodes, Reply, VolumeKind, VolumeSpec};
use rustix::fs::{FallocateFlags, OFlags};

use super::create::{check_room, measure};
use super::filesystem::limits;
use super::log;
use super::room::Share;
use crate::state::{Held, Kind, Record, Served, Volume, failed, invalid, layout, wrong_kind};
use crate::sys::{Called, Result as SysResult};

/// Raises a directory volume's quota.
pub fn set_quota(held: Held<'_>, size: Bytes, inodes: Inodes) -> Result<Reply, Error> {
    set_limits(held, |volume, _, had| Ok((size.max(volume.record.spec.size), inodes.max(had))))
}

/// Sets how many inodes a directory volume may use: not fewer than it uses, as far as that is known.
pub fn set_inodes(held: Held<'_>, inodes: Inodes) -> Result<Reply, Error> {
    let id = held.id;
    set_limits(held, |volume, served, _| {
        if let Some(project) = volume.project {
            let quota =
                served.filesystem.quota(project).map_err(|error| failed("read the quota of volume", id, error))?;
            let used = quota.used_inodes.saturating_sub(1);
            if inodes.get() < used {
                return Err(invalid(format!("volume {id} uses {used} inodes: allow as many, or delete files first")));
            }
        }
        Ok((volume.record.spec.size, inodes))
    })
}

/// Gives a directory volume the limits that `choose` names, which is told how many inodes it may use so far.
fn set_limits(
    mut held: Held<'_>,
    choose: impl FnOnce(&Volume, &Served, Inodes) -> Result<(Bytes, Inodes), Error>,
) -> Result<Reply, Error> {
    let (volume, served) = held.existing(Kind::Directory)?;
    let (old, project) = (volume.record, volume.project);
    let VolumeKind::Directory { inodes: had, mode } = old.spec.kind else {
        return Err(wrong_kind(held.id, Kind::Directory));
    };
    let (size, inodes) = choose(volume, served, had)?;
    let new = VolumeSpec { size, kind: VolumeKind::Directory { inodes, mode }, ..old.spec };
    grow(&mut held, new, "set the quota of volume", |served, spec, _| match (project, spec.kind) {
        (Some(project), VolumeKind::Directory { inodes, .. }) => {
            served.filesystem.set_quota(project, limits(spec.size, inodes))
        }
        _ => Ok(()),
    })
}

/// Grows the image of a volume of this kind. Its loop device keeps the old size until it is resized too.
pub fn grow_image(held: &mut Held<'_>, kind: Kind, size: Bytes) -> Result<Reply, Error> {
    let (volume, _) = held.existing(kind)?;
    let old = volume.record.spec;
    let new = VolumeSpec { size: size.max(old.size), ..old };
    let image = held.open_content(OFlags::RDWR)?;
    grow(held, new, "grow the image of volume", |_, spec, share| {
        let added = spec.size.get().saturating_sub(old.size.get());
        // Before the end is moved: if there is not enough room, the length never changes.
        if added > 0 && share.preallocated {
            rustix::fs::fallocate(&image, FallocateFlags::KEEP_SIZE, old.size.get(), added).by("fallocate")?;
        }
        rustix::fs::ftruncate(&image, spec.size.get()).by("ftruncate")
    })
}

/// Promises what a volume with new settings takes in addition, and then makes its limit and its record agree with them.
/// `limit` does the former, also to go back to the old settings. Both survive a power cut together: syncing a directory
/// that has not changed does not commit a quota (seen on XFS), but here the record has changed. What fails is undone; if that
/// fails as well, all stays promised until the same request completes it, or a start finds out how far it has come.
///
/// # Errors
/// `NoRoom` when the pool cannot promise it, or when `limit` fails.
pub fn grow(
    held: &mut Held<'_>,
    spec: VolumeSpec,
    what: &str,
    limit: impl Fn(&Served, VolumeSpec, Share) -> SysResult<()>,
) -> Result<Reply, Error> {
    let Some(volume) = held.known() else { return Err(held.state.unknown(held.id)) };
    let (pool, old, before, unfinished) = (volume.pool.clone(), volume.record, volume.share(), volume.growth);
    if spec == old.spec && unfinished.is_none() {
        return Ok(Reply::Size(spec.size));
    }
    let (served, measured) = (pool.served()?, measure(held.state, &pool)?);
    let share = Share::of(&spec, pool.inode_size(), volume.project, volume.allocated);
    let growth = Share { bytes: share.bytes.saturating_sub(before.bytes), ..share };
    let promised = unfinished.unwrap_or_default().saturating_add(growth.bytes);
    let promise = |volume: &mut Volume| volume.growth = Some(promised);
    held.change_if(|promised| check_room(&pool, &measured, promised, growth), promise)?;
    let new = Record { spec, ..old };
    let apply = |record: Record| -> SysResult<()> {
        limit(served, record.spec, share)?;
        record.write(&served.attributes, held.id.as_str())?;
        served.sync(layout::open_volume(&served.directory, held.id.as_str())?)
    };
    let (mut record, mut growth) = (new, None);
    let applied = apply(new).inspect_err(|_| {
        // A restart goes by the record, so limit and record must agree: restore both.
        record = old;
        if let Err(error) = apply(old) {
            growth = Some(promised);
            log::error!("cannot undo a failed expansion volume={} error={error}", held.id);
        }
    });
    held.change(|volume| (volume.growth, volume.record) = (growth, record));
    applied.map_err(|error| failed(what, held.id, error))?;
    Ok(Reply::Size(spec.size))
}
