//! Objects as users write them. Each test changes the fields it is about.

use serde_json::{Value, json};

use super::node::TOPOLOGY_KEY;
use crate::kubelet::DRIVER;

/// The annotation by which the scheduler selects a node for a claim.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The annotation by which the controller manager hands a claim over to a provisioner.
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// A storage class of ours, whose claims wait for a node.
pub fn class(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "provisioner": DRIVER,
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": true,
        "reclaimPolicy": "Delete",
    })
}

/// A claim for a directory volume on one node.
pub fn claim(name: &str, class: &str, size: &str) -> Value {
    json!({
        "metadata": { "name": name, "annotations": {} },
        "spec": {
            "storageClassName": class,
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": size } },
        },
    })
}

/// The conditions in a claim's status, but for the one that Kubernetes itself writes from 1.37 on.
pub fn conditions(status: &Value) -> Vec<Value> {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.filter(|condition| condition["type"] != "Unused").cloned().collect()
}

/// Selects a node for a claim, as the scheduler would.
pub fn on(mut claim: Value, node: &str) -> Value {
    claim["metadata"]["annotations"][SELECTED_NODE] = json!(node);
    claim
}

/// Makes a claim ask for a block volume.
pub fn block(mut claim: Value) -> Value {
    claim["spec"]["volumeMode"] = json!("Block");
    claim
}

/// Makes a claim's volume begin as a copy of a snapshot.
pub fn from_snapshot(mut claim: Value, snapshot: &str) -> Value {
    claim["spec"]["dataSource"] =
        json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot });
    claim
}

/// Makes a claim's volume begin as a copy of another claim's.
pub fn from_claim(mut claim: Value, source: &str) -> Value {
    claim["spec"]["dataSource"] = json!({ "kind": "PersistentVolumeClaim", "name": source });
    claim
}

/// A pod that uses these claims, and that the scheduler may place on any node of the test `scope`.
pub fn pod(name: &str, scope: &str, claims: &[&str]) -> Value {
    let volumes: Vec<Value> =
        claims.iter().map(|claim| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } })).collect();
    json!({
        "metadata": { "name": name },
        "spec": {
            "nodeSelector": { "test": scope },
            "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "main", "image": "none" }],
            "volumes": volumes,
        },
    })
}

/// The id of the volume that an agent has made, from its object's name: that ends with the node.
pub fn handle(object: &str) -> &str {
    object.split_once('.').map_or(object, |(handle, _)| handle)
}

/// A volume created by hand, as an administrator would, for the volume `handle` that already is in a pool.
pub fn volume(name: &str, handle: &str, class: &str, size: &str, node: &str) -> Value {
    let term = json!({ "matchExpressions": [{ "key": TOPOLOGY_KEY, "operator": "In", "values": [node] }] });
    json!({
        "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": size },
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": class,
            "csi": { "driver": DRIVER, "volumeHandle": handle },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [term] } },
        },
    })
}
