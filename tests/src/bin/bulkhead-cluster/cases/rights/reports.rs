//! Capacity and events: an agent may write them only in the name of its own node.

use anyhow::Result;
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::kubelet::DRIVER;
use serde_json::{Value, json};

use super::{CAPACITIES, Patch, Rights, UNBOUND, path_of, with_rights};

pub const ROOM_POLICY: &str = "bulkhead-agent-capacities";
// The messages of the policy's expressions.
const ROOM: &str = "an agent may modify only its own node's capacities";
const ROOM_NAME: &str = "an agent may write only capacities named after its own node";
const ROOM_LABEL: &str = "an agent may write only capacities that carry its own node's label";

pub const EVENTS: &str = "bulkhead-agent-events";
// The messages of the policy's expressions.
pub const REPORTER: &str = "an agent may report only in its own node's name";
const SUBJECT: &str = "an agent may report only on PersistentVolumes, PersistentVolumeClaims, VolumeSnapshotContents, VolumeGroupSnapshotContents and its own Node";

cases! {
    on Cluster;
    an_agent_publishes_its_own_capacity: Bare,
    another_nodes_capacity_is_left_alone: Bare,
    capacity_is_named_after_its_node: Bare,
    an_agent_reports_events_in_its_own_name: Bare,
    events_of_others_are_left_alone: Bare,
}

pub fn capacity(rights: &Rights<'_>, node: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIStorageCapacity",
        "metadata": { "name": format!("bulkhead-{:020}.{node}", 0), "labels": { TOPOLOGY_KEY: node } },
        "storageClassName": rights.class,
        "nodeTopology": { "matchLabels": { TOPOLOGY_KEY: node } },
        "capacity": "1Gi",
    })
}

fn an_agent_publishes_its_own_capacity(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let mut object = capacity(rights, &rights.here);
        let path = path_of(CAPACITIES, &object);
        rights.agent.patch(&path, Patch::Apply, &object).granted()?;
        object["capacity"] = json!("2Gi");
        rights.agent.patch(&path, Patch::Apply, &object).granted()?;
        rights.agent.get(CAPACITIES).granted()?;
        let whole = rights.administrator.get(&path).granted()?;
        rights.agent.replace(&path, &whole).refused_by_role()?;
        rights.agent.delete(&path).granted()?;
        Ok(())
    })
}

fn another_nodes_capacity_is_left_alone(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let theirs = capacity(rights, &rights.there);
        let path = path_of(CAPACITIES, &theirs);
        rights.agent.patch(&path, Patch::Apply, &theirs).refused_by(ROOM_POLICY, ROOM)?;
        rights.other.patch(&path, Patch::Apply, &theirs).granted()?;
        for (stranger, message) in [(&rights.agent, ROOM), (&rights.unbound, UNBOUND)] {
            stranger.patch(&path, Patch::Merge, &json!({ "capacity": "0" })).refused_by(ROOM_POLICY, message)?;
            stranger.patch(&path, Patch::Apply, &theirs).refused_by(ROOM_POLICY, message)?;
            stranger.delete(&path).refused_by(ROOM_POLICY, message)?;
            stranger.delete(CAPACITIES).refused_by_role()?;
        }
        for topology in [
            Value::Null,
            json!({}),
            json!({ "matchLabels": { "kubernetes.io/os": "linux" } }),
            json!({ "matchExpressions": [{ "key": TOPOLOGY_KEY, "operator": "Exists" }] }),
        ] {
            let mut everywhere = capacity(rights, &rights.here);
            everywhere["nodeTopology"] = topology;
            rights.agent.create(CAPACITIES, &everywhere).refused_by(ROOM_POLICY, ROOM)?;
        }
        let mut nowhere = capacity(rights, &rights.here);
        nowhere["nodeTopology"] = json!({ "matchLabels": { TOPOLOGY_KEY: "" } });
        rights.unbound.create(CAPACITIES, &nowhere).refused_by(ROOM_POLICY, UNBOUND)?;
        let elsewhere = "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities";
        rights.agent.create(elsewhere, &capacity(rights, &rights.here)).refused_by_role()
    })
}

fn capacity_is_named_after_its_node(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (here, there) = (&rights.here, &rights.there);
        for name in [
            format!("bulkhead-{:020}.{there}", 0),
            // A node whose name ends with this one's, and other names of the right length.
            format!("bulkhead-{:020}.another.{here}", 0),
            format!("bulkhead-{:020}-{here}", 0),
            format!("somebody-{:020}.{here}", 0),
        ] {
            let mut object = capacity(rights, here);
            object["metadata"]["name"] = json!(name);
            rights.agent.create(CAPACITIES, &object).refused_by(ROOM_POLICY, ROOM_NAME)?;
        }
        let object = capacity(rights, here);
        for labels in [Value::Null, json!({ TOPOLOGY_KEY: there })] {
            let mut unlabelled = object.clone();
            unlabelled["metadata"]["labels"] = labels;
            rights.agent.create(CAPACITIES, &unlabelled).refused_by(ROOM_POLICY, ROOM_LABEL)?;
        }
        rights.agent.create(CAPACITIES, &object).granted()?;
        for label in [Value::Null, json!(there)] {
            let change = json!({ "metadata": { "labels": { TOPOLOGY_KEY: label } } });
            let path = path_of(CAPACITIES, &object);
            rights.agent.patch(&path, Patch::Merge, &change).refused_by(ROOM_POLICY, ROOM_LABEL)?;
        }
        Ok(())
    })
}

fn an_agent_reports_events_in_its_own_name(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let events = rights.events();
        let made = rights.agent.create(&events, &rights.event(&rights.here)).granted()?;
        let path = path_of(&events, &made);
        let again = json!({ "series": { "count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z" } });
        rights.agent.patch(&path, Patch::Merge, &again).granted()?;
        rights.other.patch(&path, Patch::Merge, &again).refused_by(EVENTS, REPORTER)?;
        rights.unbound.patch(&path, Patch::Merge, &again).refused_by(EVENTS, UNBOUND)?;
        rights.unbound.create(&events, &rights.event(&rights.here)).refused_by(EVENTS, UNBOUND)?;
        rights.agent.create(&events, &rights.event(&rights.there)).refused_by(EVENTS, REPORTER)?;
        rights.agent.create(&events, &of_kubelet(rights)).refused_by(EVENTS, REPORTER)?;
        rights.agent.create(&events, &on_pod(rights)).refused_by(EVENTS, SUBJECT)?;
        // Events about nodes belong in this namespace.
        let events_of_nodes = "/apis/events.k8s.io/v1/namespaces/default/events";
        rights.agent.create(events_of_nodes, &on_node(rights, &rights.here)).granted()?;
        let mut on_content = on_node(rights, &format!("{}-content", rights.cluster.namespace));
        on_content["regarding"]["kind"] = json!("VolumeSnapshotContent");
        rights.agent.create(events_of_nodes, &on_content).granted()?;
        rights.agent.create(events_of_nodes, &on_node(rights, &rights.there)).refused_by(EVENTS, SUBJECT)?;
        rights.agent.create(&older_events(rights), &json!({ "metadata": { "name": "data" } })).refused_by_role()?;
        rights.agent.replace(&path, &made).refused_by_role()?;
        rights.agent.delete(&path).refused_by_role()?;
        rights.agent.delete(&events).refused_by_role()
    })
}

fn events_of_others_are_left_alone(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let events = rights.events();
        let labels = json!({ "metadata": { "labels": { "colour": "red" } } });
        for (event, message) in [(of_kubelet(rights), REPORTER), (on_pod(rights), SUBJECT)] {
            let made = rights.administrator.create(&events, &event).granted()?;
            rights.agent.patch(&path_of(&events, &made), Patch::Merge, &labels).refused_by(EVENTS, message)?;
        }
        // An event of the older API need not name an instance. A token without a node could pass it off as its own.
        let nameless = json!({
            "metadata": { "name": "nameless", "namespace": rights.cluster.namespace },
            "involvedObject": {
                "kind": "PersistentVolumeClaim", "namespace": rights.cluster.namespace, "name": "data",
            },
            "reportingComponent": DRIVER,
        });
        let made = rights.administrator.create(&older_events(rights), &nameless).granted()?;
        rights.unbound.patch(&path_of(&events, &made), Patch::Merge, &labels).refused_by(EVENTS, UNBOUND)
    })
}

/// An event of the kubelet on the agent's node, about a claim.
fn of_kubelet(rights: &Rights<'_>) -> Value {
    let mut event = rights.event(&rights.here);
    event["reportingController"] = json!("kubelet");
    event
}

fn on_pod(rights: &Rights<'_>) -> Value {
    let mut event = rights.event(&rights.here);
    event["regarding"]["kind"] = json!("Pod");
    event
}

fn on_node(rights: &Rights<'_>, node: &str) -> Value {
    let mut event = rights.event(&rights.here);
    event["metadata"] = json!({ "name": format!("{node}-{}", rights.cluster.namespace), "namespace": "default" });
    event["regarding"] = json!({ "apiVersion": "v1", "kind": "Node", "name": node });
    event
}

/// The path of events in the core API.
fn older_events(rights: &Rights<'_>) -> String {
    format!("/api/v1/namespaces/{}/events", rights.cluster.namespace)
}
