//! The operations, one file for a request or a pair: checks, then system calls, then what is undone on failure.
//!
//! An operation is called with its volume and its target locked.

mod bind;
mod create;
mod delete;
mod device;
mod grow;
mod loops;
mod status;
mod target;
mod unpublish;

use bulkhead_protocol::{Error, ErrorKind, Reply, TargetPath, VolumeId};

pub use bind::bind_mount;
pub use create::create;
pub use delete::{Deletable, delete, release};
pub use device::make_device;
pub use grow::{grow_image, set_quota};
pub use loops::{loop_attach, loop_detach, loop_resize};
pub use status::{list, pool_status, usage};
pub use unpublish::{remove_device, unmount};

use crate::state::{Kind, Record, Served, State, Volume, failed};

/// A volume that must exist.
fn existing(state: &State, id: &VolumeId) -> Result<Volume, Error> {
    state.volumes.get(id).ok_or_else(|| state.unknown(id))
}

/// A volume that must exist and be of this kind.
fn existing_of(state: &State, id: &VolumeId, kind: Kind) -> Result<Volume, Error> {
    let volume = existing(state, id)?;
    if volume.kind() == kind { Ok(volume) } else { Err(wrong_kind(id, &volume)) }
}

/// The refusal of a request that is for the other kind of volume.
fn wrong_kind(id: &VolumeId, volume: &Volume) -> Error {
    let message = match volume.kind() {
        Kind::Directory => format!("volume {id} is a directory volume, not a block volume"),
        Kind::Block => format!("volume {id} is a block volume, not a directory volume"),
    };
    Error::new(ErrorKind::WrongKind, message)
}

/// The answer to a request to take away a volume that is not known: done, if it is certain that nothing of it is there,
/// or at the target if one is given.
fn absent(state: &State, id: &VolumeId, target: Option<&TargetPath>) -> Result<Reply, Error> {
    match state.unknown(id) {
        error if error.kind == ErrorKind::NotFound => Ok(Reply::Done),
        _ if target.is_some_and(|target| target::is_clear(state, target)) => Ok(Reply::Done),
        error => Err(error),
    }
}

/// Writes down that a volume is used, before anybody can write to it. Once in its life; later calls do nothing.
fn mark_used(state: &State, pool: &Served, id: &VolumeId, volume: &Volume) -> Result<(), Error> {
    if !volume.record.unused {
        return Ok(());
    }
    let record = Record { unused: false, ..volume.record };
    record.replace(&pool.directory, id).map_err(|errno| failed("write down the first use of volume", id, errno))?;
    state.volumes.update(id, |volume| volume.record = record);
    Ok(())
}
