//! Claims that wait for a first pod, and belong to a class of which no node can make volumes. The pod waits for capacity
//! that there is nowhere, so no agent is ever given such a claim: one of them looks for them all, and tells their owners.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::pin;
use std::time::Duration;

use bulkhead_model::objects::claim;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt};
use tokio::time::sleep;
use tracing::debug;

use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::pages::list;
use crate::kubernetes::capacity::csi_storage_capacity;
use crate::kubernetes::capacity::reporter::CapacityReporter;
use crate::kubernetes::context::Context;
use crate::kubernetes::heartbeat;

/// How many claims are told at a time.
const MOST: usize = 500;

/// How many of them are of one namespace.
const FEW: usize = 5;

/// Looks for as long as it is polled. While this node can make volumes of every class, it asks nobody.
pub async fn run(context: &Context, capacity: &CapacityReporter) {
    let (pause, mut told) = (context.intervals.unservable, HashSet::new());
    loop {
        sleep(pause + jitter(pause / 4)).await;
        let classes = capacity.unservable();
        if !classes.is_empty()
            && let Err(failure) = tell(context, classes, &mut told).await
        {
            debug!("claims of classes that no node can serve are not looked for: {failure}");
        }
    }
}

/// Tells the owners of claims of `classes` that none of the nodes can make their volumes, if that is so. Those with the uids
/// in `told` have been told.
async fn tell(
    context: &Context,
    mut classes: BTreeMap<String, String>,
    told: &mut HashSet<String>,
) -> Result<(), Failure> {
    if heartbeat::first(context).await?.as_ref() != Some(&context.agent.node.name) {
        return Ok(());
    }
    // Where agents may not publish the capacity of a class, no node has any.
    let nodes = csi_storage_capacity::list_all(context).await?;
    classes.retain(|class, _| nodes.get(class).is_none_or(|nodes| nodes.iter().all(|node| node.is_obstructed)));
    if classes.is_empty() {
        return Ok(());
    }
    let claims: Api<PersistentVolumeClaim> = Api::all(context.client.clone());
    // Those that have a node, or that any may take, have the label, where there are labels.
    let unlabelled = format!("!{}", context.agent.place.key());
    let mut claims = pin!(list("listing claims that wait for a pod", claims, Some(&unlabelled)));
    let (mut waiting, mut fresh) = (HashSet::new(), HashMap::<_, usize>::new());
    while let Some(claim) = claims.try_next().await? {
        let Some((class, why)) = claim::class(&claim).and_then(|class| classes.get_key_value(class)) else { continue };
        if !waits(&claim, context.intervals.untaken) {
            continue;
        }
        let uid = claim::uid(&claim).to_owned();
        let is_told = told.contains(&uid);
        let (all, own) =
            (fresh.values().sum::<usize>(), fresh.entry(claim.namespace().unwrap_or_default()).or_default());
        if !is_told && *own < FEW && all < MOST {
            let note = format!("no node can make a volume of storage class {class}: {why}");
            context.events.publish_once(&claim, Reason::ProvisioningFailed, "unservable", note);
            *own += 1;
            waiting.insert(uid);
        } else if is_told {
            waiting.insert(uid);
        }
    }
    *told = waiting;
    Ok(())
}

/// Returns whether `claim` has waited for so long, and no agent has been given it.
fn waits(claim: &PersistentVolumeClaim, untaken: Duration) -> bool {
    let made = claim.metadata.creation_timestamp.as_ref();
    let age = made.and_then(|made| Duration::try_from(Timestamp::now().duration_since(made.0)).ok());
    age.is_some_and(|age| age >= untaken)
        && claim::provisioner(claim).is_none()
        && claim::selected_node(claim).is_none()
        && claim::persistent_volume(claim).is_none()
        && !claim::is_being_deleted(claim)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    #[test]
    fn a_claim_that_has_a_node_or_a_volume_or_is_new_is_left_to_others() {
        let is_told = |changes: Value| {
            let mut object = json!({ "metadata": { "name": "data", "creationTimestamp": "2026-01-01T00:00:00Z" },
                                     "spec": { "storageClassName": "local" } });
            for (key, value) in changes.as_object().unwrap() {
                object["metadata"][key] = value.clone();
            }
            object["spec"]["volumeName"] = changes["volumeName"].clone();
            waits(&from_value(object).unwrap(), Duration::from_secs(60))
        };
        assert!(is_told(json!({})));
        assert!(!is_told(json!({ "creationTimestamp": Timestamp::now().to_string() })));
        assert!(!is_told(json!({ "volumeName": "pvc-1" })));
        for annotation in ["volume.kubernetes.io/storage-provisioner", "volume.kubernetes.io/selected-node"] {
            assert!(!is_told(json!({ "annotations": { annotation: "node" } })), "{annotation}");
        }
    }
}
