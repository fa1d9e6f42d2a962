//! What a cluster needs for snapshots, beside the agents: the definitions of their resources, and the snapshot controller.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use serde_json::{Value, json};

use super::manifests::kubectl;
use crate::kubelet::DRIVER;

/// The path of all objects of snapshots.
pub const CONTENTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";

/// The label by which a snapshot controller says which node handles a snapshot.
pub const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// The annotation of an object whose snapshot is being taken.
pub const BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";

/// The finalizer that keeps an object until its snapshot is deleted.
pub const FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";

/// Names the snapshot controller.
const CONTROLLER: &str = "BULKHEAD_SNAPSHOT_CONTROLLER";

/// Names the directory with the definitions.
const RESOURCES: &str = "BULKHEAD_SNAPSHOT_RESOURCES";

/// The kinds of objects.
const KINDS: [&str; 3] = ["volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"];

/// The snapshot controller's program.
///
/// # Errors
/// When it is not named.
pub fn controller() -> Result<PathBuf> {
    named(CONTROLLER)
}

/// The flags of the snapshot controller.
pub fn controller_flags(kubeconfig: &Path) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        // With its default of five requests a second it would be the bottleneck.
        "--kube-api-qps=1000".to_owned(),
        "--kube-api-burst=2000".to_owned(),
    ]
}

/// Defines the resources, and waits until the API server serves them.
///
/// # Errors
/// What kubectl reports.
pub fn define_resources(kubeconfig: &Path) -> Result<()> {
    let directory = named(RESOURCES)?;
    for kind in KINDS {
        let file = directory.join(format!("snapshot.storage.k8s.io_{kind}.yaml"));
        kubectl(kubeconfig, &["apply", "--server-side", "--filename", &file.to_string_lossy()])?;
    }
    let names = KINDS.map(|kind| format!("crd/{kind}.snapshot.storage.k8s.io"));
    let names = names.iter().map(String::as_str);
    let arguments: Vec<&str> =
        ["wait", "--for=condition=Established", "--timeout=60s"].into_iter().chain(names).collect();
    kubectl(kubeconfig, &arguments).map(drop)
}

/// The object of a snapshot as a snapshot controller makes it, in the test's namespace.
pub fn content(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": { "name": format!("{namespace}-{name}"), "finalizers": [FINALIZER] },
        "spec": {
            "driver": DRIVER,
            "deletionPolicy": "Delete",
            "source": { "volumeHandle": format!("pvc-{namespace}-{name}") },
            "volumeSnapshotRef": { "namespace": namespace, "name": name, "uid": "1" },
        },
    })
}

fn named(variable: &str) -> Result<PathBuf> {
    let path = env::var_os(variable).map(PathBuf::from);
    let path = path.with_context(|| format!("${variable} is not set; cargo xtask sets it"))?;
    ensure!(path.exists(), "${variable} names {}, which does not exist", path.display());
    Ok(path)
}
