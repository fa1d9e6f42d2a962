//! Errors of system calls.

use std::borrow::Cow;
use std::fmt;

use rustix::io::Errno;

/// Why a system call failed, and which: several may be behind one function.
#[derive(Clone, Debug)]
pub struct Error {
    /// What the kernel said.
    pub errno: Errno,
    /// The call, and the name that it was given, if any. One that is new at each attempt is left out where the message
    /// becomes an event: those are compared by their text. Empty where this program has found the fault itself.
    call: Cow<'static, str>,
}

impl Error {
    /// An error that this program has found: no call has failed.
    pub fn of(errno: Errno) -> Self {
        Self { errno, call: Cow::Borrowed("") }
    }

    /// An error that another process has met in this call.
    pub fn relayed(errno: Errno, call: String) -> Self {
        Self { errno, call: Cow::Owned(call) }
    }

    /// The call that has failed.
    pub fn call(&self) -> &str {
        &self.call
    }
}

/// In tests only: anything else asks for one errno by name.
#[cfg(test)]
impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        self.errno == other.errno
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What matters more comes first: a long message loses its end.
        let from = if self.call.is_empty() { "" } else { " from " };
        write!(out, "{}{from}{}", self.errno, self.call)
    }
}

/// Returns whether a call failed with this error.
pub fn failed_with<T>(result: &Result<T>, errno: Errno) -> bool {
    matches!(result, Err(error) if error.errno == errno)
}

/// The result of a call for which it is no error to fail with this one.
pub fn unless(errno: Errno, result: Result<()>) -> Result<()> {
    if failed_with(&result, errno) { Ok(()) } else { result }
}

/// Adds to an error which call has failed.
pub trait Called<T>: Sized {
    /// It was given descriptors and numbers only, or a name that the caller has given.
    fn by(self, call: &'static str) -> Result<T>;
    /// It was given this name or value as well.
    fn by_with(self, call: &str, argument: impl fmt::Debug) -> Result<T>;
}

impl<T> Called<T> for std::result::Result<T, Errno> {
    fn by(self, call: &'static str) -> Result<T> {
        self.map_err(|errno| Error { errno, call: Cow::Borrowed(call) })
    }

    fn by_with(self, call: &str, argument: impl fmt::Debug) -> Result<T> {
        self.map_err(|errno| Error { errno, call: Cow::Owned(format!("{call}({argument:?})")) })
    }
}

/// What a system call returns.
pub type Result<T> = std::result::Result<T, Error>;

/// The result of a raw system call or ioctl that reports failure as -1 and errno.
pub(super) fn checked(returned: impl Into<i64>, call: &'static str) -> Result<()> {
    value(returned, call).map(drop)
}

/// The value that a raw system call returned.
pub(super) fn value(returned: impl Into<i64>, call: &'static str) -> Result<i64> {
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

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};

    use super::*;
    use crate::sys::file;
    use crate::sys::walk;

    #[test]
    fn an_error_names_the_call_and_what_it_was_given_and_keeps_to_one_line() {
        let root = walk::open_at_start("/", OFlags::PATH).expect("the root directory");
        let error = file::open_entry(&root, "a\nb").expect_err("there is none");
        assert_eq!(error.errno, Errno::NOENT);
        assert_eq!(error.to_string(), r#"No such file or directory (os error 2) from openat2("a\nb")"#);
        let error = file::sync(&root).expect_err("it is open for path resolution only");
        assert_eq!(error.to_string(), "Bad file descriptor (os error 9) from fsync");
        let error = file::make_directory(&root, "proc", Mode::RWXU).expect_err("there is one");
        assert_eq!(error.to_string(), r#"File exists (os error 17) from mkdirat("proc")"#);
        let again = ["1", "2"].map(|new| walk::rename_new(&root, "no such", &root, new).expect_err("there is none"));
        assert_eq!(again[0].to_string(), again[1].to_string(), "a new name at each attempt is not in the text");
        assert_eq!(Error::of(Errno::BADMSG).to_string(), "Bad message (os error 74)");
    }
}
