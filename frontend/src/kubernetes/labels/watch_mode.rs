//! Whether objects carry the label into which one of our admission policies copies their node.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ApiResource, DynamicObject, ObjectMeta};
use kube::{Api, Client};

use super::scope::Scope;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::request;

/// How old the policy's binding must be: by then every API server has it in force, so that no object lacks the label.
const SETTLED: Duration = Duration::from_secs(10);

/// How objects are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchMode {
    /// By the label that the policy sets.
    Labelled,
    /// All of them.
    Everything,
    /// Not at all: the cluster does not know their kind.
    Unknown,
}

/// The uid of the binding of `policy`, if every API server has it in force: whatever is written has the label.
///
/// # Errors
/// When the API server does not answer.
pub async fn settled(client: &Client, policy: &str) -> Result<Option<String>, Failure> {
    Ok(binding(client, policy).await?.and_then(|ObjectMeta { creation_timestamp, uid, .. }| {
        let age = creation_timestamp.map(|made| Timestamp::now().duration_since(made.0));
        uid.filter(|_| mode_at_age(age, Duration::ZERO).0 == WatchMode::Labelled)
    }))
}

/// How objects of `scope` that get their label from `policy` can be watched now, and how soon to look again.
///
/// # Errors
/// When the API server does not answer.
pub async fn watch_mode(client: &Client, policy: &str, scope: &Scope) -> Result<(WatchMode, Duration), Failure> {
    Ok(match binding(client, policy).await? {
        // The policy skips names that are too long for a label.
        Some(binding) if scope.place.value() == scope.node => mode_at_age(
            binding.creation_timestamp.map(|made| Timestamp::now().duration_since(made.0)),
            scope.intervals.policies,
        ),
        _ => (WatchMode::Everything, scope.intervals.policies),
    })
}

async fn binding(client: &Client, policy: &str) -> Result<Option<ObjectMeta>, Failure> {
    // The kind is newer than the oldest supported version of the API, so the client has no type for it.
    let kind = ApiResource::erase::<ValidatingAdmissionPolicyBinding>(&());
    let kind = ApiResource {
        kind: "MutatingAdmissionPolicyBinding".to_owned(),
        plural: "mutatingadmissionpolicybindings".to_owned(),
        ..kind
    };
    let bindings: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let found = request("looking for an admission policy that sets labels", bindings.get_metadata_opt(policy)).await?;
    Ok(found.map(|found| found.metadata))
}

/// How objects can be watched when the policy has been bound for `age`, and how soon to look again: after `interval` unless
/// something is known to change before.
fn mode_at_age(age: Option<SignedDuration>, interval: Duration) -> (WatchMode, Duration) {
    let age = age.map(|age| Duration::try_from(age).unwrap_or_default());
    match age.and_then(|age| SETTLED.checked_sub(age)) {
        Some(left) if !left.is_zero() => (WatchMode::Everything, left),
        _ => (WatchMode::Labelled, interval),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_policy_is_not_relied_on() {
        let interval = Duration::from_secs(300);
        let at = |seconds| mode_at_age(Some(SignedDuration::from_secs(seconds)), interval);
        assert_eq!(at(3), (WatchMode::Everything, Duration::from_secs(7)));
        assert_eq!(at(-5), (WatchMode::Everything, SETTLED), "clocks differ");
        assert_eq!(at(10), (WatchMode::Labelled, interval));
        assert_eq!(at(1000), (WatchMode::Labelled, interval));
        assert_eq!(mode_at_age(None, interval), (WatchMode::Labelled, interval));
    }
}
