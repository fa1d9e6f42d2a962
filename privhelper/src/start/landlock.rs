//! What the keeper and the emptier may do to files, and that the mounter may do nothing to any. A system call filter cannot
//! see the flags of openat2(2) or tell one directory from another; Landlock can. The placer does without it: rules on files
//! always forbid placing mounts as well.

use std::os::fd::OwnedFd;

use linux_raw_sys::landlock::{
    LANDLOCK_ACCESS_FS_IOCTL_DEV as IOCTL_DEV, LANDLOCK_ACCESS_FS_MAKE_DIR as MAKE_DIR,
    LANDLOCK_ACCESS_FS_MAKE_REG as MAKE_REG, LANDLOCK_ACCESS_FS_MAKE_SOCK as MAKE_SOCK,
    LANDLOCK_ACCESS_FS_READ_DIR as READ_DIR, LANDLOCK_ACCESS_FS_READ_FILE as READ_FILE,
    LANDLOCK_ACCESS_FS_REFER as REFER, LANDLOCK_ACCESS_FS_REMOVE_DIR as REMOVE_DIR,
    LANDLOCK_ACCESS_FS_REMOVE_FILE as REMOVE_FILE, LANDLOCK_ACCESS_FS_TRUNCATE as TRUNCATE,
    LANDLOCK_ACCESS_FS_WRITE_FILE as WRITE_FILE, LANDLOCK_ACCESS_NET_BIND_TCP as BIND_TCP,
    LANDLOCK_ACCESS_NET_CONNECT_TCP as CONNECT_TCP, LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET as ABSTRACT_SOCKETS,
    LANDLOCK_SCOPE_SIGNAL as SIGNALS,
};

use super::filter::Process;
use super::refusal::Refusal;
use crate::log;
use crate::sys::Result as SysResult;
use crate::sys::landlock::{self, Handled};

/// Walking through directories and removing; `READ_FILE` to clear a file's immutable flags; moving a directory to the
/// top.
pub const TO_EMPTY: u32 = READ_DIR | READ_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | REFER;
/// Making volumes and keeping their records: no links, fifos, sockets or nodes.
pub const TO_KEEP: u32 = READ_DIR | READ_FILE | WRITE_FILE | TRUNCATE | MAKE_DIR | MAKE_REG | REMOVE_DIR | REMOVE_FILE;
/// Making sockets, and replacing them.
pub const TO_LISTEN: u32 = MAKE_SOCK | REMOVE_FILE;

/// Restricts the calling thread, of this process, to these rights below these directories, as far as the kernel can.
///
/// # Errors
/// A sentence when a kernel that can do this fails to.
pub fn confine(process: Process, allowed: &[(&OwnedFd, u32)]) -> Result<(), Refusal> {
    match landlock::version() {
        Ok(version) if version >= 2 => {
            let confined = restrict(process, allowed, version);
            confined.map_err(|error| format!("cannot confine the {process:?} by Landlock: {error}").into())
        }
        // Version 1 forbids all moves from one directory to another.
        _ => {
            log::warning!(
                "a process is not confined by Landlock: the kernel is older than 5.19, has it disabled, or may not be asked process={process:?}"
            );
            Ok(())
        }
    }
}

fn restrict(process: Process, allowed: &[(&OwnedFd, u32)], version: i64) -> SysResult<()> {
    let handled = all(process, version);
    let rules = landlock::forbid(&handled)?;
    for (directory, rights) in allowed {
        let known = u32::try_from(handled.handled_access_fs).unwrap_or(u32::MAX);
        landlock::allow_below(&rules, directory, rights & known)?;
    }
    landlock::enforce(&rules)
}

/// Everything that a version of Landlock, from the second on, can forbid a process. The signal by which the kernel ends a
/// child with its parent counts as one of the parent's: the keeper, which has children, is forbidden none here, and its
/// filter lets it send none.
fn all(process: Process, version: i64) -> Handled {
    // Each version's rights follow those of the one before.
    let newest = match version {
        ..=2 => REFER,
        3..=4 => TRUNCATE,
        5.. => IOCTL_DEV,
    };
    let network = if version >= 4 { BIND_TCP | CONNECT_TCP } else { 0 };
    let scopes = match (version, process) {
        (..=5, _) => 0,
        (_, Process::Keeper) => ABSTRACT_SOCKETS,
        _ => ABSTRACT_SOCKETS | SIGNALS,
    };
    Handled {
        handled_access_fs: u64::from(newest | newest.wrapping_sub(1)),
        handled_access_net: network.into(),
        scoped: scopes.into(),
    }
}

#[cfg(test)]
mod tests;
