//! The operations that publish, attach and delete: checks, then system calls, then what is undone on failure. Those that
//! create, grow and report are in [`crate::bookkeeping`].
//!
//! An operation takes its volumes and its target as values that hold them: see [`crate::state::Held`].

mod copy;
mod delete;
mod filesystem;
mod group;
mod label;
mod loops;
mod moment;
mod publish;
mod target;
mod unpublish;

pub use copy::{create_from, create_snapshot, open_snapshot, origin, snapshot};
pub use delete::{Deletable, delete};
pub use filesystem::{grow_filesystem, mount_filesystem, take_over_filesystems};
pub use group::create_group;
pub use loops::{check_unknown_detached, loop_attach, loop_detach, loop_resize};
pub use publish::{bind_mount, make_device};
pub use target::{check_unknown_unmounted, find, shows};
pub use unpublish::{remove_device, unmount};

use bulkhead_protocol::Error;

use crate::state::{Held, Record, failed};

/// Records that a volume is used, and then does what lets anybody write to it. The former happens once in a volume's life.
/// The pool's journal keeps the order: nothing written to the volume later survives a power cut unless this record does.
/// Where the latter fails, nobody has seen the volume, unless a device is left, and the record is as before; if that fails as
/// well, the volume counts as used.
fn use_first<'a, T>(held: &mut Held<'a>, show: impl FnOnce(&mut Held<'a>) -> Result<T, Error>) -> Result<T, Error> {
    let unused = held.known().is_some_and(|volume| volume.record.unused);
    if unused {
        record_use(held, false)?;
    }
    show(held).inspect_err(|_| {
        if unused && held.known().is_some_and(|volume| volume.device.is_none()) {
            let _ = record_use(held, true);
        }
    })
}

fn record_use(held: &mut Held<'_>, unused: bool) -> Result<(), Error> {
    let Some(volume) = held.known() else { return Ok(()) };
    let record = Record { unused, ..volume.record };
    let written = record.write(&volume.pool.served()?.attributes, held.id.as_str());
    written.map_err(|error| failed("write down the first use of volume", held.id, error))?;
    held.change(|volume| volume.record = record);
    Ok(())
}
