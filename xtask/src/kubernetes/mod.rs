//! The programs of a Kubernetes cluster, each from a given directory or built from its release's Go modules.

mod release;

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use fs_err as fs;
use fs_err::os::unix::fs::symlink;

use self::release::Release;
use crate::workspace::Workspace;

/// Names a directory with programs to use instead of building any.
pub const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// A program, and the package it is built from.
type Program = (&'static str, &'static str);

/// The programs that tie a control plane to its release.
const SERVERS: [Program; 3] = [
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
];

/// The other programs of a control plane, which work with every release.
const COMPANIONS: [Program; 2] = [("etcd", "go.etcd.io/etcd/server/v3"), ("kubectl", "k8s.io/kubernetes/cmd/kubectl")];

/// What a node needs in addition.
const NODE: [Program; 1] = [("kubelet", "k8s.io/kubernetes/cmd/kubelet")];

/// The release's own tests, the program that runs them in parallel, and the program that their pods run.
const TESTS: [Program; 3] = [
    ("e2e.test", "k8s.io/kubernetes/test/e2e"),
    ("ginkgo", "github.com/onsi/ginkgo/v2/ginkgo"),
    ("agnhost", "k8s.io/kubernetes/test/images/agnhost"),
];

/// Finds the programs of a control plane, or builds them, and returns their directory.
pub fn control_plane(workspace: &Workspace) -> Result<PathBuf> {
    provide(workspace, &[SERVERS.as_slice(), &COMPANIONS].concat())
}

/// The same for older releases, with the version of each.
pub fn older_control_planes(workspace: &Workspace) -> Result<Vec<(String, PathBuf)>> {
    let companions = control_plane(workspace)?.canonicalize()?;
    let with_companions = |release: Release| {
        let directory = release.provide(&SERVERS)?;
        for (name, _) in COMPANIONS {
            let link = directory.join(name);
            let _ = fs::remove_file(&link);
            symlink(companions.join(name), &link)?;
        }
        Ok((release.version, directory))
    };
    Release::older(workspace)?.into_iter().map(with_companions).collect()
}

/// The same with the kubelet.
pub fn cluster(workspace: &Workspace) -> Result<PathBuf> {
    provide(workspace, &[SERVERS.as_slice(), &COMPANIONS, &NODE].concat())
}

/// The same with the release's own tests.
pub fn cluster_with_tests(workspace: &Workspace) -> Result<PathBuf> {
    provide(workspace, &[SERVERS.as_slice(), &COMPANIONS, &NODE, &TESTS].concat())
}

fn provide(workspace: &Workspace, programs: &[Program]) -> Result<PathBuf> {
    if let Some(given) = env::var_os(ASSETS) {
        return check_given(PathBuf::from(given), programs);
    }
    Release::pinned(workspace)?.provide(programs)
}

fn check_given(directory: PathBuf, programs: &[Program]) -> Result<PathBuf> {
    let lacks = |name: &&str| !Path::new(&directory).join(name).exists();
    let missing: Vec<&str> = programs.iter().map(|(name, _)| *name).filter(lacks).collect();
    ensure!(
        missing.is_empty(),
        "{ASSETS} names {}, which lacks {}: add them, or unset it to have all of them built with Go",
        directory.display(),
        missing.join(", ")
    );
    Ok(directory)
}
