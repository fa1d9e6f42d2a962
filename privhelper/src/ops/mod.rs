//! The operations that publish, attach and delete: checks, then system calls, then what is undone on failure. Those that
//! create, grow and report are in [`crate::bookkeeping`].
//!
//! An operation takes its volumes and its target as values that hold them: see [`crate::state::Held`].

mod copy;
mod delete;
mod filesystem;
mod loops;
mod publish;
mod target;
mod unpublish;

pub use copy::{create_from, create_snapshot, open_snapshot, origin, snapshot};
pub use delete::{Deletable, delete};
pub use filesystem::{grow_filesystem, mount_filesystem, take_over_filesystems};
pub use loops::{loop_attach, loop_detach, loop_resize};
pub use publish::{bind_mount, make_device};
pub use target::Target;
pub use unpublish::{remove_device, unmount};

use bulkhead_protocol::Error;

use crate::state::{Held, Record, failed};

/// Records that a volume is used, before anybody can write to it. This happens once in its life; later calls do nothing.
/// The pool's journal keeps the order: nothing written to the volume later survives a power cut unless this record does.
fn mark_used(held: &mut Held<'_>) -> Result<(), Error> {
    let Some(volume) = held.known().filter(|volume| volume.record.unused) else { return Ok(()) };
    let record = Record { unused: false, ..volume.record };
    let written = record.write_to(&volume.pool.served()?.directory, held.id);
    written.map_err(|error| failed("write down the first use of volume", held.id, error))?;
    held.change(|volume| volume.record = record);
    Ok(())
}
