//! One thin file for each kernel interface. All `unsafe` of Bulkhead lives here, one call a block.
//!
//! These functions decide nothing: they take what was checked above and return what the kernel said.

pub mod capability;
pub mod file;
pub mod landlock;
pub mod loopdevice;
pub mod mount;
pub mod process;
pub mod quota;
pub mod socket;

pub use rustix::io::Errno;

/// What a system call returns.
pub type Result<T> = std::result::Result<T, Errno>;

/// The result of a raw system call or ioctl that reports failure as -1 and errno.
fn checked(returned: i64) -> Result<i64> {
    if returned >= 0 {
        Ok(returned)
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

/// Repeats a call that fails with `passing`, for two seconds.
pub fn with_patience<T>(passing: Errno, mut call: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..100 {
        match call() {
            Err(errno) if errno == passing => std::thread::sleep(std::time::Duration::from_millis(20)),
            result => return result,
        }
    }
    Err(passing)
}
