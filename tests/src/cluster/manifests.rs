//! The manifests in deploy/kubernetes, applied as an administrator would.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use serde_json::Value;

use crate::commands::Printed;
use crate::node::Kubectl;

/// The namespace of the agents.
pub const NAMESPACE: &str = "bulkhead-system";

/// Their service account.
pub const SERVICE_ACCOUNT: &str = "bulkhead-agent";

/// Applies the cluster-wide objects, including the kinds that only the newest release of Kubernetes has.
pub fn apply_cluster_wide(kubeconfig: &Path) -> Result<()> {
    ["base", "labels"].into_iter().try_for_each(|directory| apply(kubeconfig, directory))
}

/// Applies a directory of deploy/kubernetes.
pub fn apply(kubeconfig: &Path, directory: &str) -> Result<()> {
    kubectl(kubeconfig, &["apply", "--kustomize", &path(directory)]).map(drop)
}

/// Runs `test` while agents may renew their tokens.
pub fn with_renewal<T>(kubeconfig: &Path, test: impl FnOnce() -> Result<T>) -> Result<T> {
    apply(kubeconfig, "renewal")?;
    let done = test();
    // Other tests check that agents may not, even if this one has failed.
    kubectl(kubeconfig, &["delete", "--kustomize", &path("renewal")])?;
    done
}

/// Copies deploy/kubernetes to a directory, where a test may change it, and returns the copy of the container
/// deployment, which can be applied like the original.
pub fn copy(directory: &Path) -> Result<PathBuf> {
    let mut copy = Command::new("cp");
    Printed::by(copy.arg("--recursive").arg(path(".")).arg(directory))?.succeeded()?;
    Ok(directory.join("overlays/container"))
}

/// The objects of a directory of deploy/kubernetes, as YAML.
pub fn build(kubeconfig: &Path, directory: &str) -> Result<String> {
    kubectl(kubeconfig, &["kustomize", &path(directory)])
}

/// The objects of a manifest as kubectl understands them.
pub fn parse(kubeconfig: &Path, manifest: &Path) -> Result<Vec<Value>> {
    let arguments = ["create", "--dry-run=client", "--output=json", "--filename", &manifest.to_string_lossy()];
    let printed = kubectl(kubeconfig, &arguments)?;
    serde_json::Deserializer::from_str(&printed).into_iter().map(|object| Ok(object?)).collect()
}

/// The path of a file or directory of deploy/kubernetes.
pub fn path(directory: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes").join(directory);
    path.to_string_lossy().into_owned()
}

/// Removes one of the objects.
pub fn remove(kubeconfig: &Path, kind: &str, name: &str) -> Result<()> {
    kubectl(kubeconfig, &["delete", kind, name]).map(drop)
}

/// Runs kubectl as administrator, and returns what it prints.
pub fn kubectl(kubeconfig: &Path, arguments: &[&str]) -> Result<String> {
    let program = super::control_plane::assets()?.join("kubectl");
    Kubectl { program, kubeconfig: kubeconfig.to_owned() }.run(arguments)
}
