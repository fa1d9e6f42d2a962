//! Errors of one kind each, with a message: the operation, its object, the cause, what to do.

use std::fmt::Display;

use bulkhead_protocol::{Error, ErrorKind};

use crate::sys::{Errno, Error as SysError};

macro_rules! errors {
    ($($name:ident $kind:ident)*) => {
        $(pub fn $name(message: impl Into<String>) -> Error {
            Error::new(ErrorKind::$kind, message)
        })*
    };
}

errors! {
    exists AlreadyExists
    in_use InUse
    busy Busy
    no_space NoSpace
    unsupported Unsupported
    invalid Invalid
    refused Refused
    broken PoolBroken
}

/// An error for a failed system call: the operation, its object, the cause.
pub fn failed(operation: &str, object: impl Display, error: SysError) -> Error {
    let kind = match error.errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrorKind::NoSpace,
        Errno::BUSY | Errno::INPROGRESS => ErrorKind::Busy,
        Errno::OPNOTSUPP | Errno::NOSYS => ErrorKind::Unsupported,
        other => ErrorKind::Io(other.raw_os_error()),
    };
    Error::new(kind, format!("{operation} {object}: {error}"))
}
