//! What there is: the volumes on nodes, and the objects of the cluster.

use std::collections::BTreeMap;

use bulkhead_model::exported::Exported;
use bulkhead_model::objects::names::{BOUND, PROVISIONER, PROVISIONER_BETA, SELECTED_NODE};
use bulkhead_model::volumes::Place;
use bulkhead_protocol::DriverName;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::decision::{Claim, Facts};
use crate::agents;
use crate::cluster::{Cluster, Failure};
use crate::lost::full_name;
use crate::options::Adopt;

/// The volumes, each with its node, and why those of some nodes are unknown.
pub async fn volumes(cluster: &Cluster, options: &Adopt) -> Result<(Vec<(String, Exported)>, Vec<String>), Failure> {
    if let Some(path) = &options.from {
        let failed = |why: String| Failure::Exported(path.display().to_string(), why);
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let volume = |(number, line): (usize, &str)| {
            let volume: Exported =
                serde_json::from_str(line).map_err(|error| failed(format!("line {}: {error}", number + 1)))?;
            Ok((options.node.clone().unwrap_or_else(|| volume.node.clone()), volume))
        };
        return Ok((lines.map(volume).collect::<Result<_, Failure>>()?, Vec::new()));
    }
    let mut pods: BTreeMap<_, _> = agents::pods(cluster).await?.into_iter().collect();
    pods.retain(|node, _| options.node.as_ref().is_none_or(|wanted| wanted == node));
    let mut notes = Vec::new();
    if pods.is_empty() {
        let whose = options.node.as_ref().map_or_else(|| "any node".to_owned(), |node| format!("node {node}"));
        notes.push(format!(
            "no agent's pod was found on {whose}: where agents are services of the host, save the output of `bulkheadctl volume export` there, and read it with --from"
        ));
    }
    let mut volumes = Vec::new();
    for (node, answer) in agents::exported(cluster, pods).await {
        match answer {
            Ok(found) => volumes.extend(found.into_iter().map(|volume| (node.clone(), volume))),
            Err(why) => notes.push(format!("what is on {node} is unknown: {why}")),
        }
    }
    Ok((volumes, notes))
}

/// The objects that decide.
pub async fn facts(cluster: &Cluster, driver: &DriverName) -> Result<Facts, Failure> {
    let nodes = cluster.nodes().await?.into_iter();
    let nodes = nodes.map(|node| (node.clone(), Place::new(driver, &node).value().to_owned())).collect();
    let classes: Api<StorageClass> = Api::all(cluster.client.clone());
    let own = |class: StorageClass| (class.provisioner == cluster.driver).then(|| class.name_any());
    let classes = cluster.list("listing StorageClasses", classes, ListParams::default(), own).await?;
    let objects: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let name = |object: PersistentVolume| object.metadata.name;
    let names = cluster.list("listing PersistentVolumes", objects, ListParams::default(), name).await?;
    Ok(Facts {
        nodes,
        objects: cluster.volumes().await?,
        names: names.into_iter().collect(),
        claims: claims(cluster).await?,
        classes: classes.into_iter().collect(),
    })
}

/// All claims, by `NAMESPACE/NAME`.
pub async fn claims(cluster: &Cluster) -> Result<BTreeMap<String, Claim>, Failure> {
    let api: Api<PersistentVolumeClaim> = Api::all(cluster.client.clone());
    let named = |found: PersistentVolumeClaim| Some((full_name(&found), claim(&found, &cluster.driver)));
    Ok(cluster.list("listing claims", api, ListParams::default(), named).await?.into_iter().collect())
}

fn claim(found: &PersistentVolumeClaim, driver: &str) -> Claim {
    let annotations = found.annotations();
    let provisioner = annotations.get(PROVISIONER).or_else(|| annotations.get(PROVISIONER_BETA));
    let is_ours = provisioner.is_some_and(|provisioner| provisioner == driver);
    let phase = found.status.as_ref().and_then(|status| status.phase.as_deref());
    Claim {
        uid: found.uid().unwrap_or_default(),
        object: found.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default(),
        is_bound: annotations.contains_key(BOUND) && phase == Some("Bound"),
        is_being_deleted: found.metadata.deletion_timestamp.is_some(),
        expands_on: annotations.get(SELECTED_NODE).filter(|_| is_ours).cloned(),
    }
}
