//! The manifests in deploy/kubernetes, as read by kubectl.

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::{Cluster, manifests};

cases! {
    on Cluster;
    everything_but_the_labels_is_known_to_kubernetes_1_32: Bare,
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
    ensure!(unknown("labels")?.len() == 4, "the labels are no longer the exception");
    Ok(())
}
