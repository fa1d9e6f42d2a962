//! Manifests of claims and of pods that use them. Every pod is a shell.

use serde_json::{Value, json};

/// The image that every node has.
const IMAGE: &str = "bulkhead-shell:test";

/// Where a pod mounts its filesystem volume.
pub const DIRECTORY: &str = "/data";

/// The path of a pod's block volume.
pub const DEVICE: &str = "/dev/volume";

/// How a volume is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As a directory.
    Filesystem,
    /// As a device.
    Block,
}

/// A claim for a volume on a node.
pub fn claim(name: &str, mode: Mode, size: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": name },
        "spec": claim_spec(mode, size),
    })
}

fn claim_spec(mode: Mode, size: &str) -> Value {
    json!({
        "storageClassName": "bulkhead",
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": match mode {
            Mode::Filesystem => "Filesystem",
            Mode::Block => "Block",
        },
        "resources": { "requests": { "storage": size } },
    })
}

/// A pod that runs a shell command with the directory of one claim and, optionally, the device of another.
pub fn pod(name: &str, command: &str, files: &str, disk: Option<&str>) -> Value {
    let mut volumes = vec![json!({ "name": "files", "persistentVolumeClaim": { "claimName": files } })];
    let mut container = container(command);
    if let Some(disk) = disk {
        volumes.push(json!({ "name": "disk", "persistentVolumeClaim": { "claimName": disk } }));
        container["volumeDevices"] = json!([{ "name": "disk", "devicePath": DEVICE }]);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": pod_spec(&container, &volumes),
    })
}

/// The same with both volumes read-only.
pub fn reader(name: &str, command: &str, files: &str, disk: &str) -> Value {
    let mut pod = pod(name, command, files, Some(disk));
    pod["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"] = json!(true);
    pod["spec"]["volumes"][1]["persistentVolumeClaim"]["readOnly"] = json!(true);
    pod
}

/// A set of pods, each with its own claim.
pub fn stateful_set(name: &str, replicas: u32, command: &str) -> Value {
    let mut template = json!({ "metadata": { "labels": { "set": name } } });
    template["spec"] = pod_spec(&container(command), &[]);
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": { "name": name },
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": { "matchLabels": { "set": name } },
            "template": template,
            "volumeClaimTemplates": [{ "metadata": { "name": "files" }, "spec": claim_spec(Mode::Filesystem, "16Mi") }],
            "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Delete", "whenScaled": "Retain" },
        },
    })
}

fn container(command: &str) -> Value {
    json!({
        "name": "shell",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", command],
        "volumeMounts": [{ "name": "files", "mountPath": DIRECTORY }],
    })
}

fn pod_spec(container: &Value, volumes: &[Value]) -> Value {
    json!({
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false,
        // There is no cluster DNS.
        "dnsPolicy": "Default",
        "containers": [container],
        "volumes": volumes,
    })
}
