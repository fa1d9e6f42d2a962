//! `nodes`: what each node holds, and how much room is left.

use std::collections::BTreeMap;

use bulkhead_console::report::{Report, Table};
use bulkhead_model::objects::lease::{OVERDUE, Reported};
use bulkhead_model::quantity::{Quantity, parse};
use k8s_openapi::api::storage::v1::CSINode;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Stored;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::agents::{self, AgentPod};
use crate::cluster::{Cluster, Failure, KnownNode};

/// A node that concerns the driver.
#[derive(Default)]
pub struct Member {
    /// Whether its Node object exists.
    pub exists: bool,
    /// What volumes need of it.
    pub known: KnownNode,
    /// Whether the kubelet has registered the driver.
    pub registered: bool,
    /// For how long the agent has not said that it works; missing if it never has.
    pub silent: Option<SignedDuration>,
    /// What of the agent does not work, in its own words.
    pub not_ready: Option<String>,
    /// The conditions of its pools, as the agent last said.
    pub reported: Reported,
    /// The agent's pod. An agent that runs as a service of the host has none.
    pub pod: Option<AgentPod>,
    pub volumes: usize,
    pub promised: u64,
    /// The largest capacity published for any class; missing if no agent publishes one.
    pub available: Option<u64>,
}

/// All nodes that concern the driver.
pub async fn members(cluster: &Cluster) -> Result<BTreeMap<String, Member>, Failure> {
    let mut members = BTreeMap::<String, Member>::new();
    let csi_nodes: Api<CSINode> = Api::all(cluster.client.clone());
    let has_driver = |object: CSINode| {
        object.spec.drivers.iter().any(|driver| driver.name == cluster.driver).then(|| object.name_any())
    };
    for node in cluster.list("listing CSINodes", csi_nodes, ListParams::default(), has_driver).await? {
        members.entry(node).or_default().registered = true;
    }
    for (node, pod) in agents::pods(cluster).await? {
        let known = &mut members.entry(node).or_default().pod;
        // A pod that has been replaced may still be listed beside one that is ready.
        if known.as_ref().is_none_or(|known| !known.is_ready) {
            *known = Some(pod);
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
    let (nodes, mut heartbeats, now) = (cluster.known_nodes().await?, cluster.heartbeats().await?, Timestamp::now());
    for (name, member) in &mut members {
        let found = nodes.get(name);
        (member.exists, member.known) = (found.is_some(), found.cloned().unwrap_or_default());
        if let Some(heard) = heartbeats.remove(name) {
            (member.silent, member.not_ready) = (Some(now.duration_since(heard.at)), heard.not_ready);
            member.reported = heard.reported;
        }
    }
    Ok(members)
}

pub async fn list(cluster: &Cluster, wide: bool) -> Result<Report, Failure> {
    let members = members(cluster).await?;
    let json = members.iter().map(|(name, member)| described(name, member)).collect();
    let row = |(name, member): (&String, &Member)| {
        let available =
            member.available.map_or_else(|| "-".to_owned(), |available| Quantity::from(available).to_string());
        [
            name.clone(),
            state(member).to_owned(),
            member.volumes.to_string(),
            Quantity::from(member.promised).to_string(),
            available,
            if member.registered { "yes" } else { "no" }.to_owned(),
            member.pod.as_ref().map_or("-", |pod| &pod.name).to_owned(),
        ]
    };
    let headings = ["node", "state", "volumes", "promised", "available", "registered", "pod"];
    let table = Table::headed(headings, members.iter().map(row));
    let table = if wide { table } else { table.narrowed(5) };
    Ok(Report::new(json, table))
}

/// The state of a node in one word.
pub fn state(member: &Member) -> &'static str {
    match member {
        // Kubernetes removes what else it has of such a node by itself.
        Member { exists: false, volumes: 0, .. } => "gone",
        Member { exists: false, .. } => "lost",
        Member { known: KnownNode { is_served: false, .. }, .. } => "no-kubelet",
        Member { registered: false, .. } => "not-registered",
        Member { known: KnownNode { is_labelled: false, .. }, .. } => "not-labelled",
        Member { pod: Some(AgentPod { is_ready: false, .. }), .. } => "not-ready",
        Member { silent: Some(silent), .. } if *silent > overdue() => "silent",
        // A pod's own readiness is more recent.
        Member { pod: None, not_ready: Some(_), .. } => "not-ready",
        Member { available: None, .. } => "no-capacity",
        _ => "ready",
    }
}

/// Returns how long an agent may be silent.
fn overdue() -> SignedDuration {
    SignedDuration::try_from(OVERDUE).unwrap_or_default()
}

fn described(name: &str, member: &Member) -> Value {
    json!({
        "name": name, "state": state(member), "exists": member.exists, "registered": member.registered,
        "pod": member.pod.as_ref().map(|pod| &pod.name), "volumes": member.volumes, "promisedBytes": member.promised,
        "availableBytes": member.available, "silentSeconds": member.silent.map(|silent| silent.as_secs()),
        "notReady": member.not_ready,
    })
}

/// The number of bytes in a quantity; zero if there is none.
pub fn bytes(stored: Option<&Stored>) -> u64 {
    stored.and_then(|stored| parse(&stored.0)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_that_leaves_volumes_behind_is_lost() {
        let left = |volumes| Member { volumes, registered: true, ..Member::default() };
        assert_eq!((state(&left(1)), state(&left(0))), ("lost", "gone"));
    }
}
