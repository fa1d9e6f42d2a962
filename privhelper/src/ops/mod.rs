//! The operations, one file a request or a pair: checks, then kernel calls, then what is undone on failure.

mod bind;
mod create;
mod delete;
mod device;
mod grow;
mod loops;
mod record;
mod status;
mod target;

use bulkhead_protocol::{Error, ErrorKind, Reply, TargetPath, VolumeId, VolumeKind};

pub use bind::{bind_mount, unmount};
pub use create::{create, inodes_limit};
pub use delete::{Deletable, delete, settle};
pub use device::{make_device, remove_device};
pub use grow::{grow_image, set_quota};
pub use loops::{loop_attach, loop_detach, loop_resize};
pub use status::{list, pool_status, usage};

use crate::state::{State, Volume};

/// What is known of a volume that must be there.
fn existing(state: &State, id: &VolumeId) -> Result<Volume, Error> {
    state.volumes.get(id).ok_or_else(|| state.unknown(id))
}

/// The same, if it is a block volume.
fn existing_image(state: &State, id: &VolumeId) -> Result<Volume, Error> {
    let volume = existing(state, id)?;
    match volume.spec.kind {
        VolumeKind::Image { .. } => Ok(volume),
        VolumeKind::Directory { .. } => Err(wrong_kind(id, "a directory volume, not a block volume")),
    }
}

fn wrong_kind(id: &VolumeId, is: &str) -> Error {
    Error::new(ErrorKind::WrongKind, format!("volume {id} is {is}"))
}

/// The answer to a request to take a volume away, from a target if one is given, when there is none: done, if it is
/// certain that nothing of it is there.
fn absent(state: &State, id: &VolumeId, target: Option<&TargetPath>) -> Result<Reply, Error> {
    match state.unknown(id) {
        error if error.kind == ErrorKind::NotFound => Ok(Reply::Done),
        _ if target.is_some_and(|target| target::is_clear(state, target)) => Ok(Reply::Done),
        error => Err(error),
    }
}
