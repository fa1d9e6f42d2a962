//! Why a use case has failed, in the words of the domain.

use std::fmt;

use bulkhead_protocol::ErrorKind;

use crate::helper::{CallError, Unreachable};

/// What a caller can do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// As the protocol's error of that kind, whether the helper found it or this side did.
    Typed(ErrorKind),
    /// No volume can have a size in the range that was asked for.
    OutOfRange,
    /// The volume was asked for at a place that is not here.
    Elsewhere,
    /// A list was to be continued at a place that no list has had.
    BadToken,
    /// The helper is away; it passes.
    Away,
    /// The helper's answer makes no sense, or it refuses to talk.
    Garbled,
}

/// A failure, with a message for the person who has to act on it. The message is never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What a caller can do about it.
    pub kind: FaultKind,
    message: String,
}

impl Fault {
    /// A failure of that kind with that message.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        let message = message.into();
        let message = if message.trim().is_empty() { format!("failed without a reason: {kind:?}") } else { message };
        Self { kind, message }
    }

    /// The request is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(FaultKind::Typed(ErrorKind::Invalid), message)
    }

    /// The request is right and asks for something that Bulkhead does not do.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(FaultKind::Typed(ErrorKind::Unsupported), message)
    }

    /// There is no such volume, or it is not there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(FaultKind::Typed(ErrorKind::NotFound), message)
    }

    /// There is such a volume already, and it differs.
    pub fn already_exists(message: impl Into<String>) -> Self {
        Self::new(FaultKind::Typed(ErrorKind::AlreadyExists), message)
    }

    /// No size fits.
    pub fn out_of_range(message: impl Into<String>) -> Self {
        Self::new(FaultKind::OutOfRange, message)
    }

    /// Whether it is the protocol's error of that kind.
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
    use bulkhead_protocol::Error;

    use super::*;

    #[test]
    fn an_error_without_a_message_gets_one() {
        let fault = Fault::from(CallError::from(Error::new(ErrorKind::Io(5), "")));
        assert_eq!(fault.kind, FaultKind::Typed(ErrorKind::Io(5)));
        assert!(fault.to_string().contains("Io(5)"), "{fault}");
    }
}
