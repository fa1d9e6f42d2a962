//! The one table from what went wrong to a gRPC code.
//!
//! Kubernetes acts on these codes: UNAVAILABLE, ABORTED and RESOURCE_EXHAUSTED mean that something may still be under
//! way, everything else is final. So UNAVAILABLE is only ever said while the helper is away.

use bulkhead_protocol::ErrorKind;
use tonic::{Code, Status};

use crate::volumes::{Fault, FaultKind};

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Making a volume.
    Create,
    /// Deleting one.
    Delete,
    /// Bringing one to a target.
    Publish,
    /// Taking one away from a target.
    Unpublish,
    /// Making one larger.
    Expand,
    /// Looking at volumes, at pools, at the plugin.
    Inspect,
}

/// The code that `operation` ends with when it fails in that way.
pub fn code(operation: Operation, kind: FaultKind) -> Code {
    match kind {
        FaultKind::Typed(kind) => typed(operation, kind),
        FaultKind::OutOfRange => Code::OutOfRange,
        FaultKind::Elsewhere => Code::ResourceExhausted,
        FaultKind::BadToken => Code::Aborted,
        FaultKind::Away => Code::Unavailable,
        FaultKind::Garbled => Code::Internal,
    }
}

fn typed(operation: Operation, kind: ErrorKind) -> Code {
    use Operation::{Create, Expand, Inspect, Publish, Unpublish};
    match (kind, operation) {
        (ErrorKind::NotFound, _) => Code::NotFound,
        (ErrorKind::AlreadyExists, _) => Code::AlreadyExists,
        (ErrorKind::Incompatible | ErrorKind::WrongKind, Create) => Code::AlreadyExists,
        (ErrorKind::Incompatible | ErrorKind::WrongKind, Publish | Unpublish) => Code::FailedPrecondition,
        (ErrorKind::Incompatible | ErrorKind::WrongKind, _) => Code::InvalidArgument,
        (ErrorKind::InUse, _) => Code::FailedPrecondition,
        (ErrorKind::Busy, _) => Code::Aborted,
        (ErrorKind::NoSpace, Expand) => Code::OutOfRange,
        (ErrorKind::NoSpace, _) => Code::ResourceExhausted,
        (ErrorKind::Unsupported, Create) => Code::InvalidArgument,
        (ErrorKind::Unsupported, _) => Code::FailedPrecondition,
        (ErrorKind::Invalid, _) => Code::InvalidArgument,
        // Nothing is ever published at a path that is refused.
        (ErrorKind::Refused, Expand | Inspect) => Code::NotFound,
        (ErrorKind::Refused, _) => Code::PermissionDenied,
        (ErrorKind::PoolBroken, Create) => Code::ResourceExhausted,
        (ErrorKind::PoolBroken, _) => Code::FailedPrecondition,
        (ErrorKind::Io(_), _) => Code::Internal,
    }
}

/// A code as the gRPC documentation writes it.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// The status that `operation` ends with. It has a message and no details (CSI, error scheme).
pub(super) fn status(operation: Operation, fault: &Fault) -> Status {
    Status::new(code(operation, fault.kind), fault.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATIONS: [Operation; 6] = [
        Operation::Create,
        Operation::Delete,
        Operation::Publish,
        Operation::Unpublish,
        Operation::Expand,
        Operation::Inspect,
    ];

    const KINDS: [ErrorKind; 12] = [
        ErrorKind::NotFound,
        ErrorKind::AlreadyExists,
        ErrorKind::Incompatible,
        ErrorKind::WrongKind,
        ErrorKind::InUse,
        ErrorKind::Busy,
        ErrorKind::NoSpace,
        ErrorKind::Unsupported,
        ErrorKind::Invalid,
        ErrorKind::Refused,
        ErrorKind::PoolBroken,
        ErrorKind::Io(5),
    ];

    #[test]
    fn only_an_absent_helper_is_unavailable() {
        for operation in OPERATIONS {
            for kind in KINDS {
                let code = code(operation, FaultKind::Typed(kind));
                assert!(!matches!(code, Code::Unavailable | Code::Ok | Code::Unknown), "{operation:?} {kind:?}");
            }
            assert_eq!(code(operation, FaultKind::Away), Code::Unavailable);
        }
    }

    #[test]
    fn no_space_reschedules_a_creation_and_makes_a_growth_infeasible() {
        let no_space = FaultKind::Typed(ErrorKind::NoSpace);
        assert_eq!(code(Operation::Create, no_space), Code::ResourceExhausted);
        assert_eq!(code(Operation::Expand, no_space), Code::OutOfRange);
    }

    #[test]
    fn what_is_not_supported_depends_on_when_it_is_asked_for() {
        let unsupported = FaultKind::Typed(ErrorKind::Unsupported);
        assert_eq!(code(Operation::Create, unsupported), Code::InvalidArgument);
        assert_eq!(code(Operation::Publish, unsupported), Code::FailedPrecondition);
    }

    #[test]
    fn a_status_has_a_message_and_no_details() {
        let status = status(Operation::Delete, &Fault::new(FaultKind::Typed(ErrorKind::Io(5)), " "));
        assert!(!status.message().is_empty() && status.details().is_empty());
    }
}
