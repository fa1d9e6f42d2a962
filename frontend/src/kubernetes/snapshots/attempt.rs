//! What is said about an attempt that failed, and when it is repeated: what is written about it changes the object, and
//! that alone must not repeat it at once.

use std::time::Duration;

use bulkhead_model::volumes::Outlook;
use kube::ResourceExt;
use tokio::time::Instant;
use tracing::warn;

use super::kind::Kind;
use super::{status, write};
use crate::kubernetes::api::backoff::retry_delay;
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::memory::FailedAttempt;

/// Returns how long until the attempt that is reported with `reason` may be repeated, if it has failed before.
pub fn remaining_pause<K: Kind>(context: &Context, content: &K, reason: Reason) -> Option<Duration> {
    let failed = context.memory.with(content.object_uid(), |entry| entry.failed_attempt)?;
    let left = failed.not_before.saturating_duration_since(Instant::now());
    (failed.reason == reason && !left.is_zero()).then_some(left)
}

/// Forgets that an attempt has failed: one has succeeded.
pub fn succeeded<K: Kind>(context: &Context, content: &K) {
    context.memory.with(content.object_uid(), |entry| entry.failed_attempt = None);
}

/// Reports that the attempt has failed, if that concerns what is taken rather than the API server, and returns the
/// failure.
pub fn report<K: Kind>(context: &Context, content: &K, reason: Reason, failure: Failure) -> Failure {
    if failure.is_for_owner() {
        warn!(object = %content.name_any(), "{failure}");
        context.events.publish(content, reason, failure.to_string());
        let failures = context.memory.failures(content.object_uid()).saturating_add(1);
        let not_before = Instant::now() + retry_delay(failures, &failure);
        let failed = FailedAttempt { reason, not_before };
        context.memory.with(content.object_uid(), |entry| entry.failed_attempt = Some(failed));
    }
    failure
}

/// Reports as [`report`] does, and says so in the object, from which the snapshot controller copies it to its
/// owner. Unless it may be taken at this moment, also says that nothing is in progress: as long as
/// something is, nobody else may act.
pub async fn report_in_object<K: Kind>(context: &Context, content: &K, reason: Reason, failure: Failure) -> Failure {
    let failure = report(context, content, reason, failure);
    if !failure.is_for_owner() {
        return failure;
    }
    let mut content = content.clone();
    if let Some(patch) = status::failed(&content, &failure.to_string()) {
        content = match write::status(context, &content, patch).await {
            Ok(patched) => patched,
            Err(failure) => return failure,
        };
    }
    if content.is_being_created()
        && !may_be_in_progress(&failure)
        && let Err(failure) = write::object(context, &content, status::settled::<K>()).await
    {
        return failure;
    }
    failure
}

/// Returns whether the helper may be doing, or have done, what it was asked for: it has not said that it did not.
fn may_be_in_progress(failure: &Failure) -> bool {
    matches!(failure, Failure::Volume(fault) if fault.outlook() == Outlook::Open)
}

#[cfg(test)]
mod tests {
    use bulkhead_model::volumes::{Fault, FaultKind};
    use bulkhead_protocol::ErrorKind;

    use super::*;

    #[test]
    fn only_silence_leaves_it_open() {
        let failed = |kind| may_be_in_progress(&Failure::Volume(Fault::new(kind, "no")));
        assert!(failed(FaultKind::Away) && failed(FaultKind::Typed(ErrorKind::Busy)));
        assert!(!failed(FaultKind::Typed(ErrorKind::NoSpace)), "a full pool must not keep its owner from giving up");
        assert!(!failed(FaultKind::Typed(ErrorKind::NotFound)));
        assert!(!may_be_in_progress(&Failure::Refused("no".to_owned())));
    }
}
