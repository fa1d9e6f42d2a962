//! How requests ended, as named in metrics: by the kind of the error.

use bulkhead_protocol::{ErrorKind, Response};

use super::CallError;

/// How snapshots and copies are refused, as far as operators can do something about it.
pub const COPY_REFUSALS: [&str; 4] = ["TooFragmented", "NoRoom", "NoSpace", "Unsupported"];

/// How a request ended.
pub(super) fn outcome<T>(answer: &Result<(Response, T), CallError>) -> String {
    match answer {
        Ok((Ok(_), _)) => "ok".to_owned(),
        Ok((Err(error), _)) | Err(CallError::Answered(error)) => kind_name(error.kind),
        Err(CallError::Away(_)) => "away".to_owned(),
        Err(CallError::TooNew(_) | CallError::Mismatched(_)) => "incompatible".to_owned(),
    }
}

/// The kind without its figures: a label of a metric has few values.
fn kind_name(kind: ErrorKind) -> String {
    format!("{kind:?}").split(['(', ' ']).next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_in_no_label() {
        let no_room = ErrorKind::NoRoom { room: 1, wanted: 2 };
        assert_eq!([ErrorKind::Io(5), ErrorKind::Busy, no_room].map(kind_name), ["Io", "Busy", "NoRoom"]);
    }

    #[test]
    fn the_refusals_that_alerts_name_are_called_so() {
        let too_fragmented = ErrorKind::TooFragmented { extents: 2, limit: 1 };
        let kinds =
            [too_fragmented, ErrorKind::NoRoom { room: 1, wanted: 2 }, ErrorKind::NoSpace, ErrorKind::Unsupported];
        assert_eq!(kinds.map(kind_name), COPY_REFUSALS);
    }
}
