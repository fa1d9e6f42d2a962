//! The programs of a Kubernetes cluster: a release's own, given or built from its Go modules.

mod build;
mod release;

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use self::release::Release;
use crate::workspace::Workspace;

/// Names a directory with programs that are used instead of building any.
pub const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// What a cluster consists of, and the package that each is built from.
const PROGRAMS: [(&str, &str); 6] = [
    ("etcd", "go.etcd.io/etcd/server/v3"),
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
];

/// Finds the programs of a control plane, or builds them, and returns their directory.
pub fn control_plane(workspace: &Workspace) -> Result<PathBuf> {
    provide(workspace, |name| name != "kubelet")
}

/// The same with the kubelet.
pub fn cluster(workspace: &Workspace) -> Result<PathBuf> {
    provide(workspace, |_| true)
}

fn provide(workspace: &Workspace, wanted: impl Fn(&str) -> bool) -> Result<PathBuf> {
    let programs: Vec<_> = PROGRAMS.into_iter().filter(|(name, _)| wanted(name)).collect();
    if let Some(given) = env::var_os(ASSETS) {
        return check_given(PathBuf::from(given), &programs);
    }
    build::provide(&Release::pinned(workspace)?, &programs)
}

fn check_given(directory: PathBuf, programs: &[(&str, &str)]) -> Result<PathBuf> {
    let lacks = |name: &&str| !Path::new(&directory).join(name).exists();
    let missing: Vec<&str> = programs.iter().map(|(name, _)| *name).filter(lacks).collect();
    if !missing.is_empty() {
        bail!(
            "{ASSETS} names {}, which lacks {}: add them, or unset it to have all of them built with Go",
            directory.display(),
            missing.join(", ")
        );
    }
    Ok(directory)
}
