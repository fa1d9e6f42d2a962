//! Whether objects carry the label into which one of our admission policies copies their node.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::api::ObjectMeta;

use super::policy::find;
use super::scope::Scope;
use crate::kubernetes::api::failure::Failure;

/// How old the policy and its binding must be: by then every API server has it in force, so that no object lacks the label.
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

/// What `policy` is in the cluster, if every API server has it in force: whatever is written has the label. It is another
/// one once the policy has been made anew.
///
/// # Errors
/// When the API server does not answer.
pub async fn settled(client: &Client, policy: &str) -> Result<Option<String>, Failure> {
    Ok(find(client, policy).await?.and_then(|parts| {
        let is_settled = mode_at_age(age(&parts), Duration::ZERO).0 == WatchMode::Labelled;
        let [policy, binding] = parts.map(|part| part.uid);
        binding.filter(|_| is_settled).map(|binding| format!("{}/{binding}", policy.unwrap_or_default()))
    }))
}

/// How objects of `scope` that get their label from `policy` can be watched now, and how soon to look again.
///
/// # Errors
/// When the API server does not answer.
pub async fn watch_mode(client: &Client, policy: &str, scope: &Scope) -> Result<(WatchMode, Duration), Failure> {
    Ok(match find(client, policy).await? {
        // The policy skips names that are too long for a label.
        Some(parts) if scope.place.value() == scope.node => mode_at_age(age(&parts), scope.intervals.policies),
        _ => (WatchMode::Everything, scope.intervals.policies),
    })
}

/// How long both have been there.
fn age(parts: &[ObjectMeta; 2]) -> Option<SignedDuration> {
    let made = parts.iter().filter_map(|part| part.creation_timestamp.as_ref());
    made.map(|made| Timestamp::now().duration_since(made.0)).min()
}

/// How objects can be watched when the policy has been in force for `age`, and how soon to look again: after `interval` unless
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
