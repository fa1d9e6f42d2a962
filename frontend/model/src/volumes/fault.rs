//! Failures of use cases, in the terms of the domain.

use std::fmt;

use bulkhead_protocol::{ErrorKind, PoolName, VolumeId};

use super::words;

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

/// What can be done about a failure: what everything that tries again, waits or gives up decides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// It is not known whether what was asked for is done: ask again soon.
    Open,
    /// The pool has no room for it. Another node's may, or this one later.
    NoRoom,
    /// The pool cannot serve it: it is not there, or fails. Another node's may.
    NoPool,
    /// Something else has to change first.
    Waits,
    /// What is asked for can never be had.
    Never,
}

impl FaultKind {
    /// Returns what can be done about a failure of this kind.
    pub fn outlook(self) -> Outlook {
        match self {
            Self::Typed(kind) => outlook(kind),
            Self::OutOfRange => Outlook::Never,
            Self::Elsewhere | Self::BadToken => Outlook::Waits,
            Self::NoPool => Outlook::NoPool,
            Self::Away | Self::Garbled => Outlook::Open,
        }
    }
}

fn outlook(kind: ErrorKind) -> Outlook {
    match kind {
        ErrorKind::Busy => Outlook::Open,
        ErrorKind::NoSpace | ErrorKind::NoRoom { .. } => Outlook::NoRoom,
        ErrorKind::PoolBroken | ErrorKind::Io(_) => Outlook::NoPool,
        ErrorKind::NotFound
        | ErrorKind::AlreadyExists
        | ErrorKind::Incompatible
        | ErrorKind::InUse
        | ErrorKind::TooFragmented { .. }
        | ErrorKind::Refused => Outlook::Waits,
        ErrorKind::WrongKind | ErrorKind::Unsupported | ErrorKind::Invalid => Outlook::Never,
    }
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

    /// The pool does not promise what was requested.
    pub fn no_room(pool: &PoolName, room: u64, wanted: u64) -> Self {
        Self::new(FaultKind::Typed(ErrorKind::NoRoom { room, wanted }), words::no_room(pool, room, wanted))
    }

    /// The volume is in too many pieces to be copied.
    pub fn too_fragmented(source: &VolumeId, extents: u64, limit: u64) -> Self {
        let message = words::too_fragmented(source, extents, limit);
        Self::new(FaultKind::Typed(ErrorKind::TooFragmented { extents, limit }), message)
    }

    /// Returns what can be done about it.
    pub fn outlook(&self) -> Outlook {
        self.kind.outlook()
    }

    /// Returns whether this is the protocol's error of this kind.
    pub fn is(&self, kind: ErrorKind) -> bool {
        self.kind == FaultKind::Typed(kind)
    }

    /// Returns whether the helper itself is what failed, so that it would fail for any volume.
    pub fn is_of_helper(&self) -> bool {
        matches!(self.kind, FaultKind::Away | FaultKind::Garbled | FaultKind::Typed(ErrorKind::Unsupported))
    }

    /// Returns whether the system has failed to read or to write something.
    pub fn is_io(&self) -> bool {
        matches!(self.kind, FaultKind::Typed(ErrorKind::Io(_)))
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
    fn a_fault_without_a_message_gets_one() {
        let fault = Fault::new(FaultKind::Typed(ErrorKind::Io(5)), " ");
        assert!(fault.to_string().contains("Io(5)"), "{fault}");
    }
}
