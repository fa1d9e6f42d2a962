//! Why a controller could not do its work.

use std::time::Duration;

use bulkhead_model::api_error::error_text;
use bulkhead_model::volumes::{Fault, FaultKind, Outlook};
use bulkhead_protocol::ErrorKind;

/// The longest that the API server is left alone because it asks for it. A server that asks for years is wrong, and the
/// node's volumes would wait as long.
pub(super) const LONGEST_REST: Duration = Duration::from_secs(300);

/// The reason that stopped a controller.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The object, as it stands, asks for something that can never be provided.
    #[error("{0}")]
    Refused(String),
    /// The object has to wait for another one, whose changes are not reported to it.
    #[error("{0}")]
    NotYet(String),
    /// The object's namespace would have more than its share of this node.
    #[error("{0}")]
    OverShare(String),
    /// The volume could not be made, changed or deleted.
    #[error("{0}")]
    Volume(Fault),
    /// The API server refused a request or could not be reached.
    #[error("{operation} failed at the API server: {}", error_text(error))]
    Api {
        /// The operation that failed.
        operation: &'static str,
        /// The client's error.
        error: Box<kube::Error>,
    },
    /// The API server did not answer.
    #[error("{operation} failed: the API server did not answer within {} seconds", waited.as_secs())]
    NoAnswer {
        /// The operation that failed.
        operation: &'static str,
        /// How long the agent waited for it.
        waited: Duration,
    },
}

/// Returns whether the API server says that it knows no such kind of objects. It says so in plain words, without a
/// reason.
pub fn is_unknown_kind(status: &kube::core::Status) -> bool {
    status.code == 404
}

impl Failure {
    /// Returns whether retrying soon is pointless, because something has to be changed first.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Refused(_) => true,
            Self::Volume(fault) => fault.outlook() == Outlook::Never,
            Self::NotYet(_) | Self::OverShare(_) | Self::Api { .. } | Self::NoAnswer { .. } => false,
        }
    }

    /// Returns whether another node may have what this one lacks: space, or a pool that works.
    pub fn is_of_this_node(&self) -> bool {
        matches!(self, Self::Volume(fault) if matches!(fault.outlook(), Outlook::NoRoom | Outlook::NoPool))
    }

    /// Returns whether the helper is away.
    pub fn is_helper_away(&self) -> bool {
        matches!(self, Self::Volume(fault) if fault.kind == FaultKind::Away)
    }

    /// Returns whether it concerns the volume rather than the API server, so that the object's owner should know.
    pub fn is_for_owner(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::NotYet(_) | Self::OverShare(_) | Self::Volume(_))
    }

    /// Returns whether the object has changed since it was read, so that its new state decides.
    pub fn is_conflict(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_conflict)
    }

    /// Returns whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_not_found)
    }

    /// Returns whether the API server knows no such kind of objects.
    pub fn is_unknown_kind(&self) -> bool {
        self.status().is_some_and(is_unknown_kind)
    }

    /// Returns whether the agent may not do it: by its role, or by a policy.
    pub fn is_forbidden(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_forbidden)
    }

    /// Returns whether an object of that name already exists.
    pub fn is_already_exists(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_already_exists)
    }

    /// Returns whether the API server or the helper is away, or has no time. That ends for all work at once, and none of it must then
    /// wait long.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::NoAnswer { .. } => true,
            Self::Api { .. } => self.status().is_none_or(|status| status.code >= 500 || status.code == 429),
            Self::Volume(_) => self.is_helper_away(),
            Self::Refused(_) | Self::NotYet(_) | Self::OverShare(_) => false,
        }
    }

    /// Returns what failed, as named in metrics.
    pub fn cause(&self) -> &'static str {
        match self {
            Self::Refused(_) | Self::NotYet(_) => "refused",
            Self::OverShare(_) => "share",
            Self::Volume(_) if self.is_helper_away() => "helper_away",
            Self::Volume(_) => "volume",
            Self::Api { .. } if self.is_conflict() => "conflict",
            Self::Api { .. } => "api",
            Self::NoAnswer { .. } => "api_no_answer",
        }
    }

    /// Returns how long the API server asks not to be contacted, as far as that is believed.
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = self.status()?.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| LONGEST_REST.min(Duration::from_secs(seconds.into())))
    }

    /// The same, as a failure of the volume.
    pub fn into_fault(self) -> Fault {
        match self {
            Self::Volume(fault) => fault,
            Self::OverShare(why) => Fault::new(FaultKind::Typed(ErrorKind::NoSpace), why),
            failure => Fault::new(FaultKind::Away, failure.to_string()),
        }
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

// Not as the error's source: this error's message is already that of the fault.
impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Volume(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_server_is_left_alone_for_years() {
        for (seconds, expected) in [(0, None), (7, Some(7)), (301, Some(300)), (u32::MAX, Some(300))] {
            let details = serde_json::json!({ "retryAfterSeconds": seconds });
            let status = serde_json::json!({ "code": 429, "reason": "TooManyRequests", "details": details });
            let error = Box::new(kube::Error::Api(Box::new(serde_json::from_value(status).unwrap())));
            let failure = Failure::Api { operation: "testing", error };
            assert_eq!(failure.retry_after(), expected.map(Duration::from_secs), "{seconds}");
        }
    }

    #[test]
    fn a_kind_that_the_server_does_not_know_is_recognized_by_its_plain_words() {
        // As the client presents what is no status object.
        let status = kube::core::Status::failure("404 page not found", "Failed to parse error data").with_code(404);
        let failure = Failure::Api { operation: "asking", error: Box::new(kube::Error::Api(Box::new(status))) };
        assert!(failure.is_unknown_kind() && !failure.is_not_found(), "{failure}");
    }

    #[test]
    fn a_refusal_is_in_the_servers_words() {
        let status = serde_json::json!({ "code": 403, "reason": "Forbidden", "message": "not yours" });
        let error = Box::new(kube::Error::Api(Box::new(serde_json::from_value(status).unwrap())));
        let failure = Failure::Api { operation: "writing a claim's status", error };
        let text = "writing a claim's status failed at the API server: not yours (403 Forbidden)";
        assert_eq!(failure.to_string(), text);
    }
}
