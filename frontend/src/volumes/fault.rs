//! Failures of requests to the helper, as faults of the use case that made them.

use bulkhead_model::volumes::{Fault, FaultKind};
use bulkhead_protocol::{Error, ErrorKind, PoolName, VolumeId};

use crate::helper::{CallError, Unreachable};

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

/// Returns why a request to promise something in `pool` failed.
pub(super) fn of_promise(error: CallError, pool: &PoolName) -> Fault {
    match error {
        CallError::Answered(Error { kind: ErrorKind::NoRoom { room, wanted }, .. }) => {
            Fault::no_room(pool, room, wanted)
        }
        error => error.into(),
    }
}

/// Returns why a request to copy `source`, which is in `pool`, failed.
pub(super) fn of_copy(error: CallError, source: &VolumeId, pool: &PoolName) -> Fault {
    match error {
        CallError::Answered(Error { kind: ErrorKind::TooFragmented { extents, limit }, .. }) => {
            Fault::too_fragmented(source, extents, limit)
        }
        // The request asks for what no copy of it can be. An existing volume of the wrong kind is told by another error.
        CallError::Answered(Error { kind: ErrorKind::WrongKind, message }) => Fault::invalid(message.to_string()),
        error => of_promise(error, pool),
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_model::volumes::Outlook;

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
        let failed = |kind| of_promise(CallError::from(Error::new(kind, "the helper's words")), &pool);
        let fault = failed(ErrorKind::NoRoom { room: 1 << 20, wanted: 3 << 20 });
        assert!(
            fault.outlook() == Outlook::NoRoom && fault.to_string().contains("has room for 1 MiB, but 3 MiB"),
            "{fault}"
        );
        let fault = failed(ErrorKind::NoSpace);
        assert!(fault.outlook() == Outlook::NoRoom && fault.to_string() == "the helper's words", "{fault}");
        assert!(failed(ErrorKind::Busy).outlook() == Outlook::Open);
    }

    #[test]
    fn a_fragmented_volume_is_told_with_its_count_and_what_to_do() {
        let (source, pool) = ("pvc-1".parse().unwrap(), "fast".parse().unwrap());
        let failed = |kind| of_copy(CallError::from(Error::new(kind, "the helper's words")), &source, &pool);
        let fault = failed(ErrorKind::TooFragmented { extents: 250_000, limit: 200_000 }).to_string();
        assert!(fault.contains("pvc-1 is too fragmented: its image has 250000 extents"), "{fault}");
        assert!(fault.contains("is 200000") && fault.contains("extents=N"), "{fault}");
        assert!(failed(ErrorKind::WrongKind).is(ErrorKind::Invalid));
        assert!(failed(ErrorKind::NoRoom { room: 1 << 20, wanted: 3 << 20 }).to_string().contains("pool fast"));
    }
}
