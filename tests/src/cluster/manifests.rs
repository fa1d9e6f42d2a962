//! The manifests of deploy/kubernetes, applied as an administrator applies them.

use std::path::Path;

use anyhow::Result;

use crate::node::Kubectl;

/// The namespace of the agents.
pub const NAMESPACE: &str = "bulkhead-system";

/// Their service account.
pub const SERVICE_ACCOUNT: &str = "bulkhead-agent";

/// Applies a directory of deploy/kubernetes.
///
/// # Errors
/// What kubectl reports.
pub fn apply(kubeconfig: &Path, directory: &str) -> Result<()> {
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes").join(directory);
    kubectl(kubeconfig, &["apply", "--kustomize", &manifests.to_string_lossy()])
}

/// Removes one of the objects.
///
/// # Errors
/// What kubectl reports.
pub fn remove(kubeconfig: &Path, kind: &str, name: &str) -> Result<()> {
    kubectl(kubeconfig, &["delete", kind, name])
}

/// Runs kubectl as the administrator does.
///
/// # Errors
/// What kubectl reports.
pub fn kubectl(kubeconfig: &Path, arguments: &[&str]) -> Result<()> {
    let program = super::control_plane::assets()?.join("kubectl");
    Kubectl { program, kubeconfig: kubeconfig.to_owned() }.run(arguments).map(drop)
}
