//! Why a controller could not do its work, and when it tries again.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use bulkhead_protocol::ErrorKind;

use crate::volumes::{Fault, FaultKind};

/// How long the API server may take to answer a request other than a watch.
const PATIENCE: Duration = Duration::from_secs(15);

/// What stopped a controller.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The object asks for something that cannot be had, however often it is tried.
    #[error("{0}")]
    Refused(String),
    /// The volume could not be made, changed or deleted.
    #[error("{0}")]
    Volume(Fault),
    /// The API server has refused a request, or could not be reached.
    #[error("{operation} at the API server failed: {}", told(error))]
    Api {
        /// What was tried.
        operation: &'static str,
        /// How it ended.
        error: Box<kube::Error>,
    },
    /// The API server has not answered.
    #[error("{0} at the API server failed: no answer for {seconds} seconds", seconds = PATIENCE.as_secs())]
    Hung(&'static str),
}

impl Failure {
    /// Whether to try again soon makes no sense: somebody has to change something first.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Refused(_) => true,
            Self::Volume(fault) => matches!(
                fault.kind,
                FaultKind::Typed(ErrorKind::Invalid | ErrorKind::Unsupported | ErrorKind::WrongKind)
                    | FaultKind::OutOfRange
            ),
            Self::Api { .. } | Self::Hung(_) => false,
        }
    }

    /// Whether another node may have what this one has not: room, or the pool.
    pub fn is_of_this_node(&self) -> bool {
        matches!(self, Self::Volume(fault) if fault.is(ErrorKind::NoSpace) || fault.is(ErrorKind::PoolBroken))
    }

    /// Whether the object has changed since it was read, so that the next look at it decides.
    pub fn is_conflict(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_conflict)
    }

    /// Whether the object is gone.
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_not_found)
    }

    /// Whether an object of that name is there already.
    pub fn is_already_exists(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_already_exists)
    }

    /// How long the API server asks to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = self.status()?.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Api { error, .. } => match error.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            _ => None,
        }
    }
}

// Not as the error's source: its message is this one's already.
impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Volume(fault)
    }
}

/// What an error of the client says, once and with its causes.
pub fn told(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("{} ({} {})", status.message, status.code, status.reason);
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Waits for the API server's answer to `request`, but not for ever.
///
/// # Errors
/// `Api` when it is a refusal, `Hung` when there is none.
pub async fn ask<T>(
    operation: &'static str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Failure::Api { operation, error: Box::new(error) }),
        Err(_) => Err(Failure::Hung(operation)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_in_the_servers_words() {
        let status = serde_json::json!({ "code": 403, "reason": "Forbidden", "message": "not yours" });
        let error = Box::new(kube::Error::Api(Box::new(serde_json::from_value(status).unwrap())));
        let failure = Failure::Api { operation: "writing a claim's status", error };
        let told = "writing a claim's status at the API server failed: not yours (403 Forbidden)";
        assert_eq!(failure.to_string(), told);
    }
}
