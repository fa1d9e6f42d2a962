//! Landlock (landlock(7)): rights that a thread gives up forever, whatever its user and its capabilities.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

pub use linux_raw_sys::landlock::landlock_ruleset_attr as Handled;
use linux_raw_sys::landlock::{
    LANDLOCK_CREATE_RULESET_VERSION, landlock_path_beneath_attr, landlock_rule_type::LANDLOCK_RULE_PATH_BENEATH,
};
use nix::libc;

use super::file::raw_fd;
use super::{Errno, Error, Result, checked, value};

/// The version of Landlock that the kernel has.
pub fn version() -> Result<i64> {
    let (none, size) = (std::ptr::null::<Handled>(), 0_usize);
    // SAFETY: the kernel reads no memory when it is asked for the version.
    let returned =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, size, LANDLOCK_CREATE_RULESET_VERSION) };
    value(returned, "landlock_create_ruleset")
}

/// Rules that forbid everything that is handled. They are not in force yet.
pub fn forbid(handled: &Handled) -> Result<OwnedFd> {
    let size = size_of::<Handled>();
    // SAFETY: the kernel reads `size` bytes of `handled`, which outlives the call.
    let made = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::from_ref(handled), size, 0_u32) };
    let made = value(made, "landlock_create_ruleset")?;
    let number = i32::try_from(made).map_err(|_| Error::of(Errno::BADF))?;
    // SAFETY: the kernel has just created this descriptor for the caller, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Allows some of what the rules forbid, below an open directory.
pub fn allow_below(rules: &OwnedFd, directory: impl AsFd, rights: u32) -> Result<()> {
    let raw = landlock_path_beneath_attr { allowed_access: rights.into(), parent_fd: raw_fd(&directory) };
    let (rules, kind) = (rules.as_raw_fd(), LANDLOCK_RULE_PATH_BENEATH as u32);
    // SAFETY: the kernel reads one `struct landlock_path_beneath_attr` from `raw`, which outlives the call.
    let returned = unsafe { libc::syscall(libc::SYS_landlock_add_rule, rules, kind, &raw const raw, 0_u32) };
    checked(returned, "landlock_add_rule")
}

/// Enforces the rules on the calling thread and on those that it starts. Needs no_new_privs.
pub fn enforce(rules: &OwnedFd) -> Result<()> {
    // SAFETY: no memory is passed to the kernel.
    let returned = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0_u32) };
    checked(returned, "landlock_restrict_self")
}
