//! The operations, one file per request or pair of requests: checks, then system calls, then cleanup on failure.
//!
//! Operations are called with their volume and target locked.

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

/// Looks up a volume, which must exist and be of this kind.
fn existing(state: &State, id: &VolumeId, kind: Kind) -> Result<Arc<Volume>, Error> {
    let volume = state.volumes.get(id).ok_or_else(|| state.unknown(id))?;
    if volume.kind() == kind { Ok(volume) } else { Err(wrong_kind(id, kind)) }
}

/// The error for a request that only the other kind of volume supports.
fn wrong_kind(id: &VolumeId, wanted: Kind) -> Error {
    Error::new(ErrorKind::WrongKind, format!("volume {id} is not a {wanted}"))
}

/// The reply to a request to delete, detach or unpublish an unknown volume: success only if it certainly does not exist
/// or, if a target is given, nothing is mounted there.
fn absent(state: &State, id: &VolumeId, target: Option<&TargetPath>) -> Result<Reply, Error> {
    match state.unknown(id) {
        error if error.kind == ErrorKind::NotFound => Ok(Reply::Done),
        _ if target.is_some_and(|target| target::is_clear(state, target)) => Ok(Reply::Done),
        error => Err(error),
    }
}

/// Records that a volume is used, before anybody can write to it. This happens once in its life; later calls do
/// nothing. No data written to it later survives a power cut unless this record does.
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
