//! Errors of the API server's client, in one line.

use std::error::Error;

/// The message of a client's error with all its causes, each once.
pub fn error_text(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("{} ({} {})", status.message, status.code, status.reason);
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        // Some already have that of their cause in their own.
        if !text.ends_with(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_named_once() {
        let silent = std::io::Error::other(std::io::Error::other("it is silent"));
        assert_eq!(error_text(&kube::Error::Service(silent.into())), "ServiceError: it is silent");
    }
}
