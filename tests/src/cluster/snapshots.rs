//! What a cluster needs for snapshots, beside the agents: the definitions of their resources, and the snapshot controller.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tonic::codegen::http::Request;

use super::fixture::{Cluster, PATIENCE};
use super::groups::{OF_GROUPS, group_content};
use super::manifests::kubectl;
use crate::kubelet::DRIVER;
use crate::wait;

/// Their API group.
const GROUP: &str = "snapshot.storage.k8s.io";

/// The path of all classes of snapshots.
const CLASSES: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses";

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

/// The kinds of objects, each with its API group.
const KINDS: [(&str, &str); 6] = [
    (GROUP, "volumesnapshotclasses"),
    (GROUP, "volumesnapshotcontents"),
    (GROUP, "volumesnapshots"),
    (OF_GROUPS, "volumegroupsnapshotclasses"),
    (OF_GROUPS, "volumegroupsnapshotcontents"),
    (OF_GROUPS, "volumegroupsnapshots"),
];

/// The snapshot controller's program.
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
        "--feature-gates=CSIVolumeGroupSnapshot=true".to_owned(),
    ]
}

/// Defines the resources, and waits until the API server serves them.
pub fn define_resources(kubeconfig: &Path) -> Result<()> {
    let directory = named(RESOURCES)?;
    for (group, kind) in KINDS {
        let file = directory.join(format!("{group}_{kind}.yaml"));
        kubectl(kubeconfig, &["apply", "--server-side", "--filename", &file.to_string_lossy()])?;
    }
    let names = KINDS.map(|(group, kind)| format!("crd/{kind}.{group}"));
    let names = names.iter().map(String::as_str);
    let arguments: Vec<&str> =
        ["wait", "--for=condition=Established", "--timeout=60s"].into_iter().chain(names).collect();
    kubectl(kubeconfig, &arguments)?;
    // A little later, it also has the schema of what a policy changes.
    let directory = tempfile::tempdir()?;
    let probe = directory.path().join("probe.json");
    for object in [content("default", "probe"), group_content("default", "probe")] {
        fs::write(&probe, object.to_string())?;
        let arguments = ["create", "--dry-run=server", "--filename", &probe.to_string_lossy()];
        wait::until(PATIENCE, || kubectl(kubeconfig, &arguments).map(drop))?;
    }
    Ok(())
}

/// Removes the definitions, and all objects of these kinds.
pub fn remove_resources(kubeconfig: &Path) -> Result<()> {
    let names = KINDS.map(|(group, kind)| format!("{kind}.{group}"));
    // A test that has failed may have left some that nobody looks after.
    let template = "{range .items[*]}{.kind}/{.metadata.name} --namespace={.metadata.namespace}{'\n'}{end}";
    let left = ["get", &names.join(","), "--all-namespaces", "--output", &format!("jsonpath={template}")];
    for object in kubectl(kubeconfig, &left)?.lines() {
        let patch = ["patch", "--type=merge", r#"--patch={"metadata":{"finalizers":null}}"#];
        let object = object.split(' ').filter(|word| *word != "--namespace=");
        kubectl(kubeconfig, &patch.into_iter().chain(object).collect::<Vec<_>>())?;
    }
    let names = names.iter().map(String::as_str);
    let arguments: Vec<&str> = ["delete", "crd"].into_iter().chain(names).collect();
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

impl Cluster {
    /// Creates a class of snapshots like those of the agents' driver, changed by `edit`, and returns its name. It stays
    /// until the end of the run.
    pub fn add_snapshot_class(&self, suffix: &str, edit: impl FnOnce(&mut Value)) -> Result<String> {
        let name = format!("{}-{suffix}", self.namespace);
        let mut class = json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "VolumeSnapshotClass", "metadata": { "name": name },
            "driver": DRIVER, "deletionPolicy": "Delete",
        });
        edit(&mut class);
        self.ask("POST", CLASSES, Some(&class))?;
        Ok(name)
    }

    /// The path of the test's VolumeSnapshots.
    pub fn snapshots(&self) -> String {
        format!("/apis/{GROUP}/v1/namespaces/{}/volumesnapshots", self.namespace)
    }

    /// Creates a VolumeSnapshot of a claim, as a user would.
    pub fn snapshot(&self, name: &str, claim: &str, class: &str) -> Result<()> {
        let source = json!({ "persistentVolumeClaimName": claim });
        self.snapshot_of(name, &json!({ "volumeSnapshotClassName": class, "source": source }))
    }

    /// Creates a VolumeSnapshot with this specification.
    pub fn snapshot_of(&self, name: &str, spec: &Value) -> Result<()> {
        let snapshot = json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "VolumeSnapshot", "metadata": { "name": name }, "spec": spec,
        });
        self.ask("POST", &self.snapshots(), Some(&snapshot)).map(drop)
    }

    /// Waits until volumes can be made from a VolumeSnapshot, and returns its content.
    pub fn snapshot_ready(&self, name: &str) -> Result<Value> {
        let content = self.ready(&format!("{}/{name}", self.snapshots()), "boundVolumeSnapshotContentName")?;
        self.ask("GET", &format!("{CONTENTS}/{content}"), None)
    }

    /// Waits until what is at this path can be used, and returns the name of its content, which is in this field.
    pub(super) fn ready(&self, path: &str, bound: &str) -> Result<String> {
        self.access.wait(PATIENCE, &format!("{path} to be ready"), || {
            let found = self.ask("GET", path, None)?;
            ensure!(found["status"]["readyToUse"] == true, "its status is {}", found["status"]);
            Ok(found["status"][bound].as_str().context("no content")?.to_owned())
        })
    }

    /// Waits until a VolumeSnapshot says that it has failed, for a reason that contains `part`.
    pub fn snapshot_failed(&self, name: &str, part: &str) -> Result<()> {
        self.failed(&format!("{}/{name}", self.snapshots()), part)
    }

    /// Waits until what is at this path says that it has failed, for a reason that contains `part`.
    pub(super) fn failed(&self, path: &str, part: &str) -> Result<()> {
        self.access.wait(PATIENCE, &format!("{path} to fail"), || {
            let found = self.ask("GET", path, None)?;
            let message = found["status"]["error"]["message"].as_str().unwrap_or_default();
            ensure!(message.contains(part), "its status is {}", found["status"]);
            Ok(())
        })
    }

    /// Deletes a VolumeSnapshot, and waits until it is gone.
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        let path = format!("{}/{name}", self.snapshots());
        self.ask("DELETE", &path, None)?;
        self.is_gone(&path)
    }

    /// Waits until an object is gone.
    pub fn is_gone(&self, path: &str) -> Result<()> {
        self.access.wait(PATIENCE, &format!("{path} to be gone"), || match self.ask("GET", path, None) {
            Ok(found) => bail!("it is still there: {found}"),
            Err(error) if error.to_string().contains("404") => Ok(()),
            Err(error) => Err(error),
        })
    }

    /// Sends a request as administrator. A patch is a merge patch.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder().method(method).uri(path).header("Content-Type", content).body(bytes)?;
        match self.access.run(self.access.client().request(request)) {
            Ok(answer) => Ok(answer),
            Err(kube::Error::Api(status)) => bail!("{method} {path}: {} {}", status.code, status.message),
            Err(error) => Err(error).with_context(|| format!("{method} {path}")),
        }
    }
}

fn named(variable: &str) -> Result<PathBuf> {
    let path = env::var_os(variable).map(PathBuf::from);
    let path = path.with_context(|| format!("${variable} is not set; cargo xtask sets it"))?;
    ensure!(path.exists(), "${variable} names {}, which does not exist", path.display());
    Ok(path)
}
