//! Failures of use cases, in the terms of the domain.

use std::fmt;

use bulkhead_protocol::{Error, ErrorKind, PoolName};

use super::words;
use crate::helper::{CallError, Unreachable};

/// The kind of a failure, which decides what a caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The protocol's error of this kind, whether reported by the helper or found on this side.
    Typed(ErrorKind),
    /// No volume can have a size in the requested range.
    OutOfRange,
    /// The volume was requested for another node.
    Elsewhere,
    /// The node has no pool for the volume. Another node may have one.
    NoPool,
    /// A list was to be continued with an invalid token.
    BadToken,
    /// The helper cannot be reached; this is temporary.
    Away,
    /// The helper's reply makes no sense, or it refuses the connection.
    Garbled,
}

/// A failure, with a message for the person who has to act on it; the message is never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of failure.
    pub kind: FaultKind,
    message: String,
}

impl Fault {
    /// A failure of this kind with this message.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        let message = message.into();
        let message =
            if message.trim().is_empty() { format!("failed without giving a reason: {kind:?}") } else { message };
        Self { kind, message }
    }

    /// The request is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(FaultKind::Typed(ErrorKind::Invalid), message)
    }

    /// The request is valid but asks for something that Bulkhead does not support.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(FaultKind::Typed(ErrorKind::Unsupported), message)
    }

    /// The volume does not exist, or is not published there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(FaultKind::Typed(ErrorKind::NotFound), message)
    }

    /// The volume already exists with other properties.
    pub fn already_exists(message: impl Into<String>) -> Self {
        Self::new(FaultKind::Typed(ErrorKind::AlreadyExists), message)
    }

    /// No size is in the requested range.
    pub fn out_of_range(message: impl Into<String>) -> Self {
        Self::new(FaultKind::OutOfRange, message)
    }

    /// Why a request to promise something in `pool` failed.
    pub(super) fn of_promise(error: CallError, pool: &PoolName) -> Self {
        match error {
            CallError::Answered(Error { kind: kind @ ErrorKind::NoRoom { room, wanted }, .. }) => {
                Self::new(FaultKind::Typed(kind), words::no_room(pool, room, wanted))
            }
            error => error.into(),
        }
    }

    /// Whether the pool cannot have the volume: it is not there, or fails. Another node's may.
    pub fn is_of_pool(&self) -> bool {
        matches!(self.kind, FaultKind::NoPool | FaultKind::Typed(ErrorKind::PoolBroken | ErrorKind::Io(_)))
    }

    /// Whether this is the protocol's error of this kind.
    pub fn is(&self, kind: ErrorKind) -> bool {
        self.kind == FaultKind::Typed(kind)
    }

    /// Whether the helper itself is what failed, so that it would fail for any volume.
    pub fn is_of_helper(&self) -> bool {
        matches!(self.kind, FaultKind::Away | FaultKind::Garbled | FaultKind::Typed(ErrorKind::Unsupported))
    }

    /// Whether the system has failed to read or to write something.
    pub fn is_io(&self) -> bool {
        matches!(self.kind, FaultKind::Typed(ErrorKind::Io(_)))
    }

    /// Whether space is missing, or a limit has been reached.
    pub fn is_no_room(&self) -> bool {
        matches!(self.kind, FaultKind::Typed(ErrorKind::NoSpace | ErrorKind::NoRoom { .. }))
    }
}

impl From<CallError> for Fault {
    fn from(error: CallError) -> Self {
        let kind = match &error {
            CallError::Away(why) if why.is_passing() => FaultKind::Away,
            CallError::Away(_) => FaultKind::Garbled,
            CallError::Answered(answer) => FaultKind::Typed(answer.kind),
            CallError::TooNew(_) => FaultKind::Typed(ErrorKind::Unsupported),
            CallError::Mismatched(_) => FaultKind::Garbled,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<Unreachable> for Fault {
    fn from(why: Unreachable) -> Self {
        Self::from(CallError::from(why))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_a_message_gets_one() {
        let fault = Fault::from(CallError::from(Error::new(ErrorKind::Io(5), "")));
        assert_eq!(fault.kind, FaultKind::Typed(ErrorKind::Io(5)));
        assert!(fault.to_string().contains("Io(5)"), "{fault}");
    }

    #[test]
    fn a_pool_without_room_is_told_in_sizes_for_people() {
        let pool = "fast".parse().unwrap();
        let failed = |kind| Fault::of_promise(CallError::from(Error::new(kind, "the helper's words")), &pool);
        let fault = failed(ErrorKind::NoRoom { room: 1 << 20, wanted: 3 << 20 });
        assert!(fault.is_no_room() && fault.to_string().contains("has room for 1 MiB, but 3 MiB"), "{fault}");
        let fault = failed(ErrorKind::NoSpace);
        assert!(fault.is_no_room() && fault.to_string() == "the helper's words", "{fault}");
        assert!(!failed(ErrorKind::Busy).is_no_room());
    }
}
