//! Carrying out what was decided: objects are made, never changed. Only what stands for a disk in its former node is
//! removed, and a bound claim is marked so that it can be expanded.

use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_model::objects::names::{PROVISIONER, SELECTED_NODE};
use bulkhead_model::quantity::exact;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::decision::Plan;
use super::read;
use crate::cluster::{Cluster, Failure};
use crate::release::give_up;

/// How long the control plane may take to bind claims.
const BINDING: Duration = Duration::from_secs(30);

/// Makes the PersistentVolume of a plan, and its claim if that is wanted.
pub async fn adopt(
    cluster: &Cluster,
    plan: &Plan,
    object: &PersistentVolume,
    claim: Option<&Value>,
) -> Result<(), Failure> {
    let objects: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let name = &plan.description.name;
    if let Some(former) = &plan.replaces {
        let retain =
            json!({ "metadata": { "uid": former.uid }, "spec": { "persistentVolumeReclaimPolicy": "Retain" } });
        let kept = objects.patch_metadata(name, &PatchParams::default(), &Patch::Merge(retain)).await;
        kept.map_err(cluster.failed(format!("setting the policy of PersistentVolume {name}")))?;
        give_up(cluster, former).await?;
    }
    let made = objects.create(&PostParams::default(), object).await;
    made.map_err(cluster.failed(format!("creating PersistentVolume {name}")))?;
    if let Some(claim) = claim {
        let (namespace, _) = plan.claim.split_once('/').unwrap_or_default();
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), namespace);
        let claim: PersistentVolumeClaim =
            serde_json::from_value(claim.clone()).map_err(|error| Failure::Output(error.into()))?;
        let made = claims.create(&PostParams::default(), &claim).await;
        made.map_err(cluster.failed(format!("creating claim {}", plan.claim)))?;
    }
    Ok(())
}

/// The claim for an adopted volume on `node`.
pub fn claim(plan: &Plan, node: &str, driver: &str) -> Value {
    let description = &plan.description;
    let (namespace, name) = plan.claim.split_once('/').unwrap_or_default();
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "namespace": namespace, "name": name, "annotations": marks(node, driver) },
        "spec": {
            "accessModes": description.modes,
            "resources": { "requests": { "storage": exact(description.bytes) } },
            "storageClassName": description.class,
            "volumeMode": if description.block { "Block" } else { "Filesystem" },
            "volumeName": description.name,
        },
    });
    if let Some(attributes) = &description.attributes {
        claim["spec"]["volumeAttributesClassName"] = json!(attributes);
    }
    claim
}

/// Returns what lets the agent on a node expand a claim.
fn marks(node: &str, driver: &str) -> Value {
    json!({ SELECTED_NODE: node, PROVISIONER: driver })
}

/// Marks claims, each given with its object and its node, as they are bound. One that waits for a volume must not be
/// marked: its agent would make a new one. Returns those that are not bound yet.
pub async fn mark(cluster: &Cluster, mut claims: BTreeMap<String, (String, String)>) -> Result<Vec<String>, Failure> {
    let begun = Instant::now();
    loop {
        let now = read::claims(cluster).await?;
        let mut waiting = BTreeMap::new();
        for (claim, (object, node)) in claims {
            match now.get(&claim) {
                Some(found) if found.is_bound && found.object == object => {
                    if found.expands_on.as_ref() != Some(&node) {
                        patch(cluster, &claim, &found.uid, &node).await?;
                    }
                }
                _ => drop(waiting.insert(claim, (object, node))),
            }
        }
        claims = waiting;
        if claims.is_empty() || begun.elapsed() > BINDING {
            return Ok(claims.into_keys().collect());
        }
        sleep(Duration::from_secs(1)).await;
    }
}

async fn patch(cluster: &Cluster, claim: &str, uid: &str, node: &str) -> Result<(), Failure> {
    let (namespace, name) = claim.split_once('/').unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), namespace);
    let patch = json!({ "metadata": { "uid": uid, "annotations": marks(node, &cluster.driver) } });
    let marked = claims.patch_metadata(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    marked.map(drop).map_err(cluster.failed(format!("marking claim {claim}")))
}
