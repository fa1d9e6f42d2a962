//! Processes, threads and namespaces.

use nix::libc;
use nix::sched::CloneFlags;
use nix::unistd::ForkResult;

use super::thread::unshare;
use super::{Called, Errno, Error, Result, checked};

/// Moves the process to its own mount namespace and empty network namespace. It must be single-threaded.
pub fn own_namespaces() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
}

/// Moves the process to its own mount namespace. It must be single-threaded.
pub fn own_mount_namespace() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)
}

/// Splits the process in two; `true` in the child, which dies with its parent, even if that dies at once.
pub fn fork() -> Result<bool> {
    let parent = rustix::process::getpid();
    // SAFETY: the process has a single thread, so the child's copy of memory contains no lock held by another thread.
    match unsafe { nix::unistd::fork() } {
        Ok(ForkResult::Parent { .. }) => Ok(false),
        Ok(ForkResult::Child) => {
            let tied = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
            // The parent may have died before the signal was requested.
            let is_tied = tied.is_ok() && rustix::process::getppid() == Some(parent);
            if is_tied { Ok(true) } else { std::process::exit(1) }
        }
        Err(errno) => Err(Errno::from_raw_os_error(errno as i32)).by("clone"),
    }
}

/// Leaves the children of the process to the kernel when they end: it waits for none (`SIGCHLD`, signal(7)).
pub fn leave_children() -> Result<()> {
    use nix::sys::signal::{SigHandler, Signal};
    // SAFETY: a signal that is ignored runs no code of this process.
    let ignored = unsafe { nix::sys::signal::signal(Signal::SIGCHLD, SigHandler::SigIgn) };
    ignored.map(drop).map_err(|errno| Errno::from_raw_os_error(errno as i32)).by("sigaction")
}

/// Raises the limit on open descriptors as far as that is allowed, to at least `number`; `PERM` when the service manager does not allow that many.
pub fn allow_descriptors(number: u64) -> Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < number) {
        return Err(Error::of(Errno::PERM));
    }
    let raised = rustix::process::Rlimit { current: limit.maximum.or(Some(number)), ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).by("setrlimit")
}

/// Closes the descriptors from `first` to `last`, inclusive (close_range(2), Linux 5.9). Only at start, before any of
/// them has an owner in this program.
pub fn close_range(first: u32, last: u32) -> Result<()> {
    // SAFETY: called at start only, when no value of this program owns a descriptor in the range.
    checked(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0_u32) }, "close_range")
}
