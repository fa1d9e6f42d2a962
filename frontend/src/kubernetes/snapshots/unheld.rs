//! A VolumeSnapshotContent whose volume or snapshot no node has. Any node may say so after a while, and let it go once its
//! owner has deleted it: nobody else will.

use std::time::Duration;

use bulkhead_model::objects::names::shown;
use bulkhead_model::objects::snapshot_content::{Source, VolumeSnapshotContent};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use tracing::{info, warn};

use super::decision::{Step, decide};
use super::{adoption, status, write};
use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::reconcile::Action;

/// Does what `content`, which no node has, needs once it has waited for one for long enough.
///
/// # Errors
/// A conflict when it has changed since it was read: another node may have been first.
pub async fn serve(context: &Context, content: &VolumeSnapshotContent) -> Result<Action, Failure> {
    let has_waited = |since: Option<&Time>| since.is_some_and(|since| is_past(since, context.intervals.untaken));
    match decide(content) {
        Step::Release { .. } if has_waited(content.metadata.deletion_timestamp.as_ref()) => {
            info!(object = %content.name_any(), "this node lets the snapshot go: it was deleted, and no node has it");
            adoption::label(context, content).await?;
        }
        Step::Take { .. } | Step::Describe { .. } if has_waited(content.metadata.creation_timestamp.as_ref()) => {
            tell(context, content).await?;
        }
        _ => {}
    }
    let pause = context.intervals.unknown_volume;
    Ok(Action::requeue(pause + jitter(pause)))
}

/// Says in the object that no node has it, unless it says so, or that it is ready.
async fn tell(context: &Context, content: &VolumeSnapshotContent) -> Result<(), Failure> {
    let what = match content.source() {
        Some(Source::Volume(volume)) => format!("volume {}", shown(volume)),
        Some(Source::Snapshot(handle)) => format!("snapshot {}", shown(handle)),
        None => return Ok(()),
    };
    if content.is_said_to_be_ready() {
        return Ok(());
    }
    let message = format!(
        "no node has {what}: correct the name, or wait until the agent of its node runs; if that is gone for good, delete the VolumeSnapshot"
    );
    let Some(patch) = status::failed(content, &message) else { return Ok(()) };
    write::status(context, content, patch).await?;
    warn!(object = %content.name_any(), "{message}");
    context.events.publish(content, Reason::SnapshotContentCheckandUpdateFailed, message);
    Ok(())
}

fn is_past(since: &Time, pause: Duration) -> bool {
    SignedDuration::try_from(pause).is_ok_and(|pause| Timestamp::now().duration_since(since.0) >= pause)
}
