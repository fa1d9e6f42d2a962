//! Claims whose volumes begin as copies: each ends up on the node of its source, which the scheduler does not know.
//!
//! Where one of our admission policies shows such a claim to the agents before it has a pod, the node of its source takes
//! it, and the scheduler follows. Otherwise the scheduler selects a node, and if that is the wrong one, its agent hands the
//! claim over: the scheduler finds within a second that it is to be on another node, and places the pod anew.

use std::time::Duration;

use bulkhead_model::objects::{claim, storage_class};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use tokio::time::Instant;
use tracing::{debug, info};

use super::holder::{check_node, is_here};
use super::node_selection::select;
use super::source::source;
use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::reconcile::Action;

/// How soon to look again whether this node has the source: a snapshot may be about to be taken. It asks nobody.
const PAUSE: Duration = Duration::from_secs(4);

/// How soon to try again to take a claim that the agents may not take: its class may be granted to them meanwhile.
const AFTER_REFUSAL: Duration = Duration::from_secs(300);

/// Takes `claim` of `class`, which no node has yet, if its source is on this one.
///
/// # Errors
/// A conflict when it has changed since it was read.
pub async fn take_if_held(
    context: &Context,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
) -> Result<Action, Failure> {
    if !is_here(context, claim) {
        if storage_class::binds_immediately(class) {
            report_unheld(context, claim);
        }
        return Ok(Action::requeue(PAUSE + jitter(PAUSE)));
    }
    match select(context, claim, Some(&context.agent.node.name)).await {
        // Without that right the scheduler places it, once it has a pod, and the wrong node hands it over.
        Err(failure) if failure.is_forbidden() && !storage_class::binds_immediately(class) => {
            debug!(claim = %claim.name_any(), "its source is on this node, which may not take it: {failure}");
            return Ok(Action::requeue(AFTER_REFUSAL + jitter(AFTER_REFUSAL)));
        }
        outcome => outcome?,
    }
    // The volume is made when the watch reports the claim with this node.
    debug!(claim = %claim.name_any(), "claim taken: its source is on this node");
    Ok(Action::await_change())
}

/// Tells the claim's owner that no node has taken it, which one agent does for all: each has waited until its own moment. What
/// the matter is, none of them knows without asking the API server, and all would ask.
fn report_unheld(context: &Context, claim: &PersistentVolumeClaim) {
    let (now, untaken) = (Instant::now(), context.intervals.untaken);
    let is_time = context.memory.with(claim::uid(claim), |entry| {
        let at = *entry.report_unheld_at.get_or_insert_with(|| now + untaken + jitter(untaken));
        at <= now && !std::mem::replace(&mut entry.unheld_reported, at <= now)
    });
    let Ok(Some(source)) = source(claim) else { return };
    if !is_time {
        return;
    }
    let note = format!(
        "no node has taken the claim: none has {}, which it is to begin as a copy of. It may not exist or not be ready, or the agent of its node does not run; `kubectl bulkhead doctor` says what is known. If the node or the source is gone for good, delete the claim",
        source.shown()
    );
    context.events.publish_once(claim, Reason::ProvisioningFailed, "unheld", note);
}

/// Hands `claim` over to the node called `node`, which has its source.
///
/// # Errors
/// When that node is gone, or the claim has changed since it was read.
pub async fn hand_over(context: &Context, claim: &PersistentVolumeClaim, node: &str) -> Result<(), Failure> {
    check_node(context, claim, node).await?;
    select(context, claim, Some(node)).await?;
    info!(claim = %claim.name_any(), namespace = claim.namespace(), "handed over to node {node}, which has its source");
    let note = format!("the claim's source is on node {node}: handed over to it");
    context.events.publish(claim, Reason::Provisioning, note);
    Ok(())
}
