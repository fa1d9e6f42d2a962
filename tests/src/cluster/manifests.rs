//! What deploy/ has for a cluster, applied as an administrator applies it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The namespace of the agents.
pub const NAMESPACE: &str = "bulkhead-system";

/// Their service account.
pub const SERVICE_ACCOUNT: &str = "bulkhead-agent";

/// Applies a directory of deploy/kubernetes.
///
/// # Errors
/// What kubectl complains of.
pub fn apply(kubeconfig: &Path, directory: &str) -> Result<()> {
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes").join(directory);
    let mut apply = Command::new(kubectl()?);
    apply.arg("--kubeconfig").arg(kubeconfig).args(["apply", "--kustomize"]).arg(&manifests);
    let output = apply.output().context("start kubectl")?;
    let text = [output.stdout, output.stderr].concat();
    ensure!(output.status.success(), "apply {}: {}", manifests.display(), String::from_utf8_lossy(&text));
    Ok(())
}

fn kubectl() -> Result<PathBuf> {
    Ok(super::control_plane::assets()?.join("kubectl"))
}
