//! Manifests of claims and of pods that use them. Every pod is a shell.

use serde_json::{Value, json};

/// The image that every node has.
const IMAGE: &str = "bulkhead-shell:test";

/// What a pod does that is there for its volumes only.
pub const IDLE: &str = "trap exit TERM; while :; do sleep 1; done";

/// Where a pod of the set mounts its volume.
pub const DIRECTORY: &str = "/data";

/// The path of a pod's block volume.
pub const DEVICE: &str = "/dev/volume";

/// Where the node's programs are in a pod that has them.
pub const TOOLS: &str = "/tools";

/// How a volume is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As a directory.
    Filesystem,
    /// As a device.
    Block,
}

/// A class, and the claim for a volume that pods mount.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// Its name.
    pub name: &'static str,
    /// The claim's name.
    pub claim: &'static str,
    /// Where pods mount it.
    pub directory: &'static str,
    /// The claim's size in MiB, and what it becomes later.
    pub sizes: [u64; 2],
    /// How much of it the volume's own filesystem has for its log, in MiB, which nobody sees.
    pub log: u64,
}

/// The classes whose volumes are mounted. Whatever pods see of these, they see of each.
pub const CLASSES: [Class; 2] = [
    // A directory in the pool, with a quota.
    Class { name: "bulkhead", claim: "files", directory: DIRECTORY, sizes: [64, 96], log: 0 },
    // A filesystem in an image.
    Class { name: "bulkhead-image", claim: "image", directory: "/image", sizes: [300, 384], log: 64 },
];

impl Class {
    /// The claim.
    pub fn claim(&self) -> Value {
        claim(self.claim, self.name, Mode::Filesystem, &format!("{}Mi", self.sizes[0]))
    }
}

/// A claim for a volume on a node.
pub fn claim(name: &str, class: &str, mode: Mode, size: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": name },
        "spec": claim_spec(class, mode, size),
    })
}

fn claim_spec(class: &str, mode: Mode, size: &str) -> Value {
    json!({
        "storageClassName": class,
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": match mode {
            Mode::Filesystem => "Filesystem",
            Mode::Block => "Block",
        },
        "resources": { "requests": { "storage": size } },
    })
}

/// A pod that runs a shell command with the claims of all classes mounted.
pub fn pod(name: &str, command: &str) -> Value {
    let mounts: Vec<_> =
        CLASSES.iter().map(|class| json!({ "name": class.claim, "mountPath": class.directory })).collect();
    pod_of(name, command, &CLASSES.map(|class| class.claim), &json!(mounts))
}

/// A pod that runs a shell command with these claims, and with these mounts of them.
pub fn pod_of(name: &str, command: &str, claims: &[&str], mounts: &Value) -> Value {
    let of_claim = |claim: &&str| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } });
    let volumes: Vec<_> = claims.iter().map(of_claim).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": pod_spec(&container(command, mounts), &volumes),
    })
}

/// Adds the device of the claim `disk` to a pod.
pub fn with_disk(mut pod: Value) -> Value {
    let volume = json!({ "name": "disk", "persistentVolumeClaim": { "claimName": "disk" } });
    if let Some(volumes) = pod["spec"]["volumes"].as_array_mut() {
        volumes.push(volume);
    }
    pod["spec"]["containers"][0]["volumeDevices"] = json!([{ "name": "disk", "devicePath": DEVICE }]);
    pod
}

/// Adds the node's programs, which a pod's image does not have.
pub fn with_tools(mut pod: Value) -> Value {
    if let Some(volumes) = pod["spec"]["volumes"].as_array_mut() {
        volumes.push(json!({ "name": "tools", "hostPath": { "path": "/usr" } }));
    }
    let mount = json!({ "name": "tools", "mountPath": TOOLS, "readOnly": true });
    if let Some(mounts) = pod["spec"]["containers"][0]["volumeMounts"].as_array_mut() {
        mounts.push(mount);
    }
    pod
}

/// Makes all claims of a pod read-only.
pub fn read_only(mut pod: Value) -> Value {
    for volume in pod["spec"]["volumes"].as_array_mut().into_iter().flatten() {
        volume["persistentVolumeClaim"]["readOnly"] = json!(true);
    }
    pod
}

/// A set of pods, each with its own claim.
pub fn stateful_set(name: &str, replicas: u32, command: &str) -> Value {
    let mut template = json!({ "metadata": { "labels": { "set": name } } });
    template["spec"] = pod_spec(&container(command, &json!([{ "name": "files", "mountPath": DIRECTORY }])), &[]);
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
            "volumeClaimTemplates": [
                { "metadata": { "name": "files" }, "spec": claim_spec("bulkhead", Mode::Filesystem, "16Mi") },
            ],
            "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Delete", "whenScaled": "Retain" },
        },
    })
}

fn container(command: &str, mounts: &Value) -> Value {
    json!({
        "name": "shell",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", command],
        "volumeMounts": mounts,
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
