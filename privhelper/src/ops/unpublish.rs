//! Unpublishing volumes from targets.

use bulkhead_protocol::{Error, ErrorKind, Reply};

use super::target::{Unbound, check_unknown_unmounted, is_gone, moved, unbind};
use crate::state::{Held, HeldTarget, Kind, apart, in_use, wrong_kind};

/// Unmounts a directory from a target and removes the target.
pub fn unmount(held: Held<'_>, at: HeldTarget<'_>) -> Result<Reply, Error> {
    unpublish(held, &at, Kind::Directory)
}

/// Unmounts a block volume's device node from a target and removes the target.
pub fn remove_device(held: Held<'_>, at: HeldTarget<'_>) -> Result<Reply, Error> {
    unpublish(held, &at, Kind::Block)
}

/// Unmounts everything at the target that is proved to be this volume, removes the target if it was made for a volume, and
/// records that. Succeeds if nothing is there.
fn unpublish(mut held: Held<'_>, at: &HeldTarget<'_>, kind: Kind) -> Result<Reply, Error> {
    let path = at.path;
    let Some(volume) = held.known() else { return absent(&held, at) };
    if volume.kind().is_device() != kind.is_device() {
        return Err(wrong_kind(held.id, kind));
    }
    at.directory.check(path, kind)?;
    let joined = at.joined(&held.state.host);
    let published = volume.published_at(path);
    let unbound = unbind(held.state, at, joined.as_ref().ok(), volume, published);
    if !matches!(unbound, Ok(Unbound::Done)) && published.is_some_and(|published| is_gone(held.state, published)) {
        // The target is left, but shows nothing.
        held.change(|volume| volume.unpublish(path));
    }
    match unbound? {
        Unbound::Done => {}
        Unbound::Other => return Err(other(&held, at)),
        Unbound::Moved => return Err(moved(&held, path)),
        Unbound::Apart => return Err(apart(joined.map(drop), &at.directory.name)),
    }
    held.change(|volume| volume.unpublish(path));
    Ok(Reply::Done)
}

/// The reply to a request to unpublish an unknown volume: success if nothing is mounted at the target, whatever volume
/// it is about.
fn absent(held: &Held<'_>, at: &HeldTarget<'_>) -> Result<Reply, Error> {
    match held.state.placer.look(at.path, None).map(|looked| looked.mount) {
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
