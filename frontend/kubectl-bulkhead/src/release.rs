//! `release-node`: gives up what was held by a node that is gone for good.

use std::io::Write;

use bulkhead_console::prompt::confirm;
use bulkhead_console::report::{Report, Table};
use bulkhead_model::objects::names::SELECTED_NODE;
use bulkhead_model::quantity::count;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, Preconditions,
};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::cluster::{Cluster, Failure, Volume};
use crate::lost::{Lost, full_name};
use crate::snapshots::Snapshot;
use crate::{agents, moved};

/// Gives up what was on `node`. What another node has by now is given up only if that is wanted too.
pub async fn run(cluster: &Cluster, node: &str, yes: bool, abandons_moved: bool) -> Result<Report, Failure> {
    check_gone(cluster, node).await?;
    let lost = Lost::find(cluster).await?.of(node);
    if lost.is_empty() {
        let text = format!("nothing refers to node {node}");
        return Ok(Report::new(json!({ "node": node, "released": lost.json() }), Table::line(text)));
    }
    let findings = agents::findings(cluster, moved::asked(cluster).await?).await;
    let search = moved::find(cluster, &findings).await?;
    let advice: Vec<_> = search.from(node).map(|moved| moved.advice(&cluster.driver)).collect();
    if !advice.is_empty() && !abandons_moved {
        return Err(Failure::Moved { node: node.to_owned(), advice: advice.join("; ") });
    }
    // On standard error, with the question: standard output may be a file.
    write!(std::io::stderr(), "{}", lost.table())?;
    let (volumes, claims) =
        (count(lost.volumes.len() as u64, "volume"), count(lost.claims.len() as u64, "waiting claim"));
    let mut snapshots = count(lost.snapshots.len() as u64, "snapshot");
    if !lost.groups.is_empty() {
        snapshots = format!("{snapshots} and {} of them", count(lost.groups.len() as u64, "group"));
    }
    let unknown = match search.unknown.is_empty() {
        true => String::new(),
        false => format!(" Whether {} have any of it is unknown.", search.unknown.join(", ")),
    };
    let question = format!(
        "The cluster gives up {volumes} on node {node}, with the claims, and {snapshots}: nothing will refer to what is still on the node's disk, and only `kubectl bulkhead adopt` could bring it back. {claims} will go back to the scheduler.{unknown}"
    );
    confirm(&question, yes)?;
    // The node may have come back while the question was on the screen.
    check_gone(cluster, node).await?;
    for (_, claim) in &lost.claims {
        give_back(cluster, claim).await?;
    }
    let mut by_hand = Vec::new();
    for volume in &lost.volumes {
        by_hand.extend(release(cluster, volume).await?);
    }
    // As long as a group is there, its snapshots stay.
    for snapshot in lost.groups.iter().chain(&lost.snapshots) {
        give_up_snapshot(cluster, snapshot).await?;
    }
    let text = format!("node {node} is released: {volumes} given up, {claims} given back, {snapshots} given up");
    let pods = (!by_hand.is_empty()).then(|| {
        let pods = by_hand.join(", ");
        format!("these pods wait for a claim that is gone, and no controller will recreate them: {pods}")
    });
    let table = Table::line(text).noting(pods);
    Ok(Report::new(json!({ "node": node, "released": lost.json(), "podsToDelete": by_hand }), table))
}

/// An agent that came back while its volumes were being given up would be a second owner.
async fn check_gone(cluster: &Cluster, node: &str) -> Result<(), Failure> {
    if cluster.nodes().await?.contains(node) { Err(Failure::Exists(node.to_owned())) } else { Ok(()) }
}

async fn give_back(cluster: &Cluster, claim: &PersistentVolumeClaim) -> Result<(), Failure> {
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(cluster.client.clone(), &claim.namespace().unwrap_or_default());
    // With the resource version: the scheduler may have chosen another node in the meantime.
    let patch =
        json!({ "metadata": { "resourceVersion": claim.resource_version(), "annotations": { SELECTED_NODE: null } } });
    let done = claims.patch(&claim.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
    unless_gone(done).map_err(cluster.failed(format!("giving back claim {}", full_name(claim))))
}

/// Deletes a volume's claim, the pods that wait for the claim, and the PersistentVolume. Returns the pods that no
/// controller would recreate; these are left alone.
async fn release(cluster: &Cluster, volume: &Volume) -> Result<Vec<String>, Failure> {
    let mut by_hand = Vec::new();
    if let Some((namespace, name, uid)) = &volume.claim {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), namespace);
        unless_gone(claims.delete(name, &only(uid)).await)
            .map_err(cluster.failed(format!("deleting claim {namespace}/{name}")))?;
        by_hand = delete_waiting_pods(cluster, namespace, name).await?;
    }
    give_up(cluster, volume).await?;
    Ok(by_hand)
}

/// Deletes a PersistentVolume, and no other of the same name, without waiting for the agent that would finish it.
pub async fn give_up(cluster: &Cluster, volume: &Volume) -> Result<(), Failure> {
    let objects: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let operation = || format!("deleting PersistentVolume {}", volume.name);
    unless_gone(objects.delete(&volume.name, &only(&volume.uid)).await).map_err(cluster.failed(operation()))?;
    // The agent that would remove the finalizer is gone.
    let patch = json!({ "metadata": { "uid": volume.uid, "finalizers": null } });
    let done = objects.patch(&volume.name, &PatchParams::default(), &Patch::Merge(patch)).await;
    unless_gone(done).map_err(cluster.failed(operation()))
}

/// Deletes a VolumeSnapshot or a VolumeGroupSnapshot, and its content, without waiting for the agent that would delete what
/// it stands for.
async fn give_up_snapshot(cluster: &Cluster, snapshot: &Snapshot) -> Result<(), Failure> {
    let (kind, (namespace, name)) = (snapshot.kind, &snapshot.of);
    let of_kind = |kind: &str| ApiResource::from_gvk(&GroupVersionKind::gvk(&snapshot.api_group, "v1", kind));
    let owners: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), namespace, &of_kind(kind));
    // One of that name may be for another snapshot by now.
    let is_its = |found: DynamicObject| {
        let bound = &found.data["status"][format!("bound{kind}ContentName")];
        bound.is_null() || *bound == *snapshot.content
    };
    let operation = || format!("deleting {kind} {}", snapshot.full_name());
    if owners.get_opt(name).await.map_err(cluster.failed(operation()))?.is_some_and(is_its) {
        unless_gone(owners.delete(name, &DeleteParams::default()).await).map_err(cluster.failed(operation()))?;
    }
    let contents = of_kind(&format!("{kind}Content"));
    let contents: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &contents);
    let operation = || format!("deleting {kind}Content {}", snapshot.content);
    unless_gone(contents.delete(&snapshot.content, &only(&snapshot.uid)).await).map_err(cluster.failed(operation()))?;
    let patch = json!({ "metadata": { "uid": snapshot.uid, "finalizers": null } });
    let done = contents.patch(&snapshot.content, &PatchParams::default(), &Patch::Merge(patch)).await;
    unless_gone(done).map_err(cluster.failed(operation()))
}

async fn delete_waiting_pods(cluster: &Cluster, namespace: &str, claim: &str) -> Result<Vec<String>, Failure> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let list = cluster.list(&format!("listing pods in {namespace}"), pods.clone(), ListParams::default(), Some).await?;
    let mut by_hand = Vec::new();
    for pod in list {
        let Some(spec) = &pod.spec else { continue };
        let uses = spec
            .volumes
            .iter()
            .flatten()
            .any(|volume| volume.persistent_volume_claim.as_ref().is_some_and(|source| source.claim_name == claim));
        // A pod that has a node is removed with the node.
        if !uses || spec.node_name.is_some() {
            continue;
        }
        let name = format!("{namespace}/{}", pod.name_any());
        if pod.owner_references().iter().any(|owner| owner.controller == Some(true)) {
            let parameters = only(&pod.uid().unwrap_or_default());
            unless_gone(pods.delete(&pod.name_any(), &parameters).await)
                .map_err(cluster.failed(format!("deleting pod {name}")))?;
        } else {
            by_hand.push(name);
        }
    }
    Ok(by_hand)
}

/// Restricts a deletion to this very object, and no other of the same name.
fn only(uid: &str) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions { uid: Some(uid.to_owned()), resource_version: None })
}

/// Treats an object that no longer exists as a success.
fn unless_gone<T>(outcome: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        outcome => outcome.map(drop),
    }
}
