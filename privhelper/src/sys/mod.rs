//! One thin file for each kernel interface. All of Bulkhead's `unsafe` code is here, one call per block.
//!
//! These functions decide nothing: they take what the layers above have checked and return what the kernel said.

pub mod capability;
pub mod clock;
mod error;
pub mod extents;
pub mod file;
pub mod landlock;
pub mod loopcontrol;
pub mod loopdevice;
pub mod mount;
pub mod mountinfo;
pub mod namespace;
pub mod packet;
pub mod process;
pub mod quota;
pub mod quotastate;
pub mod socket;
pub mod thread;
pub mod walk;
pub mod xflags;
pub mod xfs;

pub use error::{Called, Error, failed_with, or_done};
pub use rustix::io::Errno;

/// What a system call returns.
pub type Result<T> = std::result::Result<T, Error>;

/// The result of a raw system call or ioctl that reports failure as -1 and errno.
fn checked(returned: impl Into<i64>, call: &'static str) -> Result<()> {
    value(returned, call).map(drop)
}

/// The value that a raw system call returned.
fn value(returned: impl Into<i64>, call: &'static str) -> Result<i64> {
    match returned.into() {
        value if value >= 0 => Ok(value),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)).by(call),
    }
}

/// Retries a call that fails with `passing`, for up to two seconds.
pub fn with_patience<T>(passing: Errno, mut call: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..100 {
        match call() {
            Err(error) if error.errno == passing => std::thread::sleep(std::time::Duration::from_millis(20)),
            result => return result,
        }
    }
    call()
}
