//! Unpublishing volumes from targets.

use bulkhead_protocol::{Error, ErrorKind, Reply};

use super::target::{Target, check_unknown_unmounted, is_gone, moved};
use crate::state::{Held, HeldTarget, Kind, in_use, wrong_kind};

/// Unmounts a directory from a target and removes the target.
pub fn unmount(held: Held<'_>, at: HeldTarget<'_>) -> Result<Reply, Error> {
    unpublish(held, &at, Kind::Directory)
}

/// Unmounts a block volume's device node from a target and removes the target.
pub fn remove_device(held: Held<'_>, at: HeldTarget<'_>) -> Result<Reply, Error> {
    unpublish(held, &at, Kind::Block)
}

/// Unmounts everything at the target that is proved to be this volume, records that, then removes the target if it was
/// made for a volume. Succeeds if nothing is there.
fn unpublish(mut held: Held<'_>, at: &HeldTarget<'_>, kind: Kind) -> Result<Reply, Error> {
    let path = at.path;
    let Some(volume) = held.known() else { return absent(&held, at) };
    if volume.kind().is_device() != kind.is_device() {
        return Err(wrong_kind(held.id, kind));
    }
    at.directory.check_shape(path, kind)?;
    let published = volume.published_at(path);
    let target = match Target::open(at.directory, path) {
        Err(error) if error.kind == ErrorKind::NotFound => None,
        target => Some(target?),
    };
    let mut ours = published.is_some();
    if let Some(target) = &target {
        while let Some(mount) = target.mount(held.state, Some(volume))? {
            let is_ours = mount.is_of(volume, published) || kind == Kind::Block && mount.is_vacant(held.state);
            if !is_ours {
                return Err(other(&held, at));
            }
            // Otherwise the host would keep what is unmounted here.
            held.state.host.check_joined(&at.directory.name)?;
            target.unmount()?;
            ours = true;
        }
    }
    if published.is_some_and(|published| !is_gone(held.state, published)) {
        return Err(moved(&held, path));
    }
    held.change(|volume| volume.unpublish(path));
    if let Some(target) = target
        && (ours || target.is_marked()?)
    {
        // Removing it would tear off what is mounted there on a host that it is apart from.
        held.state.host.check_joined(&at.directory.name)?;
        target.clear(None)?;
    }
    Ok(Reply::Done)
}

/// The reply to a request to unpublish an unknown volume: success if nothing is mounted at the target, whatever volume
/// it is about.
fn absent(held: &Held<'_>, at: &HeldTarget<'_>) -> Result<Reply, Error> {
    match Target::open(at.directory, at.path).and_then(|target| target.mount(held.state, None)) {
        Ok(None) => Ok(Reply::Done),
        Ok(Some(_)) => match held.state.unknown(held.id) {
            error if error.kind == ErrorKind::NotFound => Err(other(held, at)),
            error => Err(error),
        },
        // The way to the target may have been renamed with the mount on it.
        Err(error) if error.kind == ErrorKind::NotFound => {
            check_unknown_unmounted(held.state, held.id).map(|()| Reply::Done)
        }
        Err(error) => Err(error),
    }
}

fn other(held: &Held<'_>, at: &HeldTarget<'_>) -> Error {
    let (id, path) = (held.id, at.path);
    match held.state.volumes.holder(path) {
        Some(holder) if holder != *id => in_use(format!("volume {holder} is published at {path}, and not {id}")),
        _ => in_use(format!("something other than volume {id} is mounted at target {path}; unmount it first")),
    }
}
