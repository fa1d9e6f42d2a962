//! The manifests in deploy/kubernetes, as read by kubectl.

use std::fs;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::control_plane::ControlPlane;
use bulkhead_tests::cluster::manifests::{NAMESPACE, kubectl};
use bulkhead_tests::cluster::{Cluster, PATIENCE, manifests};
use serde_json::Value;

cases! {
    on Cluster;
    everything_but_the_labels_is_known_to_kubernetes_1_32: Bare,
    an_update_is_undone_with_its_configuration: Bare + Long + Alone("it has a control plane of its own"),
}

/// What the manifests use; Kubernetes 1.32 serves all of it.
const KNOWN: [(&str, &str); 13] = [
    ("v1", "Namespace"),
    ("v1", "ServiceAccount"),
    ("v1", "ConfigMap"),
    ("apps/v1", "DaemonSet"),
    ("storage.k8s.io/v1", "CSIDriver"),
    ("storage.k8s.io/v1", "StorageClass"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    // Since 1.30.
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
];

fn everything_but_the_labels_is_known_to_kubernetes_1_32(cluster: &mut Cluster) -> Result<()> {
    let unknown = |directory| -> Result<Vec<String>> {
        let mut unknown = Vec::new();
        for object in manifests::build(&cluster.access.kubeconfig(), directory)?.split("\n---\n") {
            let field = |name: &str| object.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").to_owned();
            let kind = (field("apiVersion: "), field("kind: "));
            if !KNOWN.contains(&(kind.0.as_str(), kind.1.as_str())) {
                unknown.push(kind.1);
            }
        }
        Ok(unknown)
    };
    for directory in ["base", "overlays/container", "overlays/host-service"] {
        let unknown = unknown(directory)?;
        ensure!(unknown.is_empty(), "{directory} has {unknown:?}");
    }
    let labels = unknown("labels")?;
    let is_mutating = |kind: &String| kind.starts_with("MutatingAdmissionPolicy");
    ensure!(!labels.is_empty() && labels.iter().all(is_mutating), "the labels are no longer the exception: {labels:?}");
    Ok(())
}

/// On a control plane of its own: the one that tests share has no DaemonSet.
fn an_update_is_undone_with_its_configuration(_: &mut Cluster) -> Result<()> {
    let control_plane = ControlPlane::start()?;
    let access = control_plane.access()?;
    let kubeconfig = access.kubeconfig();
    let scratch = tempfile::tempdir()?;
    let overlay = manifests::copy(scratch.path())?;
    let apply = || manifests::apply(&kubeconfig, &overlay.to_string_lossy());
    let set = || -> Result<Value> {
        let arguments = ["--namespace", NAMESPACE, "get", "daemonset", "bulkhead", "--output", "json"];
        Ok(serde_json::from_str(&kubectl(&kubeconfig, &arguments)?)?)
    };
    // What the controller has not seen, it cannot remember.
    let settle = || {
        access.wait(PATIENCE, "the DaemonSet to be seen by its controller", || {
            let set = set()?;
            ensure!(set["status"]["observedGeneration"] == set["metadata"]["generation"], "{set:#}");
            Ok(set["spec"]["template"].clone())
        })
    };
    apply()?;
    let before = settle()?;
    let configuration = overlay.join("privhelper.conf");
    fs::write(&configuration, fs::read_to_string(&configuration)? + "--max-volumes 10\n")?;
    apply()?;
    ensure!(settle()? != before, "the pods are not replaced");
    kubectl(&kubeconfig, &["--namespace", NAMESPACE, "rollout", "undo", "daemonset/bulkhead"])?;
    let after = settle()?;
    ensure!(after == before, "{after:#}\ninstead of\n{before:#}");
    let volumes = after["spec"]["volumes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let name = volumes.iter().find_map(|volume| volume["configMap"]["name"].as_str()).unwrap_or_default();
    let flags = kubectl(&kubeconfig, &["--namespace", NAMESPACE, "get", "configmap", name, "--output", "yaml"])?;
    ensure!(!flags.contains("--max-volumes 10"), "{flags}");
    Ok(())
}
