//! Growing volumes whose claims ask for more. The agent does both halves: the volume, and what the claim says of it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_protocol::{ErrorKind, VolumeId};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::resize_status::{self, Progress};
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::{Failure, ask};
use crate::kubernetes::context::Context;
use crate::kubernetes::objects::claim;
use crate::kubernetes::objects::persistent_volume::own;
use crate::kubernetes::objects::quantity::{bytes, quantity};
use crate::volumes::{Fault, FaultKind, Mode, SizeRange};

/// How long a growth that cannot be done is left alone.
const PAUSE: Duration = Duration::from_secs(300);

/// How soon to look again for a volume that is not known.
const UNKNOWN: Duration = Duration::from_secs(30);

/// Grows the volume of `claim`, which is bound, if it asks for that.
///
/// # Errors
/// When it cannot be done now; the claim says why.
pub async fn serve(context: &Context, claim: &PersistentVolumeClaim) -> Result<Action, Failure> {
    if !is_wanted(claim) {
        return Ok(Action::await_change());
    }
    // The watch of its volume may be late.
    let Some((object, volume)) = bound_volume(context, claim) else { return Ok(Action::requeue(UNKNOWN)) };
    let is_hopeless = context.hopeless.knows(claim::uid(claim));
    let target = target(claim, &object, is_hopeless);
    if let Some(pause) = context.hopeless.pause(claim::uid(claim), target) {
        return Ok(Action::requeue(pause));
    }
    // An attempt that has failed for good leaves the claim as it is until it succeeds.
    let repeated = resize_status::allocated(claim) == Some(target)
        && (is_hopeless || resize_status::progress(claim) == Progress::Infeasible);
    let mut claim = Arc::new(claim.clone());
    if !repeated {
        claim = begin(context, &claim, target).await?;
        context.events.tell(&*claim, Reason::Resizing, format!("volume {volume} grows to {target} bytes"));
    }
    let size = match grow(context, &claim, volume.clone(), target).await {
        Ok(size) => size,
        Err(fault) => return Err(failed(context, &claim, target, fault, repeated).await),
    };
    if repeated {
        claim = begin(context, &claim, target).await?;
    }
    record(context, &object, size).await?;
    write_status(context, &claim, resize_status::finished(size)).await?;
    context.hopeless.forget(claim::uid(&claim));
    context.publisher.nudge();
    info!(claim = %claim.name_any(), namespace = claim.namespace(), %volume, size, "grown");
    context.events.tell(&*claim, Reason::VolumeResizeSuccessful, format!("volume {volume} has {size} bytes"));
    Ok(Action::await_change())
}

/// Growths that have failed for good, by the claim's uid. Another size is tried at once; for the same one there may be
/// room one day.
#[derive(Debug, Default)]
pub struct Hopeless(Mutex<HashMap<String, (u64, Instant)>>);

impl Hopeless {
    /// How long a growth to `target` bytes is not to be tried again.
    fn pause(&self, uid: &str, target: u64) -> Option<Duration> {
        let growths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, since) = growths.get(uid).filter(|(hopeless, _)| *hopeless == target)?;
        PAUSE.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }

    /// Whether the last attempt has failed for good.
    fn knows(&self, uid: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(uid)
    }

    fn note(&self, uid: &str, target: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned(), (target, Instant::now()));
    }

    /// Forgets all but those claims.
    pub fn keep(&self, living: &HashSet<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| living.contains(uid));
    }

    /// The claim has grown, or is gone.
    pub fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

/// Whether the claim asks for more than it has.
fn is_wanted(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    let bound = status.and_then(|status| status.phase.as_deref()) == Some("Bound");
    let has = status.and_then(|status| bytes(status.capacity.as_ref()?.get("storage")?));
    bound && claim.metadata.deletion_timestamp.is_none() && claim::requested(claim) > has && has.is_some()
}

/// The object of the claim's volume, and the volume's id, if it is on this node.
fn bound_volume(context: &Context, claim: &PersistentVolumeClaim) -> Option<(Arc<PersistentVolume>, VolumeId)> {
    let object = context.objects.get(&ObjectRef::new(claim::volume(claim)?))?;
    let bound_to = object.spec.as_ref()?.claim_ref.as_ref()?.uid.as_deref();
    let volume = own(&object, &context.driver, &context.place)?;
    (bound_to == Some(claim::uid(claim))).then_some((object, volume))
}

/// The size to try. One that was begun is ended first, also if less is wanted by now: it may be done already. One that is
/// hopeless is not.
fn target(claim: &PersistentVolumeClaim, object: &PersistentVolume, is_hopeless: bool) -> u64 {
    let requested = claim::requested(claim).unwrap_or_default();
    let begun = match resize_status::progress(claim) {
        Progress::Begun if !is_hopeless => resize_status::allocated(claim).unwrap_or_default(),
        Progress::Begun | Progress::None | Progress::Infeasible => 0,
    };
    let recorded = object.spec.as_ref().and_then(|spec| bytes(spec.capacity.as_ref()?.get("storage")?));
    requested.max(begun).max(recorded.unwrap_or_default())
}

async fn grow(context: &Context, claim: &PersistentVolumeClaim, volume: VolumeId, target: u64) -> Result<u64, Fault> {
    let mode = if claim::is_block(claim) { Mode::Block } else { Mode::Directory };
    let range = SizeRange::new(i64::try_from(target).unwrap_or(i64::MAX), 0)?;
    context.volumes.grow(volume, range, None, Some(mode)).await.map(|size| size.get())
}

/// Writes that a growth to `target` has begun. It comes before everything else: a kubelet that found the volume grown
/// without it would take the growth for its own work.
async fn begin(
    context: &Context,
    claim: &PersistentVolumeClaim,
    target: u64,
) -> Result<Arc<PersistentVolumeClaim>, Failure> {
    write_status(context, claim, resize_status::begun(target)).await
}

/// Writes the new size into the PersistentVolume.
async fn record(context: &Context, object: &PersistentVolume, size: u64) -> Result<(), Failure> {
    let recorded = object.spec.as_ref().and_then(|spec| bytes(spec.capacity.as_ref()?.get("storage")?));
    if recorded == Some(size) {
        return Ok(());
    }
    let patch = json!({ "spec": { "capacity": { "storage": quantity(size) } } });
    let (name, parameters) = (object.name_any(), PatchParams::default());
    ask("writing a PersistentVolume's size", context.all_objects().patch(&name, &parameters, &Patch::Strategic(patch)))
        .await?;
    Ok(())
}

/// Writes what became of an attempt, and decides when the next one is made.
async fn failed(
    context: &Context,
    claim: &PersistentVolumeClaim,
    target: u64,
    fault: Fault,
    repeated: bool,
) -> Failure {
    let infeasible = is_infeasible(&fault);
    warn!(claim = %claim.name_any(), namespace = claim.namespace(), infeasible, "not grown: {fault}");
    context.events.tell(claim, Reason::VolumeResizeFailed, fault.to_string());
    if !infeasible && may_pass(&fault) {
        return fault.into();
    }
    let status = if infeasible { resize_status::infeasible(target, &fault) } else { resize_status::failed(&fault) };
    if !repeated && let Err(failure) = write_status(context, claim, status).await {
        return failure;
    }
    context.hopeless.note(claim::uid(claim), target);
    Failure::Refused(fault.to_string())
}

/// Whether the same attempt may succeed soon.
fn may_pass(fault: &Fault) -> bool {
    match fault.kind {
        FaultKind::Typed(kind) => matches!(kind, ErrorKind::Busy | ErrorKind::PoolBroken),
        FaultKind::Away | FaultKind::Garbled => true,
        FaultKind::OutOfRange | FaultKind::Elsewhere | FaultKind::BadToken => false,
    }
}

/// Whether the claim's owner had better ask for less. A full pool counts: only then may they.
fn is_infeasible(fault: &Fault) -> bool {
    match fault.kind {
        FaultKind::OutOfRange => true,
        FaultKind::Typed(kind) => matches!(
            kind,
            ErrorKind::NoSpace
                | ErrorKind::Invalid
                | ErrorKind::NotFound
                | ErrorKind::Unsupported
                | ErrorKind::WrongKind
        ),
        FaultKind::Elsewhere | FaultKind::BadToken | FaultKind::Away | FaultKind::Garbled => false,
    }
}

/// Patches the claim's status, unless it has changed since it was read.
async fn write_status(
    context: &Context,
    claim: &PersistentVolumeClaim,
    mut patch: Value,
) -> Result<Arc<PersistentVolumeClaim>, Failure> {
    patch["metadata"]["resourceVersion"] = json!(claim.resource_version());
    let (name, parameters) = (claim.name_any(), PatchParams::default());
    let claims = context.claims_beside(claim);
    let patched =
        ask("writing a claim's status", claims.patch_status(&name, &parameters, &Patch::Strategic(patch))).await?;
    context.written.note(claim::uid(claim), patched.meta().resource_version.as_deref());
    Ok(Arc::new(patched))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(requested: &str, allocated: Option<(&str, &str)>, recorded: &str) -> u64 {
        sizes_after(requested, allocated, recorded, false)
    }

    fn sizes_after(requested: &str, allocated: Option<(&str, &str)>, recorded: &str, is_hopeless: bool) -> u64 {
        let status = allocated.map(|(size, status)| {
            json!({ "allocatedResources": { "storage": size }, "allocatedResourceStatuses": { "storage": status } })
        });
        let claim = serde_json::from_value(json!({
            "spec": { "resources": { "requests": { "storage": requested } } }, "status": status,
        }));
        let object = serde_json::from_value(json!({ "spec": { "capacity": { "storage": recorded } } }));
        target(&claim.unwrap(), &object.unwrap(), is_hopeless) >> 30
    }

    #[test]
    fn what_was_begun_is_ended() {
        assert_eq!(sizes("2Gi", None, "1Gi"), 2);
        assert_eq!(sizes("2Gi", Some(("4Gi", "ControllerResizeInProgress")), "1Gi"), 4);
        assert_eq!(sizes("8Gi", Some(("4Gi", "ControllerResizeInProgress")), "1Gi"), 8);
        assert_eq!(sizes("2Gi", Some(("4Gi", "ControllerResizeInfeasible")), "1Gi"), 2);
        assert_eq!(sizes("2Gi", None, "4Gi"), 4, "the volume was grown already");
        let begun = Some(("4Gi", "ControllerResizeInProgress"));
        assert_eq!(sizes_after("2Gi", begun, "1Gi", true), 2, "what has failed for good is not");
    }

    #[test]
    fn only_bound_claims_that_ask_for_more() {
        let wanted = |requested: &str, has: Value, phase: &str| {
            is_wanted(
                &serde_json::from_value(json!({
                    "spec": { "resources": { "requests": { "storage": requested } } },
                    "status": { "phase": phase, "capacity": has },
                }))
                .unwrap(),
            )
        };
        assert!(wanted("2Gi", json!({ "storage": "1Gi" }), "Bound"));
        assert!(!wanted("1Gi", json!({ "storage": "1Gi" }), "Bound"));
        assert!(!wanted("1Gi", json!({ "storage": "1025Mi" }), "Bound"));
        assert!(!wanted("2Gi", json!({ "storage": "1Gi" }), "Lost"));
        assert!(!wanted("2Gi", Value::Null, "Bound"));
    }
}
