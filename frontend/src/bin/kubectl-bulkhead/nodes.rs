//! `nodes` and `pools`: what is where, and how much room is left.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_frontend::quantity::{Quantity, parse};
use bulkhead_frontend::report::{Report, Table};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::{CSINode, CSIStorageCapacity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Stored;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Cluster, Failure, failed};

/// The label of the agents' pods.
const PODS: &str = "app.kubernetes.io/name=bulkhead";

/// A node that has to do with the driver.
#[derive(Default)]
pub struct Member {
    /// Whether its Node object exists.
    pub exists: bool,
    /// Whether the kubelet has registered the driver.
    pub registered: bool,
    /// The agent's pod and whether it is ready. A service of the host has none.
    pub pod: Option<(String, bool)>,
    pub volumes: usize,
    pub promised: u64,
    /// The most that a class may still have; missing if no agent says.
    pub available: Option<u64>,
}

/// All nodes that have to do with the driver.
pub async fn members(cluster: &Cluster) -> Result<BTreeMap<String, Member>, Failure> {
    let mut members = BTreeMap::<String, Member>::new();
    let csi_nodes: Api<CSINode> = Api::all(cluster.client.clone());
    for object in csi_nodes.list(&ListParams::default()).await.map_err(failed("listing CSINodes"))?.items {
        if object.spec.drivers.iter().any(|driver| driver.name == cluster.driver) {
            members.entry(object.name_any()).or_default().registered = true;
        }
    }
    let pods: Api<Pod> = Api::all(cluster.client.clone());
    for pod in pods.list(&ListParams::default().labels(PODS)).await.map_err(failed("listing the agents' pods"))?.items {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let is_ready = conditions.iter().any(|found| found.type_ == "Ready" && found.status == "True");
        if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) {
            members.entry(node).or_default().pod = Some((pod.name_any(), is_ready));
        }
    }
    for (node, capacity) in cluster.capacities().await? {
        let member = members.entry(node).or_default();
        member.available = member.available.max(Some(bytes(capacity.capacity.as_ref())));
    }
    for volume in cluster.volumes().await? {
        let member = members.entry(volume.node.clone()).or_default();
        member.volumes += 1;
        member.promised += volume.bytes;
    }
    let nodes: BTreeSet<String> = cluster.nodes().await?;
    for (name, member) in &mut members {
        member.exists = nodes.contains(name);
    }
    Ok(members)
}

pub async fn list(cluster: &Cluster, wide: bool) -> Result<Report, Failure> {
    let members = members(cluster).await?;
    let json = members.iter().map(|(name, member)| described(name, member)).collect();
    let row = |(name, member): (&String, &Member)| {
        [
            name.clone(),
            state(member).to_owned(),
            member.volumes.to_string(),
            Quantity::from(member.promised).to_string(),
            member.available.map_or_else(|| "-".to_owned(), |available| Quantity::from(available).to_string()),
        ]
    };
    let table = if wide {
        let wide_row = |(name, member): (&String, &Member)| {
            let [name, state, volumes, promised, available] = row((name, member));
            let pod = member.pod.as_ref().map_or("-", |(pod, _)| pod).to_owned();
            let registered = if member.registered { "yes" } else { "no" }.to_owned();
            [name, state, volumes, promised, available, registered, pod]
        };
        let headings = ["node", "state", "volumes", "promised", "available", "registered", "pod"];
        Table::headed(headings, members.iter().map(wide_row))
    } else {
        Table::headed(["node", "state", "volumes", "promised", "available"], members.iter().map(row))
    };
    Ok(Report::new(json, table))
}

/// One word on a node.
pub fn state(member: &Member) -> &'static str {
    match member {
        Member { exists: false, .. } => "lost",
        Member { registered: false, .. } => "not-registered",
        Member { pod: Some((_, false)), .. } => "not-ready",
        Member { available: None, .. } => "no-capacity",
        _ => "ready",
    }
}

fn described(name: &str, member: &Member) -> Value {
    json!({
        "name": name, "state": state(member), "exists": member.exists, "registered": member.registered,
        "pod": member.pod.as_ref().map(|(pod, _)| pod), "volumes": member.volumes, "promisedBytes": member.promised,
        "availableBytes": member.available,
    })
}

pub async fn pools(cluster: &Cluster) -> Result<Report, Failure> {
    let capacities = cluster.capacities().await?;
    let json = capacities.iter().map(|(node, capacity)| {
        json!({
            "node": node, "storageClass": capacity.storage_class_name,
            "availableBytes": bytes(capacity.capacity.as_ref()),
            "largestVolumeBytes": bytes(capacity.maximum_volume_size.as_ref()),
        })
    });
    let row = |(node, capacity): &(String, CSIStorageCapacity)| {
        let size = |stored: Option<&Stored>| Quantity::from(bytes(stored)).to_string();
        let largest = size(capacity.maximum_volume_size.as_ref());
        [node.clone(), capacity.storage_class_name.clone(), size(capacity.capacity.as_ref()), largest]
    };
    let headings = ["node", "class", "available", "largest-volume"];
    Ok(Report::new(json.collect(), Table::headed(headings, capacities.iter().map(row))))
}

fn bytes(stored: Option<&Stored>) -> u64 {
    stored.and_then(|stored| parse(&stored.0)).unwrap_or_default()
}
