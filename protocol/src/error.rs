//! The closed set of errors a request can end with.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Text;

/// What went wrong, as far as a caller can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorKind {
    /// No such volume, or the volume is not published at that target.
    NotFound,
    /// The volume or target exists with other settings.
    AlreadyExists,
    /// There is something of the wrong type at the target.
    Incompatible,
    /// The volume is published, or used in a way that excludes the request.
    InUse,
    /// Another operation on the same volume or target is under way, or a process holds it open. Try again.
    Busy,
    /// The pool has no room for it.
    NoSpace,
    /// The kernel or the pool does not support it.
    Unsupported,
    /// The request itself is wrong.
    Invalid,
    /// The request is well formed but not allowed.
    Refused,
    /// The pool is not served; its condition says why.
    PoolBroken,
    /// A system call failed with this errno.
    Io(i32),
    /// The request is for the other kind of volume.
    WrongKind,
    /// The pool cannot promise that much. Both figures are in bytes.
    NoRoom {
        /// What it can promise.
        room: u64,
        /// What was requested.
        wanted: u64,
    },
    /// The volume's image is in so many pieces that a copy would stop its writers for too long. Since version 4.
    TooFragmented {
        /// How many extents it has.
        extents: u64,
        /// How many it may have.
        limit: u64,
    },
}

/// A typed error with a short message for the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    /// What went wrong, as far as a caller can act on it.
    pub kind: ErrorKind,
    /// The operation, the object, the cause, and what to do about it.
    pub message: Text,
}

impl Error {
    /// An error of this kind with this message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: Text::new(message) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.message, out)
    }
}

impl std::error::Error for Error {}
