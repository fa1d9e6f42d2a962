//! Errors of system calls.

use std::fmt;

use rustix::io::Errno;

/// Why a system call failed, and which: several may be behind one function.
#[derive(Clone, Debug)]
pub struct Error {
    /// What the kernel said.
    pub errno: Errno,
    /// The call, and the name that it was given, if any. Empty where this program has found the fault itself.
    call: String,
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self { errno, call: String::new() }
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
        if self.call.is_empty() { write!(out, "{}", self.errno) } else { write!(out, "{}: {}", self.call, self.errno) }
    }
}

/// Returns whether a call failed with this error.
pub fn failed_with<T>(result: &Result<T, Error>, errno: Errno) -> bool {
    matches!(result, Err(error) if error.errno == errno)
}

/// Adds to an error which call has failed.
pub trait Called<T>: Sized {
    /// It was given descriptors and numbers only, or a name that the caller has given.
    fn by(self, call: &str) -> Result<T, Error>;
    /// It was given this name or value as well.
    fn by_with(self, call: &str, argument: impl fmt::Debug) -> Result<T, Error>;
}

impl<T> Called<T> for Result<T, Errno> {
    fn by(self, call: &str) -> Result<T, Error> {
        self.map_err(|errno| Error { errno, call: call.to_owned() })
    }

    fn by_with(self, call: &str, argument: impl fmt::Debug) -> Result<T, Error> {
        self.map_err(|errno| Error { errno, call: format!("{call}({argument:?})") })
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};

    use super::*;
    use crate::sys::file;

    #[test]
    fn an_error_names_the_call_and_what_it_was_given_and_keeps_to_one_line() {
        let root = file::open_at_start("/", OFlags::PATH).expect("the root directory");
        let error = file::open_entry(&root, "a\nb").expect_err("there is none");
        assert_eq!(error.errno, Errno::NOENT);
        assert_eq!(error.to_string(), r#"openat2("a\nb"): No such file or directory (os error 2)"#);
        let error = file::sync(&root).expect_err("it is open for path resolution only");
        assert_eq!(error.to_string(), "fsync: Bad file descriptor (os error 9)");
        let error = file::make_directory(&root, "proc", Mode::RWXU).expect_err("there is one");
        assert_eq!(error.to_string(), r#"mkdirat("proc"): File exists (os error 17)"#);
        assert_eq!(Error::from(Errno::BADMSG).to_string(), "Bad message (os error 74)");
    }
}
