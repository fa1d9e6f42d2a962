//! Nodes that exist only as objects, as their kubelets would have registered them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use k8s_openapi::api::storage::v1::CSINode;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, from_value, json};

use super::access::Access;
use super::credentials::kubeconfig;
use super::fixture::PATIENCE;
use super::manifests::{NAMESPACE, SERVICE_ACCOUNT};
use crate::daemon::FRONTEND_UID;
use crate::kubelet::DRIVER;

/// The topology key, which is also the label on what belongs to a node.
pub const TOPOLOGY_KEY: &str = "bulkhead.csi.local/node";

/// Creates a node that is ready, and returns its uid.
pub fn make(access: &Access, name: &str, more_labels: &[(&str, &str)]) -> Result<String> {
    let mut labels = json!({ TOPOLOGY_KEY: name, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux" });
    for (key, value) in more_labels {
        labels[*key] = json!(value);
    }
    let annotations = json!({ "csi.volume.kubernetes.io/nodeid": json!({ DRIVER: name }).to_string() });
    let nodes: Api<Node> = Api::all(access.client());
    let node = json!({ "metadata": { "name": name, "labels": labels, "annotations": annotations } });
    let made = access.run(nodes.create(&PostParams::default(), &from_value(node)?))?;
    let uid = made.metadata.uid.context("a node without a uid")?;
    let room = json!({ "cpu": "64", "memory": "64Gi", "pods": "1000" });
    let ready = json!({ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready" });
    let status = json!({ "status": { "capacity": room, "allocatable": room, "conditions": [ready] } });
    access.run(nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)))?;
    let csi: Api<CSINode> = Api::all(access.client());
    let owner = json!([{ "apiVersion": "v1", "kind": "Node", "name": name, "uid": uid }]);
    let driver = json!({ "name": DRIVER, "nodeID": name, "topologyKeys": [TOPOLOGY_KEY] });
    let csi_node = json!({
        "metadata": { "name": name, "ownerReferences": owner },
        "spec": { "drivers": [driver] },
    });
    access.run(csi.create(&PostParams::default(), &from_value(csi_node)?))?;
    // Admission taints every new node as not ready, and the controller manager removes the taint.
    access.wait_for(&nodes, name, PATIENCE, "to lose its taints", |node| {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        ensure!(taints.is_none_or(Vec::is_empty), "taints: {taints:?}");
        Ok(())
    })?;
    Ok(uid)
}

/// Deletes a node.
pub fn delete(access: &Access, name: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(access.client());
    access.run(nodes.delete(name, &DeleteParams::default()))?;
    Ok(())
}

/// A token of the agents' service account that is bound to a node.
pub fn token(access: &Access, name: &str, uid: &str, lifetime: Duration) -> Result<String> {
    let bound = json!({ "apiVersion": "v1", "kind": "Node", "name": name, "uid": uid });
    request_token(access, &json!({ "boundObjectRef": bound, "expirationSeconds": lifetime.as_secs() }))
}

/// A token of the agents' service account that is bound to no object.
pub fn unbound_token(access: &Access) -> Result<String> {
    request_token(access, &json!({}))
}

fn request_token(access: &Access, spec: &Value) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(access.client(), NAMESPACE);
    let request: TokenRequest = from_value(json!({ "spec": spec }))?;
    let answer = access.run(accounts.create_token_request(SERVICE_ACCOUNT, &PostParams::default(), &request))?;
    Ok(answer.status.context("a token request without an answer")?.token)
}

/// Writes the agent's kubeconfig, and its token into a file next to it, for the frontend's user.
pub fn write_kubeconfig(access: &Access, directory: &Path, token: &str) -> Result<()> {
    write_token(directory, token)?;
    let admin: Value = serde_json::from_slice(&fs::read(access.kubeconfig())?)?;
    let cluster = &admin["clusters"][0]["cluster"];
    let server = cluster["server"].as_str().context("the administrator's kubeconfig names no server")?;
    // Only root may read the control plane's own directory.
    let authority = directory.join("authority.crt");
    let original = cluster["certificate-authority"].as_str().context("the kubeconfig names no authority")?;
    fs::copy(original, &authority)?;
    let text = kubeconfig(server, &authority, &json!({ "tokenFile": directory.join("token") }));
    Ok(fs::write(directory.join("kubeconfig"), text)?)
}

/// Replaces the token with a rename, as kubelets do.
pub fn write_token(directory: &Path, token: &str) -> Result<()> {
    let unfinished = directory.join(".token");
    fs::write(&unfinished, token)?;
    std::os::unix::fs::chown(&unfinished, Some(FRONTEND_UID), Some(FRONTEND_UID))?;
    Ok(fs::rename(unfinished, directory.join("token"))?)
}
