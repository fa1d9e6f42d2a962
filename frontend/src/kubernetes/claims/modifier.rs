//! Changing the attributes of volumes whose claims name another VolumeAttributesClass.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_model::objects::claim;
use bulkhead_model::volumes::{Attributes, Fault};
use bulkhead_protocol::VolumeId;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;
use tonic::Code;
use tracing::{info, warn};

use super::attributes;
use super::bound::{volume_of, write_status, write_volume};
use super::modify_status::{self, Next, next};
use crate::call_id;
use crate::csi::{Operation, code};
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::holdings::{charge_attributes, settled};
use crate::kubernetes::memory::FailedModification;

/// How soon to look again for a class that does not exist.
const MISSING_CLASS_PAUSE: Duration = Duration::from_secs(10);

/// Modifies volumes.
pub struct Modifier {
    context: Arc<Context>,
}

/// What there was to do.
pub enum Outcome {
    /// Nothing, or nothing before this time has passed.
    Idle(Option<Duration>),
    /// The claim has been written, and will be looked at again.
    Written,
}

impl Modifier {
    /// For the claims that concern `context`'s node.
    pub fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    /// Gives the volume of `claim`, which has one, the attributes that the claim asks for.
    ///
    /// # Errors
    /// When it cannot be done now; the claim says why.
    pub async fn serve(&self, claim: &PersistentVolumeClaim) -> Result<Outcome, Failure> {
        let failed = self.context.memory.with(claim::uid(claim), |entry| entry.failed_modification.clone());
        let has_failed = |target: &str| failed.as_ref().is_some_and(|failed| failed.target == target);
        let target = match next(claim, has_failed) {
            Next::Nothing => {
                self.context.memory.with(claim::uid(claim), |entry| entry.failed_modification = None);
                return Ok(Outcome::Idle(None));
            }
            Next::Withdraw => {
                write_status(&self.context, claim, modify_status::withdrawn()).await?;
                self.context.events.publish(claim, Reason::VolumeModifyCanceled, "the modification was withdrawn");
                return Ok(Outcome::Written);
            }
            Next::Modify(target) => target,
        };
        let left = |failed: &FailedModification| failed.not_before.saturating_duration_since(Instant::now());
        let left = failed.as_ref().filter(|failed| failed.target == target).map(left);
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            return Ok(Outcome::Idle(Some(left)));
        }
        let Some((object, volume)) = volume_of(&self.context, claim) else {
            return Ok(Outcome::Idle(Some(self.context.intervals.unknown_volume)));
        };
        let attributes = match attributes::named(&self.context, &target).await {
            Ok(attributes) => Ok(attributes),
            Err(Failure::Volume(fault)) => Err(fault),
            Err(failure) => return Err(self.wait(claim, &target, failure).await),
        };
        // Written anew at each attempt: from here on its outcome is unknown until it is written as well.
        let claim = write_status(&self.context, claim, modify_status::begun(&target)).await?;
        if left.is_none() {
            let note = format!("modifying volume {volume} to volume attributes class {target}");
            self.context.events.publish(&*claim, Reason::VolumeModify, note);
        }
        let modified = match attributes {
            Ok(attributes) => self.modify(&claim, &volume, &attributes).await,
            Err(fault) => Err(fault),
        };
        if let Err(fault) = modified {
            return Err(self.give_up(&claim, &target, fault).await);
        }
        self.record(&object, &target).await?;
        write_status(&self.context, &claim, modify_status::done(&target)).await?;
        self.context.memory.with(claim::uid(&claim), |entry| entry.failed_modification = None);
        self.context.capacity_changed.notify_one();
        info!(claim = %claim.name_any(), namespace = claim.namespace(), %volume, class = target, call = %call_id::current(), "modified");
        let note = format!("modified volume {volume} to volume attributes class {target}");
        self.context.events.publish(&*claim, Reason::VolumeModifySuccessful, note);
        Ok(Outcome::Written)
    }

    async fn modify(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &VolumeId,
        attributes: &Attributes,
    ) -> Result<(), Fault> {
        let namespace = claim.namespace().unwrap_or_default();
        let charged = charge_attributes(&self.context, &namespace, volume, attributes).await;
        let charged = charged.map_err(Failure::into_fault)?;
        settled(charged, self.context.volumes.modify(volume.clone(), attributes).await)
    }

    /// Writes into the PersistentVolume which class its volume has. This comes before the claim's status, so that a claim
    /// never says more than its PersistentVolume.
    async fn record(&self, object: &PersistentVolume, target: &str) -> Result<(), Failure> {
        let has = object.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
        if has == Some(target) {
            return Ok(());
        }
        let patch = json!({ "spec": { "volumeAttributesClassName": target } });
        write_volume(&self.context, "writing a PersistentVolume's attributes class", object, patch).await
    }

    /// Records that the class called `target` does not exist, if that is the failure, and returns it.
    async fn wait(&self, claim: &PersistentVolumeClaim, target: &str, failure: Failure) -> Failure {
        if !matches!(failure, Failure::NotYet(_)) {
            return failure;
        }
        self.remember(claim, target, MISSING_CLASS_PAUSE);
        if !modify_status::is_waiting(claim, target)
            && let Err(failure) = write_status(&self.context, claim, modify_status::pending(target)).await
        {
            return failure;
        }
        self.context.events.publish(claim, Reason::VolumeModifyFailed, failure.to_string());
        failure
    }

    /// Records that an attempt has failed, and returns the failure, which decides when the next one is made.
    async fn give_up(&self, claim: &PersistentVolumeClaim, target: &str, fault: Fault) -> Failure {
        let code = code(Operation::Modify, fault.kind);
        let is_infeasible = code == Code::InvalidArgument;
        warn!(claim = %claim.name_any(), namespace = claim.namespace(), is_infeasible, "not modified: {fault}");
        self.context.events.publish(claim, Reason::VolumeModifyFailed, fault.to_string());
        // The same attempt may succeed soon, or have succeeded.
        if matches!(code, Code::Unavailable | Code::Aborted) {
            return fault.into();
        }
        let status = modify_status::failed(target, is_infeasible, &format!("{code:?}"), &fault.to_string());
        if let Err(failure) = write_status(&self.context, claim, status).await {
            return failure;
        }
        self.remember(claim, target, self.context.intervals.failed_for_good);
        fault.into()
    }

    fn remember(&self, claim: &PersistentVolumeClaim, target: &str, pause: Duration) {
        let failed = FailedModification { target: target.to_owned(), not_before: Instant::now() + pause };
        self.context.memory.with(claim::uid(claim), |entry| entry.failed_modification = Some(failed));
    }
}
