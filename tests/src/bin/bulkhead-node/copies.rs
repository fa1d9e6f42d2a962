//! Claims that begin as a snapshot or as another claim, in pods.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bulkhead_tests::node::{Kubectl, eventually};
use bulkhead_tests::pace::patience;
use serde_json::{Value, json};

use crate::pods::{self, CLASSES, Class, DIRECTORY, IDLE, Mode};
use crate::story::Story;

/// The class whose volumes can be copied.
const CLASS: Class = CLASSES[1];

/// Creates a claim and a pod that uses it, and returns how long it took until the pod was ready.
pub fn started(kubectl: &Kubectl, name: &str, source: Option<Value>) -> Result<Duration> {
    let mut claim = pods::claim(name, CLASS.name, Mode::Filesystem, &format!("{}Mi", CLASS.sizes[0]));
    if let Some(source) = source {
        claim["spec"]["dataSource"] = source;
    }
    let mounts = json!([{ "name": name, "mountPath": DIRECTORY }]);
    let pod = pods::pod_of(name, IDLE, &[name], &mounts);
    let begun = Instant::now();
    kubectl.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": [claim, pod] }).to_string())?;
    kubectl.wait_ready(&[name])?;
    Ok(begun.elapsed())
}

/// Takes a snapshot of a claim, which is called after it, and returns how long that took.
pub fn take_snapshot(kubectl: &Kubectl, claim: &str) -> Result<Duration> {
    let class = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": { "name": "bulkhead" }, "driver": "bulkhead.csi.local", "deletionPolicy": "Delete",
    });
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": { "name": claim },
        "spec": { "volumeSnapshotClassName": "bulkhead", "source": { "persistentVolumeClaimName": claim } },
    });
    kubectl.apply(&class.to_string())?;
    let begun = Instant::now();
    kubectl.apply(&snapshot.to_string())?;
    eventually(|| {
        let status = kubectl.get(&["volumesnapshot", claim])?["status"].clone();
        ensure!(status["readyToUse"] == true, "the snapshot is not ready: {status}");
        Ok(())
    })?;
    Ok(begun.elapsed())
}

/// What was in the volume when the snapshot was taken is in the pod that a restored claim is for, and it does not start
/// noticeably later than one with an empty claim.
pub fn a_restored_claim_is_used(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    let empty = started(kubectl, "source", None)?;
    kubectl.exec("source", &format!("echo monday >{DIRECTORY}/day && sync"))?;
    let taken = take_snapshot(kubectl, "source")?;
    kubectl.exec("source", &format!("echo tuesday >{DIRECTORY}/day && sync"))?;
    let of_snapshot = json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "source" });
    let of_claim = json!({ "kind": "PersistentVolumeClaim", "name": "source" });
    let restored = started(kubectl, "restored", Some(of_snapshot))?;
    let cloned = started(kubectl, "cloned", Some(of_claim))?;
    let again = started(kubectl, "empty", None)?;
    for (pod, day) in [("restored", "monday"), ("cloned", "tuesday")] {
        let found = kubectl.exec(pod, &format!("cat {DIRECTORY}/day"))?;
        ensure!(found.trim() == day, "{pod} holds {found:?}");
    }
    println!(
        "from claim to ready pod: {empty:.1?} and {again:.1?} empty, {restored:.1?} restored, {cloned:.1?} cloned; \
         snapshot {taken:.1?}"
    );
    // What a copy waits for would delay both; what else the machine does delays any of the four.
    let (copied, limit) = (restored.min(cloned), 2 * empty.max(again) + patience(Duration::from_secs(10)));
    ensure!(copied < limit, "{restored:?} and {cloned:?}, and {empty:?} and {again:?} for empty claims");
    let pods = ["source", "restored", "cloned", "empty"];
    kubectl.delete(&["volumesnapshot", "source"])?;
    kubectl.delete(&[&["pod"], &pods[..]].concat())?;
    kubectl.delete(&[&["pvc"], &pods[..]].concat())
}
