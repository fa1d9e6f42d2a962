//! What a thread has of its own.

use nix::sched::CloneFlags;

use super::{Called, Errno, Result};

/// Gives the calling thread a working directory of its own. Needs no capability.
pub fn own_working_directory() -> Result<()> {
    unshare(CloneFlags::CLONE_FS)
}

/// Leaves what is shared with others.
pub(super) fn unshare(flags: CloneFlags) -> Result<()> {
    nix::sched::unshare(flags).map_err(|errno| Errno::from_raw_os_error(errno as i32)).by("unshare")
}
