//! What there is: the volumes on nodes, and the objects of the cluster.

use std::collections::BTreeMap;

use bulkhead_model::exported::Exported;
use bulkhead_model::objects::names::{BOUND, PROVISIONER, PROVISIONER_BETA, SELECTED_NODE};
use bulkhead_model::volumes::Place;
use bulkhead_protocol::DriverName;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::decision::{Claim, Facts};
use crate::agents::{self, SIDE_BY_SIDE};
use crate::cluster::{Cluster, Failure};
use crate::options::Adopt;

/// How many objects are listed at a time.
const PAGE: u32 = 500;

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
    let ask = |(node, pod): (String, agents::AgentPod)| async move { (node, pod.exported(&cluster.client).await) };
    let mut answers: Vec<_> = stream::iter(pods).map(ask).buffer_unordered(SIDE_BY_SIDE).collect().await;
    answers.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut volumes = Vec::new();
    for (node, answer) in answers {
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
    let classes = classes.list(&ListParams::default()).await.map_err(cluster.failed("listing storage classes"))?;
    let classes = classes.items.iter().filter(|class| class.provisioner == cluster.driver);
    let objects: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let objects = objects.list_metadata(&ListParams::default()).await;
    let objects = objects.map_err(cluster.failed("listing PersistentVolumes"))?;
    Ok(Facts {
        nodes,
        objects: cluster.volumes().await?,
        names: objects.items.iter().map(ResourceExt::name_any).collect(),
        claims: claims(cluster).await?,
        classes: classes.map(ResourceExt::name_any).collect(),
    })
}

/// All claims, by `NAMESPACE/NAME`.
pub async fn claims(cluster: &Cluster) -> Result<BTreeMap<String, Claim>, Failure> {
    let api: Api<PersistentVolumeClaim> = Api::all(cluster.client.clone());
    let (mut claims, mut parameters) = (BTreeMap::new(), ListParams::default().limit(PAGE));
    loop {
        let page = api.list(&parameters).await.map_err(cluster.failed("listing claims"))?;
        claims.extend(page.items.iter().map(|found| (crate::lost::full_name(found), claim(found, &cluster.driver))));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => return Ok(claims),
        }
    }
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
