//! A pod's use of its volumes.

use anyhow::{Context, Result, bail, ensure};
use bulkhead_tests::node::{Kubectl, eventually};
use serde_json::json;

use crate::pods::{self, DEVICE, DIRECTORY, Mode};
use crate::story::Story;

/// The pod with volumes of both kinds, which stays through most of the story.
pub const POD: &str = "writer";

/// Holds a file open and keeps writing to it, so that replacing the mount under it would be noticed.
pub const BEAT: &str = "trap exit TERM; exec 3>>/data/beat; while :; do echo beat >&3; sleep 1; done";

const IDLE: &str = "trap exit TERM; while :; do sleep 1; done";

/// What is written to both volumes.
const TEXT: &str = "what was written before";

/// The first volumes on the node.
pub fn claims_are_bound_and_written(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    for manifest in [
        pods::claim("files", Mode::Filesystem, "64Mi"),
        pods::claim("disk", Mode::Block, "64Mi"),
        pods::pod(POD, BEAT, "files", Some("disk")),
    ] {
        kubectl.apply(&manifest.to_string())?;
    }
    kubectl.wait_ready(&[POD])?;
    kubectl.exec(POD, &format!("echo {TEXT} >{DIRECTORY}/text && echo {TEXT} | dd of={DEVICE} conv=fsync && sync"))?;
    check_text(kubectl)?;
    check_sizes(kubectl, 64)
}

/// Both volumes still contain what was written first.
pub fn check_text(kubectl: &Kubectl) -> Result<()> {
    let read = kubectl.exec(POD, &format!("cat {DIRECTORY}/text && head -c {} {DEVICE}", TEXT.len()))?;
    ensure!(read == format!("{TEXT}\n{TEXT}"), "the volumes hold {read:?}");
    Ok(())
}

/// The container that is running now: it does not change unless it ends.
pub fn container(kubectl: &Kubectl) -> Result<String> {
    let pod = kubectl.get(&["pod", POD])?;
    Ok(pod["status"]["containerStatuses"][0]["containerID"].as_str().context("no container runs")?.to_owned())
}

/// The pod's process keeps writing to the file that it has open.
pub fn check_beat(kubectl: &Kubectl) -> Result<()> {
    let beats = || -> Result<u64> { Ok(kubectl.exec(POD, "wc -l </data/beat")?.trim().parse()?) };
    let before = beats()?;
    eventually(|| {
        let now = beats()?;
        ensure!(now > before, "the pod has stopped writing: {now} lines");
        Ok(())
    })
}

fn check_sizes(kubectl: &Kubectl, mebibytes: u64) -> Result<()> {
    let told = kubectl.exec(POD, &format!("df -P -k {DIRECTORY} | tail -n 1; blockdev --getsize64 {DEVICE}"))?;
    let (filesystem, device) =
        told.trim().split_once('\n').with_context(|| format!("df and blockdev printed {told:?}"))?;
    let kibibytes = filesystem.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    ensure!(kibibytes == Some(mebibytes << 10), "the directory has {filesystem:?}, not {mebibytes} MiB");
    ensure!(device.parse() == Ok(mebibytes << 20), "the device has {device} bytes, not {mebibytes} MiB");
    Ok(())
}

/// A full directory volume looks like a full disk to its pod, while the pool has space left.
pub fn the_quota_is_felt(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    let fill = format!("dd if=/dev/zero of={DIRECTORY}/full bs=1M count=80 2>&1; wc -c <{DIRECTORY}/full");
    let told = kubectl.exec(POD, &fill)?;
    let refused = told.contains("No space left on device") || told.contains("Disk quota exceeded");
    ensure!(refused, "nothing kept the pod from writing: {told}");
    let written: u64 = told.lines().last().and_then(|line| line.trim().parse().ok()).context("dd printed no size")?;
    ensure!((60 << 20..=64 << 20).contains(&written), "the pod could write {written} bytes");
    let beyond = kubectl.exec(POD, &format!("dd if=/dev/zero of={DEVICE} bs=1M seek=64 count=1 2>&1 || true"))?;
    ensure!(beyond.contains("No space left on device"), "a write beyond the device's end: {beyond}");
    kubectl.exec(POD, &format!("rm {DIRECTORY}/full && echo again >{DIRECTORY}/again"))?;
    check_text(kubectl)
}

/// A second pod has the same volumes, and cannot write to them.
pub fn read_only_is_read_only(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    // The device would still be in use read-write by the writer: a volume is published in only one way at a time.
    kubectl.delete(&["pod", POD])?;
    kubectl.apply(&pods::reader("reader", IDLE, "files", "disk").to_string())?;
    kubectl.wait_ready(&["reader"])?;
    let read = kubectl.exec("reader", &format!("cat {DIRECTORY}/text && head -c {} {DEVICE}", TEXT.len()))?;
    ensure!(read == format!("{TEXT}\n{TEXT}"), "the reader sees {read:?}");
    for write in [format!("touch {DIRECTORY}/new"), format!("rm {DIRECTORY}/text"), format!("echo x >{DEVICE}")] {
        if kubectl.exec("reader", &write).is_ok() {
            bail!("the reader could run `{write}`");
        }
    }
    kubectl.delete(&["pod", "reader"])?;
    Ok(())
}

/// A new pod finds the data of its predecessor.
pub fn a_new_pod_has_the_data(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    kubectl.apply(&pods::pod(POD, BEAT, "files", Some("disk")).to_string())?;
    kubectl.wait_ready(&[POD])?;
    check_text(kubectl)
}

/// An expansion reaches the pod while it is running.
pub fn expansion_is_seen_in_the_pod(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    let before = container(kubectl)?;
    let patch = json!({ "spec": { "resources": { "requests": { "storage": "96Mi" } } } }).to_string();
    for claim in ["files", "disk"] {
        kubectl.run(&["patch", "pvc", claim, "--patch", &patch])?;
    }
    for claim in ["files", "disk"] {
        kubectl
            .run(&["wait", "--for=jsonpath={.status.capacity.storage}=96Mi", "--timeout=120s", "pvc", claim])
            .with_context(|| kubectl.describe("pvc", claim))?;
    }
    eventually(|| check_sizes(kubectl, 96))?;
    kubectl.exec(POD, &format!("dd if=/dev/zero of={DIRECTORY}/more bs=1M count=80 && rm {DIRECTORY}/more"))?;
    kubectl.exec(POD, &format!("dd if=/dev/zero of={DEVICE} bs=1M seek=90 count=6 conv=fsync"))?;
    check_text(kubectl)?;
    ensure!(container(kubectl)? == before, "the pod's container was restarted");
    Ok(())
}

/// Scales the stateful set to this many pods, and waits until they are ready.
pub fn scale(story: &mut Story<'_>, replicas: u32) -> Result<()> {
    let kubectl = &story.node.kubectl;
    kubectl.apply(&pods::stateful_set("set", replicas, IDLE).to_string())?;
    story.replicas = replicas;
    wait_for_set(kubectl)
}

/// Waits until every pod of the stateful set is ready.
pub fn wait_for_set(kubectl: &Kubectl) -> Result<()> {
    kubectl.run(&["rollout", "status", "statefulset/set", "--timeout=240s"]).map(drop)
}

/// Each pod of a set has its own volume, and a new pod has that of its predecessor.
pub fn a_stateful_set(story: &mut Story<'_>) -> Result<()> {
    scale(story, 2)?;
    let kubectl = &story.node.kubectl;
    for pod in ["set-0", "set-1"] {
        kubectl.exec(pod, &format!("echo {pod} >{DIRECTORY}/name && sync"))?;
    }
    kubectl.delete(&["pod", "set-0", "set-1"])?;
    wait_for_set(kubectl)?;
    for pod in ["set-0", "set-1"] {
        let name = kubectl.exec(pod, &format!("cat {DIRECTORY}/name"))?;
        ensure!(name.trim() == pod, "the volume of {pod} belongs to {name:?}");
    }
    Ok(())
}
