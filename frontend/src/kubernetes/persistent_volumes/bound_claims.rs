//! The claims to which this node's volumes are bound. They are the agent's, whoever has bound them: a claim that was made
//! for a volume which exists, by the restore of a backup, a volume populator or an administrator, names no driver and no
//! node, and would never be expanded.

use bulkhead_model::objects::{claim, persistent_volume};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::json;
use tracing::{info, warn};

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::request;
use crate::kubernetes::context::Context;
use crate::kubernetes::reconcile::Action;

/// Has the claim watched that `object` is bound to: gives it the node's label, unless the watch has reported it.
///
/// # Errors
/// When the API server does not answer.
pub async fn have_watched(context: &Context, object: &PersistentVolume) -> Result<Action, Failure> {
    let Some(bound) = persistent_volume::claim_reference(object) else { return Ok(Action::await_change()) };
    if !context.stores.lists.is_complete("persistentvolumeclaims") {
        return Ok(Action::requeue(context.intervals.unknown_volume));
    }
    if is_watched(context, &bound) || label(context, object, &bound).await? {
        return Ok(Action::await_change());
    }
    // A volume is bound before its claim says so, and only then may the agent serve the claim.
    Ok(Action::requeue(context.intervals.unknown_volume))
}

fn is_watched(context: &Context, bound: &ObjectRef<PersistentVolumeClaim>) -> bool {
    let watched = context.stores.claims.get(bound);
    watched.is_some_and(|watched| Some(claim::uid(&watched)) == bound.extra.uid.as_deref())
}

/// Gives a claim the label, and returns whether it says by now that it is bound.
async fn label(
    context: &Context,
    object: &PersistentVolume,
    bound: &ObjectRef<PersistentVolumeClaim>,
) -> Result<bool, Failure> {
    let (place, namespace) = (&context.agent.place, bound.namespace.as_deref().unwrap_or_default());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    let now = request("reading a claim", claims.get_opt(&bound.name)).await?;
    if now.is_some_and(|now| claim::persistent_volume(&now) != Some(&object.name_any())) {
        return Ok(false);
    }
    // With the uid: another claim of that name is not bound to it.
    let patch = json!({ "metadata": { "uid": bound.extra.uid, "labels": { place.key(): place.value() } } });
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
    let labelled = claims.patch_metadata(&bound.name, &parameters, &patch);
    match request("labelling a claim", labelled).await {
        Ok(_) => info!(claim = bound.name, namespace, object = %object.name_any(), "this node serves the claim"),
        Err(failure) if failure.is_conflict() || failure.is_not_found() => {}
        Err(failure) if failure.is_forbidden() => warn!(
            claim = bound.name,
            namespace,
            object = %object.name_any(),
            "the claim is not expanded when it asks for that: {failure}; an agent may serve a claim whose PersistentVolume is called pvc-ID.NODE, or whose annotations name its driver and its node"
        ),
        Err(failure) => return Err(failure),
    }
    Ok(true)
}
