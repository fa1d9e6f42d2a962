//! One request to the API server, with a deadline.

use std::future::Future;
use std::time::Duration;

use kube::ResourceExt;
use serde_json::{Value, json};

use super::failure::Failure;
use super::pace::LONGEST_WAIT;
use super::silence;

/// How long the API server may take to answer a request: in full, or with the start of a watch.
pub const DEADLINE: Duration = Duration::from_secs(15);

/// Waits for the API server's answer to `call`, once the agent may send it, but not forever. `operation` names it in the failure.
///
/// # Errors
/// `Api` when the request fails, `NoAnswer` when there is no answer in time.
pub async fn request<T>(
    operation: &'static str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Failure> {
    request_within(DEADLINE + LONGEST_WAIT, operation, call).await
}

/// Waits for an answer that may be large until `deadline`. `operation` names the call in the failure.
///
/// # Errors
/// `Api` when the request fails, `NoAnswer` when there is no answer in time.
pub async fn request_within<T>(
    deadline: Duration,
    operation: &'static str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(deadline, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(match silence::waited(&error) {
            Some(waited) => Failure::NoAnswer { operation, waited },
            None => Failure::Api { operation, error: Box::new(error) },
        }),
        Err(_) => Err(Failure::NoAnswer { operation, waited: deadline }),
    }
}

/// The outcome of a change to an object that may be gone: if it is, nothing is left to change.
///
/// # Errors
/// When the change failed for any other reason.
pub fn unless_gone<T>(outcome: Result<T, Failure>) -> Result<(), Failure> {
    match outcome {
        Ok(_) => Ok(()),
        Err(failure) if failure.is_not_found() => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// `patch`, to be applied only if `object` has not changed since it was read; otherwise the request is a conflict.
pub fn if_unchanged(object: &impl ResourceExt, mut patch: Value) -> Value {
    patch["metadata"]["resourceVersion"] = json!(object.resource_version());
    patch
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn a_patch_carries_the_version_it_was_made_for() {
        let object: ConfigMap = serde_json::from_value(json!({ "metadata": { "resourceVersion": "7" } })).unwrap();
        let patch = if_unchanged(&object, json!({ "metadata": { "labels": { "a": "b" } }, "data": {} }));
        let expected = json!({ "metadata": { "labels": { "a": "b" }, "resourceVersion": "7" }, "data": {} });
        assert_eq!(patch, expected);
        assert_eq!(if_unchanged(&object, json!({}))["metadata"]["resourceVersion"], "7");
    }

    #[test]
    fn only_absence_is_forgiven() {
        let failed = |code: u16, reason: &str| {
            let status = json!({ "code": code, "reason": reason, "message": "" });
            let error = Box::new(kube::Error::Api(Box::new(serde_json::from_value(status).unwrap())));
            Err::<(), _>(Failure::Api { operation: "testing", error })
        };
        unless_gone(Ok("done")).unwrap();
        unless_gone(failed(404, "NotFound")).unwrap();
        unless_gone(failed(409, "Conflict")).unwrap_err();
    }
}
