//! What agents tell: room and events, each in the name of its own node.

use anyhow::Result;
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::manifests::NAMESPACE;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use serde_json::{Value, json};

use super::{Patch, Rights, path_of, with_rights};

const CAPACITIES: &str = "bulkhead-agent-capacities";
const EVENTS: &str = "bulkhead-agent-events";

cases! {
    on Cluster;
    an_agent_tells_its_own_room: Bare,
    another_nodes_room_is_left_alone: Bare,
    an_agent_reports_in_its_own_name: Bare,
}

fn capacities(namespace: &str) -> String {
    format!("/apis/storage.k8s.io/v1/namespaces/{namespace}/csistoragecapacities")
}

fn capacity(rights: &Rights<'_>, name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIStorageCapacity",
        "metadata": { "name": format!("{}-{name}", rights.cluster.namespace), "labels": { TOPOLOGY_KEY: node } },
        "storageClassName": rights.class,
        "nodeTopology": { "matchLabels": { TOPOLOGY_KEY: node } },
        "capacity": "1Gi",
    })
}

fn an_agent_tells_its_own_room(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let mut object = capacity(rights, "own", &rights.here);
        let path = path_of(&capacities(NAMESPACE), &object);
        rights.agent.patch(&path, Patch::Apply, &object).granted()?;
        object["capacity"] = json!("2Gi");
        rights.agent.patch(&path, Patch::Apply, &object).granted()?;
        rights.agent.get(&capacities(NAMESPACE)).granted()?;
        rights.agent.delete(&path).granted()?;
        Ok(())
    })
}

fn another_nodes_room_is_left_alone(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let theirs = capacity(rights, "theirs", &rights.there);
        let path = path_of(&capacities(NAMESPACE), &theirs);
        rights.agent.patch(&path, Patch::Apply, &theirs).refused_by(CAPACITIES)?;
        rights.other.patch(&path, Patch::Apply, &theirs).granted()?;
        for stranger in [&rights.agent, &rights.unbound] {
            stranger.patch(&path, Patch::Merge, &json!({ "capacity": "0" })).refused_by(CAPACITIES)?;
            stranger.patch(&path, Patch::Apply, &theirs).refused_by(CAPACITIES)?;
            stranger.delete(&path).refused_by(CAPACITIES)?;
            stranger.delete(&capacities(NAMESPACE)).refused_by_role()?;
        }
        for topology in [
            Value::Null,
            json!({}),
            json!({ "matchLabels": { "kubernetes.io/os": "linux" } }),
            json!({ "matchExpressions": [{ "key": TOPOLOGY_KEY, "operator": "Exists" }] }),
        ] {
            let mut everywhere = capacity(rights, "everywhere", &rights.here);
            everywhere["nodeTopology"] = topology;
            rights.agent.create(&capacities(NAMESPACE), &everywhere).refused_by(CAPACITIES)?;
        }
        let nowhere = capacity(rights, "nowhere", "");
        rights.unbound.create(&capacities(NAMESPACE), &nowhere).refused_by(CAPACITIES)?;
        let elsewhere = capacity(rights, "elsewhere", &rights.here);
        rights.agent.create(&capacities("default"), &elsewhere).refused_by_role()?;
        rights.other.delete(&path).granted()?;
        Ok(())
    })
}

fn an_agent_reports_in_its_own_name(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let events = rights.events();
        let made = rights.agent.create(&events, &rights.event(&rights.here)).granted()?;
        let path = path_of(&events, &made);
        let again = json!({ "series": { "count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z" } });
        rights.agent.patch(&path, Patch::Merge, &again).granted()?;
        rights.other.patch(&path, Patch::Merge, &again).refused_by(EVENTS)?;
        rights.unbound.patch(&path, Patch::Merge, &again).refused_by(EVENTS)?;
        rights.unbound.create(&events, &rights.event(&rights.here)).refused_by(EVENTS)?;
        rights.agent.create(&events, &rights.event(&rights.there)).refused_by(EVENTS)?;
        let mut event = rights.event(&rights.here);
        event["reportingController"] = json!("kubelet");
        rights.agent.create(&events, &event).refused_by(EVENTS)?;
        let mut event = rights.event(&rights.here);
        event["regarding"]["kind"] = json!("Pod");
        rights.agent.create(&events, &event).refused_by(EVENTS)?;
        let older = format!("/api/v1/namespaces/{}/events", rights.cluster.namespace);
        rights.agent.create(&older, &json!({ "metadata": { "name": "data" } })).refused_by_role()
    })
}
