//! PersistentVolumes that came too late: the API server's answer to their creation was lost, their claim was given back to
//! the scheduler meanwhile, and is to have a volume on another node. As long as such an object exists, the control plane
//! tries to bind the claim to it, in vain.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt};
use tracing::info;

use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::{request, unless_gone};
use crate::kubernetes::context::Context;
use crate::kubernetes::objects::{claim, persistent_volume};

/// How old an object is before its claim is looked at. The control plane binds one to its claim within a second, if it is
/// not overloaded.
const SETTLING: Duration = Duration::from_secs(30);

/// How soon it is looked at again.
const PERIOD: Duration = Duration::from_secs(60);

/// Whether `object`, a volume of this node, was made by its agent for a claim, and has never been bound.
pub fn is_unbound(context: &Context, object: &PersistentVolume) -> bool {
    let made_for = |uid: &str| persistent_volume::name_of(&format!("pvc-{uid}"), &context.place);
    persistent_volume::phase(object) == "Pending"
        && !persistent_volume::is_being_deleted(object)
        && persistent_volume::claim_uid(object).is_some_and(|uid| made_for(uid) == object.name_any())
}

/// Deletes `object`, which is unbound, if its claim is not for this node any more.
///
/// # Errors
/// When the API server does not answer; a conflict when the object has changed.
pub async fn look(context: &Context, object: &PersistentVolume) -> Result<Action, Failure> {
    let made = object.metadata.creation_timestamp.as_ref();
    let age = made.and_then(|made| Duration::try_from(Timestamp::now().duration_since(made.0)).ok());
    if let Some(left) = SETTLING.checked_sub(age.unwrap_or_default()).filter(|left| !left.is_zero()) {
        return Ok(Action::requeue(left + Duration::from_secs(1)));
    }
    let Some(reference) = persistent_volume::claim_reference(object) else { return Ok(Action::await_change()) };
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    let now = request("reading a claim", claims.get_opt(&reference.name)).await?;
    // If the claim is gone, the control plane releases the object.
    let now = now.filter(|now| now.metadata.uid == reference.extra.uid);
    if now.is_none_or(|now| is_for(&now, &context.node.name, &object.name_any())) {
        return Ok(Action::requeue(PERIOD + jitter(PERIOD / 4)));
    }
    let same = Preconditions { uid: object.uid(), resource_version: object.resource_version() };
    let parameters = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
    let (objects, name) = (context.persistent_volumes(), object.name_any());
    unless_gone(request("deleting a PersistentVolume", objects.delete(&name, &parameters)).await)?;
    info!("PersistentVolume {name} is deleted: it holds up claim {reference}, which waits for another node by now");
    context.orphan_suspected.notify_one();
    Ok(Action::await_change())
}

/// Whether `claim` waits for a volume on this node, or has the one of the object called `name`.
fn is_for(claim: &PersistentVolumeClaim, node: &str, name: &str) -> bool {
    match claim::persistent_volume(claim) {
        Some(volume) => volume == name,
        None => claim::selected_node(claim) == Some(node),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    #[test]
    fn a_claim_is_for_the_node_that_is_selected_or_has_its_volume() {
        let is_for = |node: Value, volume: Value| {
            let annotations = json!({ "volume.kubernetes.io/selected-node": node });
            let claim = json!({ "metadata": { "annotations": annotations }, "spec": { "volumeName": volume } });
            is_for(&from_value(claim).unwrap(), "here", "pvc-1.here")
        };
        assert!(is_for(json!("here"), Value::Null) && is_for(json!("there"), json!("pvc-1.here")));
        assert!(!is_for(json!("there"), Value::Null) && !is_for(json!(""), Value::Null));
        assert!(!is_for(json!("here"), json!("pvc-1.there")));
    }
}
