//! Expanding volumes whose claims request more. The agent does both halves: it grows the volume, and it brings the
//! claim's status up to date.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_model::objects::{claim, persistent_volume, storage};
use bulkhead_model::quantity::Quantity;
use bulkhead_model::volumes::{Fault, Outlook, SizeRange};
use bulkhead_protocol::{ErrorKind, VolumeId};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;
use tracing::{info, warn};

use super::bound::{volume_of, write_status, write_volume};
use super::resize_status;
use super::resize_target::{is_expansion_requested, target};
use crate::call_id;
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::holdings::{charge_growth, settled};
use crate::kubernetes::memory::FailedExpansion;
use crate::kubernetes::reconcile::Action;
use crate::metrics::METRICS;

/// Expands volumes.
pub struct Resizer {
    context: Arc<Context>,
}

impl Resizer {
    /// For the claims that concern `context`'s node.
    pub fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    /// Expands the volume of `claim`, which is bound, if the claim requests it.
    ///
    /// # Errors
    /// When it cannot be done now; the claim says why.
    pub async fn serve(&self, claim: &PersistentVolumeClaim) -> Result<Action, Failure> {
        if !is_expansion_requested(claim) {
            return Ok(Action::await_change());
        }
        // The watch may not have reported its PersistentVolume yet.
        let Some((object, volume)) = volume_of(&self.context, claim) else {
            return Ok(Action::requeue(self.context.intervals.unknown_volume));
        };
        let failed = self.context.memory.with(claim::uid(claim), |entry| entry.failed_expansion);
        let target = target(claim, &object, failed.is_some());
        if let Some(pause) = failed.filter(|failed| failed.target == target).and_then(|failed| self.left_alone(failed))
        {
            return Ok(Action::requeue(pause));
        }
        // When an attempt that failed for good is repeated, the claim keeps saying so until it succeeds.
        let is_repeated = resize_status::is_target_of_failure(claim, target, failed.is_some());
        let mut claim = Arc::new(claim.clone());
        if !is_repeated {
            claim = self.begin(&claim, target).await?;
            let note = format!("expanding volume {volume} to {}", Quantity::from(target));
            self.context.events.publish(&*claim, Reason::Resizing, note);
        }
        let size = match self.grow(&claim, volume.clone(), target).await {
            Ok(size) => size,
            Err(fault) => return Err(self.give_up(&claim, target, fault, is_repeated).await),
        };
        if is_repeated {
            claim = self.begin(&claim, target).await?;
        }
        self.record_size(&object, size).await?;
        write_status(&self.context, &claim, resize_status::finished(size)).await?;
        self.context.memory.with(claim::uid(&claim), |entry| entry.failed_expansion = None);
        self.context.capacity_changed.notify_one();
        info!(claim = %claim.name_any(), namespace = claim.namespace(), %volume, size, call = %call_id::current(), "expanded");
        let note = format!("expanded volume {volume} to {}", Quantity::from(size));
        self.context.events.publish(&*claim, Reason::VolumeResizeSuccessful, note);
        Ok(Action::await_change())
    }

    async fn grow(&self, claim: &PersistentVolumeClaim, volume: VolumeId, target: u64) -> Result<u64, Fault> {
        let range = SizeRange::new(i64::try_from(target).unwrap_or(i64::MAX), 0)?;
        let namespace = claim.namespace().unwrap_or_default();
        let charged = charge_growth(&self.context, &namespace, &volume, range).await.map_err(Failure::into_fault)?;
        let grown = self.context.volumes.grow(volume, range, None, Some(claim::mode(claim))).await;
        settled(charged, grown).map(|size| size.get())
    }

    /// Writes that an expansion to `target` has started. This comes before everything else: a kubelet that found the
    /// volume expanded without it would regard the expansion as its own task.
    async fn begin(&self, claim: &PersistentVolumeClaim, target: u64) -> Result<Arc<PersistentVolumeClaim>, Failure> {
        write_status(&self.context, claim, resize_status::started(target)).await
    }

    /// Writes the new size into the PersistentVolume.
    async fn record_size(&self, object: &PersistentVolume, size: u64) -> Result<(), Failure> {
        if persistent_volume::capacity_bytes(object) == Some(size) {
            return Ok(());
        }
        let patch = json!({ "spec": { "capacity": { "storage": storage::quantity(size) } } });
        write_volume(&self.context, "writing a PersistentVolume's size", object, patch).await
    }

    /// Records that an attempt has failed, and returns the failure, which decides when the next one is made.
    async fn give_up(&self, claim: &PersistentVolumeClaim, target: u64, fault: Fault, is_repeated: bool) -> Failure {
        let infeasible = is_infeasible(&fault);
        warn!(claim = %claim.name_any(), namespace = claim.namespace(), infeasible, "not expanded: {fault}");
        METRICS.expansion_failures.with([if infeasible { "infeasible" } else { "failed" }]).inc();
        self.context.events.publish(claim, Reason::VolumeResizeFailed, fault.to_string());
        if !infeasible && is_transient(&fault) {
            return fault.into();
        }
        let status = if infeasible { resize_status::infeasible(target, &fault) } else { resize_status::failed(&fault) };
        if !is_repeated && let Err(failure) = write_status(&self.context, claim, status).await {
            return failure;
        }
        let failed = FailedExpansion { target, at: Instant::now() };
        self.context.memory.with(claim::uid(claim), |entry| entry.failed_expansion = Some(failed));
        Failure::Refused(fault.to_string())
    }

    /// Returns how long until the same expansion may be tried again.
    fn left_alone(&self, failed: FailedExpansion) -> Option<Duration> {
        self.context.intervals.failed_for_good.checked_sub(failed.at.elapsed()).filter(|left| !left.is_zero())
    }
}

/// Returns whether the same attempt may succeed soon.
fn is_transient(fault: &Fault) -> bool {
    fault.outlook() == Outlook::Open || fault.is(ErrorKind::PoolBroken)
}

/// Returns whether the claim's owner should request less. A full pool counts as well, since the owner may request less
/// only if it does.
fn is_infeasible(fault: &Fault) -> bool {
    matches!(fault.outlook(), Outlook::NoRoom | Outlook::Never) || fault.is(ErrorKind::NotFound)
}
