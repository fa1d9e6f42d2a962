//! How requests ended, as named in metrics: by the kind of the error.

use bulkhead_protocol::{ErrorKind, Response};

use super::CallError;

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
}
