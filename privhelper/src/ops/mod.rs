//! The operations, one file for a request or a pair: checks, then system calls, then what is undone on failure.
//!
//! An operation is called with its volume and its target locked.

mod create;
mod delete;
mod grow;
mod loops;
mod pins;
mod publish;
mod status;
mod target;
mod unpublish;

use std::sync::Arc;

use bulkhead_protocol::{Error, ErrorKind, Reply, TargetPath, VolumeId};

pub use create::create;
pub use delete::{Deletable, delete, release};
pub use grow::{grow_image, set_quota};
pub use loops::{loop_attach, loop_detach, loop_resize};
pub use publish::{bind_mount, make_device};
pub use status::{list, pool_status, usage};
pub use unpublish::{remove_device, unmount};

use crate::state::{Kind, Record, Served, State, Volume, failed};

/// A volume that must exist and be of this kind.
fn existing(state: &State, id: &VolumeId, kind: Kind) -> Result<Arc<Volume>, Error> {
    let volume = state.volumes.get(id).ok_or_else(|| state.unknown(id))?;
    if volume.kind() == kind { Ok(volume) } else { Err(wrong_kind(id, kind)) }
}

/// The refusal of a request for the kind of volume that this one is not.
fn wrong_kind(id: &VolumeId, wanted: Kind) -> Error {
    Error::new(ErrorKind::WrongKind, format!("volume {id} is not a {wanted}"))
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

/// Writes down that a volume is used, before anybody can write to it. Once in its life; later calls do nothing. Nothing
/// that is written to it afterwards survives a power cut that this does not.
fn mark_used(state: &State, pool: &Served, id: &VolumeId, volume: &Volume) -> Result<(), Error> {
    if !volume.record.unused {
        return Ok(());
    }
    let record = Record { unused: false, ..volume.record };
    let volume = record.write_to(&pool.directory, id);
    let written = volume.and_then(|volume| pool.keep_order(volume));
    written.map_err(|errno| failed("write down the first use of volume", id, errno))?;
    state.volumes.update(id, |volume| volume.record = record);
    Ok(())
}
