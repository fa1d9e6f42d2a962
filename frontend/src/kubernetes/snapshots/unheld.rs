//! An object whose volume or snapshot no node has. Any node may say so after a while, and let it go once its
//! owner has deleted it: nobody else will.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use tracing::{info, warn};

use super::decision::{Step, decide};
use super::kind::Kind;
use super::{adoption, status, write};
use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::reconcile::Action;

/// Does what `content`, which no node has, needs once it has waited for one for long enough.
///
/// # Errors
/// A conflict when it has changed since it was read: another node may have been first.
pub async fn serve<K: Kind>(context: &Context, content: &K) -> Result<Action, Failure> {
    let has_waited = |since: Option<&Time>| since.is_some_and(|since| is_past(since, context.intervals.untaken));
    match decide(content) {
        Step::Release { .. } if has_waited(content.meta().deletion_timestamp.as_ref()) => {
            info!(object = %content.name_any(), "this node lets the {} go: it was deleted, and no node has it", K::CALLED);
            adoption::label(context, content).await?;
        }
        Step::Take { .. } | Step::Describe { .. } if has_waited(content.meta().creation_timestamp.as_ref()) => {
            tell(context, content).await?;
        }
        _ => {}
    }
    let pause = context.intervals.unknown_volume;
    Ok(Action::requeue(pause + jitter(pause)))
}

/// Says in the object that no node has it, unless it says so, or that it is ready.
async fn tell<K: Kind>(context: &Context, content: &K) -> Result<(), Failure> {
    if content.is_said_to_be_ready() {
        return Ok(());
    }
    let message = format!(
        "no node has {}: correct the name, or wait until the agent of its node runs; if that is gone for good, delete the {}",
        content.wanted(),
        K::OWNER
    );
    let Some(patch) = status::failed(content, &message) else { return Ok(()) };
    write::status(context, content, patch).await?;
    warn!(object = %content.name_any(), "{message}");
    context.events.publish(content, K::REASONS.check_failed, message);
    Ok(())
}

fn is_past(since: &Time, pause: Duration) -> bool {
    SignedDuration::try_from(pause).is_ok_and(|pause| Timestamp::now().duration_since(since.0) >= pause)
}
