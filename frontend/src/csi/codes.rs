//! The one table that maps failures to gRPC codes.
//!
//! Kubernetes acts on these codes: UNAVAILABLE, ABORTED and RESOURCE_EXHAUSTED mean that the operation may still be in
//! progress; all others are final. Therefore UNAVAILABLE is returned only while the helper cannot be reached.

use bulkhead_model::volumes::{Fault, FaultKind};
use bulkhead_protocol::ErrorKind;
use tonic::{Code, Status};

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Creating a volume.
    Create,
    /// Deleting a volume.
    Delete,
    /// Publishing a volume at a target.
    Publish,
    /// Unpublishing a volume from a target.
    Unpublish,
    /// Expanding a volume.
    Expand,
    /// Changing the attributes of a volume.
    Modify,
    /// Taking a snapshot of a volume.
    Snapshot,
    /// Taking snapshots of several volumes.
    Group,
    /// Reading the state of volumes, pools or the plugin.
    Inspect,
}

/// The code with which `operation` fails for this kind of fault.
pub fn code(operation: Operation, kind: FaultKind) -> Code {
    match kind {
        FaultKind::Typed(kind) => typed(operation, kind),
        FaultKind::OutOfRange => Code::OutOfRange,
        FaultKind::Elsewhere => Code::ResourceExhausted,
        // Who calls directly has named the pool.
        FaultKind::NoPool => Code::InvalidArgument,
        FaultKind::BadToken => Code::Aborted,
        FaultKind::Away => Code::Unavailable,
        FaultKind::Garbled => Code::Internal,
    }
}

fn typed(operation: Operation, kind: ErrorKind) -> Code {
    use Operation::{Create, Expand, Inspect, Publish, Snapshot, Unpublish};
    match (kind, operation) {
        (ErrorKind::NotFound, _) => Code::NotFound,
        (ErrorKind::AlreadyExists, _) => Code::AlreadyExists,
        (ErrorKind::Incompatible | ErrorKind::WrongKind, Create) => Code::AlreadyExists,
        (ErrorKind::Incompatible | ErrorKind::WrongKind, Publish | Unpublish) => Code::FailedPrecondition,
        (ErrorKind::Incompatible | ErrorKind::WrongKind, _) => Code::InvalidArgument,
        (ErrorKind::InUse | ErrorKind::TooFragmented { .. }, _) => Code::FailedPrecondition,
        (ErrorKind::Busy, _) => Code::Aborted,
        (ErrorKind::NoSpace | ErrorKind::NoRoom { .. }, Expand) => Code::OutOfRange,
        (ErrorKind::NoSpace | ErrorKind::NoRoom { .. }, _) => Code::ResourceExhausted,
        (ErrorKind::Unsupported, Create | Snapshot) => Code::InvalidArgument,
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

/// The name of a code as in the gRPC documentation.
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

/// The status with which `operation` fails: a message without details (CSI, error scheme).
pub fn status(operation: Operation, fault: &Fault) -> Status {
    Status::new(code(operation, fault.kind), fault.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATIONS: [Operation; 9] = [
        Operation::Create,
        Operation::Delete,
        Operation::Publish,
        Operation::Unpublish,
        Operation::Expand,
        Operation::Modify,
        Operation::Snapshot,
        Operation::Group,
        Operation::Inspect,
    ];

    const KINDS: [ErrorKind; 14] = [
        ErrorKind::NotFound,
        ErrorKind::AlreadyExists,
        ErrorKind::Incompatible,
        ErrorKind::WrongKind,
        ErrorKind::InUse,
        ErrorKind::Busy,
        ErrorKind::NoSpace,
        ErrorKind::NoRoom { room: 1, wanted: 2 },
        ErrorKind::Unsupported,
        ErrorKind::Invalid,
        ErrorKind::Refused,
        ErrorKind::PoolBroken,
        ErrorKind::Io(5),
        ErrorKind::TooFragmented { extents: 3, limit: 2 },
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
        for kind in [ErrorKind::NoSpace, ErrorKind::NoRoom { room: 1, wanted: 2 }] {
            assert_eq!(code(Operation::Create, FaultKind::Typed(kind)), Code::ResourceExhausted);
            assert_eq!(code(Operation::Expand, FaultKind::Typed(kind)), Code::OutOfRange);
        }
    }

    #[test]
    fn what_is_not_supported_depends_on_when_it_is_asked_for() {
        let unsupported = FaultKind::Typed(ErrorKind::Unsupported);
        assert_eq!(code(Operation::Create, unsupported), Code::InvalidArgument);
        assert_eq!(code(Operation::Publish, unsupported), Code::FailedPrecondition);
    }

    #[test]
    fn what_is_too_fragmented_can_be_copied_once_somebody_has_acted() {
        for operation in [Operation::Create, Operation::Snapshot] {
            let kind = FaultKind::Typed(ErrorKind::TooFragmented { extents: 3, limit: 2 });
            assert_eq!(code(operation, kind), Code::FailedPrecondition);
        }
    }

    #[test]
    fn a_status_has_a_message_and_no_details() {
        let status = status(Operation::Delete, &Fault::new(FaultKind::Typed(ErrorKind::Io(5)), " "));
        assert!(!status.message().is_empty() && status.details().is_empty());
    }
}
