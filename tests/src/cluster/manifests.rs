//! What deploy/ has for a cluster, applied as an administrator applies it.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::path::Path;
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
    kubectl(kubeconfig, &["apply".as_ref(), "--kustomize".as_ref(), manifests.as_os_str()])
}

/// Removes one object of those.
///
/// # Errors
/// What kubectl complains of.
pub fn remove(kubeconfig: &Path, kind: &str, name: &str) -> Result<()> {
    kubectl(kubeconfig, &["delete", kind, name])
}

/// Runs kubectl as the administrator does.
///
/// # Errors
/// What it complains of.
pub fn kubectl(kubeconfig: &Path, arguments: &[impl AsRef<OsStr> + Debug]) -> Result<()> {
    let mut command = Command::new(super::control_plane::assets()?.join("kubectl"));
    command.arg("--kubeconfig").arg(kubeconfig).args(arguments);
    let output = command.output().context("start kubectl")?;
    let text = [output.stdout, output.stderr].concat();
    ensure!(output.status.success(), "kubectl {arguments:?}: {}", String::from_utf8_lossy(&text));
    Ok(())
}
