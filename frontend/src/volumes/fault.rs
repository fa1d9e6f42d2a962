//! Failures of use cases, in the terms of the domain.

use std::fmt;

use bulkhead_protocol::ErrorKind;

use crate::helper::{CallError, Unreachable};
use crate::quantity::for_people;

/// The kind of a failure, which decides what a caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The protocol's error of this kind, whether reported by the helper or found on this side.
    Typed(ErrorKind),
    /// No volume can have a size in the requested range.
    OutOfRange,
    /// The volume was requested for another node.
    Elsewhere,
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

    /// Whether this is the protocol's error of this kind.
    pub fn is(&self, kind: ErrorKind) -> bool {
        self.kind == FaultKind::Typed(kind)
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
        Self::new(kind, for_people(&error.to_string()))
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
    use bulkhead_protocol::Error;

    use super::*;

    #[test]
    fn an_error_without_a_message_gets_one() {
        let fault = Fault::from(CallError::from(Error::new(ErrorKind::Io(5), "")));
        assert_eq!(fault.kind, FaultKind::Typed(ErrorKind::Io(5)));
        assert!(fault.to_string().contains("Io(5)"), "{fault}");
    }
}
