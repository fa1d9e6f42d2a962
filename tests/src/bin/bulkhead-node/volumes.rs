//! A pod's use of its volumes.

use anyhow::{Context, Result, bail, ensure};
use bulkhead_tests::node::{Kubectl, eventually};
use serde_json::{Value, json};

use crate::pods::{self, CLASSES, Class, DEVICE, DIRECTORY, IDLE, Mode};
use crate::story::Story;

/// The pod with volumes of all kinds, which stays through most of the story.
pub const POD: &str = "writer";

/// Holds a file in each volume open and keeps writing to it, so that replacing the mount under it would be noticed.
const BEAT: &str = "trap exit TERM; exec 3>>/data/beat 4>>/image/beat
    while :; do echo beat >&3; echo beat >&4; sleep 1; done";

/// What is written to all volumes.
const TEXT: &str = "what was written before";

fn writer() -> Value {
    pods::with_tools(pods::with_disk(pods::pod(POD, BEAT)))
}

/// The first volumes on the node.
pub fn claims_are_bound_and_written(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    for class in CLASSES {
        kubectl.apply(&class.claim().to_string())?;
    }
    kubectl.apply(&pods::claim("disk", "bulkhead", Mode::Block, "64Mi").to_string())?;
    kubectl.apply(&writer().to_string())?;
    kubectl.wait_ready(&[POD])?;
    let [files, image] = CLASSES.map(|class| class.directory);
    kubectl.exec(POD, &format!("echo {TEXT} | tee {files}/text {image}/text | dd of={DEVICE} conv=fsync && sync"))?;
    check_text(kubectl)?;
    check_sizes(kubectl, CLASSES.map(|class| class.sizes[0]), 64)
}

/// All volumes still contain what was written first.
pub fn check_text(kubectl: &Kubectl) -> Result<()> {
    check_text_in(kubectl, POD)
}

fn check_text_in(kubectl: &Kubectl, pod: &str) -> Result<()> {
    let [files, image] = CLASSES.map(|class| class.directory);
    let read = kubectl.exec(pod, &format!("cat {files}/text {image}/text && head -c {} {DEVICE}", TEXT.len()))?;
    ensure!(read == format!("{TEXT}\n{TEXT}\n{TEXT}"), "the volumes of {pod} hold {read:?}");
    Ok(())
}

/// The container that is running now: it does not change unless it ends.
pub fn container(kubectl: &Kubectl) -> Result<String> {
    let pod = kubectl.get(&["pod", POD])?;
    Ok(pod["status"]["containerStatuses"][0]["containerID"].as_str().context("no container runs")?.to_owned())
}

/// The pod's process keeps writing to the files that it has open.
pub fn check_beat(kubectl: &Kubectl) -> Result<()> {
    let [files, image] = CLASSES.map(|class| class.directory);
    let beats = || -> Result<Vec<u64>> {
        let counted = kubectl.exec(POD, &format!("for d in {files} {image}; do wc -l <$d/beat; done"))?;
        counted.split_whitespace().map(|count| Ok(count.parse()?)).collect()
    };
    let before = beats()?;
    eventually(|| {
        let now = beats()?;
        let goes_on = before.iter().zip(&now).all(|(before, now)| now > before);
        ensure!(goes_on && now.len() == CLASSES.len(), "the pod has stopped writing: {before:?}, {now:?} lines");
        Ok(())
    })
}

/// The sizes of the volumes in MiB, as the pod sees them.
fn check_sizes(kubectl: &Kubectl, mounted: [u64; 2], disk: u64) -> Result<()> {
    for (class, mebibytes) in CLASSES.iter().zip(mounted) {
        let told = kubectl.exec(POD, &format!("df -P -k {} | tail -n 1", class.directory))?;
        let kibibytes = told.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
        let wanted = (mebibytes - class.log) << 10;
        ensure!(kibibytes == Some(wanted), "{} has {told:?}, not {wanted} KiB", class.directory);
    }
    let device = kubectl.exec(POD, &format!("blockdev --getsize64 {DEVICE}"))?;
    ensure!(device.trim().parse() == Ok(disk << 20), "the device has {device} bytes, not {disk} MiB");
    Ok(())
}

/// A full volume looks like a full disk to its pod, while the pool has space left.
pub fn the_quota_is_felt(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    for Class { directory, sizes: [size, _], log, .. } in CLASSES {
        let fill =
            format!("dd if=/dev/zero of={directory}/full bs=1M count={} 2>&1; wc -c <{directory}/full", size + 16);
        let told = kubectl.exec(POD, &fill)?;
        let refused = told.contains("No space left on device") || told.contains("Disk quota exceeded");
        ensure!(refused, "nothing kept the pod from writing: {told}");
        let written: u64 =
            told.lines().last().and_then(|line| line.trim().parse().ok()).context("dd printed no size")?;
        // A filesystem has more that is its own than the log.
        let most = size - log;
        let least = most - 4 - log / 4;
        ensure!((least << 20..=most << 20).contains(&written), "the pod could write {written} bytes to {directory}");
        kubectl.exec(POD, &format!("rm {directory}/full && echo again >{directory}/again"))?;
    }
    let beyond = kubectl.exec(POD, &format!("dd if=/dev/zero of={DEVICE} bs=1M seek=64 count=1 2>&1 || true"))?;
    ensure!(beyond.contains("No space left on device"), "a write beyond the device's end: {beyond}");
    check_text(kubectl)
}

/// A second pod has the same volumes, and cannot write to them.
pub fn read_only_is_read_only(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    // The device would still be in use read-write by the writer: a volume is published in only one way at a time.
    kubectl.delete(&["pod", POD])?;
    kubectl.apply(&pods::read_only(pods::with_disk(pods::pod("reader", IDLE))).to_string())?;
    kubectl.wait_ready(&["reader"])?;
    check_text_in(kubectl, "reader")?;
    let [files, image] = CLASSES.map(|class| class.directory);
    for write in [
        format!("touch {files}/new"),
        format!("rm {files}/text"),
        format!("touch {image}/new"),
        format!("rm {image}/text"),
        format!("echo x >{DEVICE}"),
    ] {
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
    kubectl.apply(&writer().to_string())?;
    kubectl.wait_ready(&[POD])?;
    check_text(kubectl)
}

/// An expansion reaches the pod while it is running.
pub fn expansion_is_seen_in_the_pod(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    let before = container(kubectl)?;
    let mounted = CLASSES.map(|class| (class.claim, class.sizes[1]));
    for (claim, size) in mounted.into_iter().chain([("disk", 96)]) {
        let patch = json!({ "spec": { "resources": { "requests": { "storage": format!("{size}Mi") } } } });
        kubectl.run(&["patch", "pvc", claim, "--patch", &patch.to_string()])?;
    }
    for (claim, size) in mounted.into_iter().chain([("disk", 96)]) {
        let grown = format!("--for=jsonpath={{.status.capacity.storage}}={size}Mi");
        kubectl
            .run(&["wait", &grown, "--timeout=120s", "pvc", claim])
            .with_context(|| kubectl.describe("pvc", claim))?;
    }
    eventually(|| check_sizes(kubectl, mounted.map(|(_, size)| size), 96))?;
    for Class { directory, sizes: [before, now], log, .. } in CLASSES {
        let more = (before + now) / 2 - log;
        kubectl.exec(POD, &format!("dd if=/dev/zero of={directory}/more bs=1M count={more} && rm {directory}/more"))?;
    }
    kubectl.exec(POD, &format!("dd if=/dev/zero of={DEVICE} bs=1M seek=90 count=6 conv=fsync"))?;
    check_text(kubectl)?;
    ensure!(container(kubectl)? == before, "the pod's container was restarted");
    Ok(())
}

/// Other attributes reach the pod while it is running, as the page says.
pub fn attributes_are_seen_in_the_pod(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    let before = container(kubectl)?;
    let claim = CLASSES[0].claim;
    for inodes in ["5000", "700"] {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": { "name": inodes },
            "driverName": "bulkhead.csi.local", "parameters": { "inodes": inodes },
        });
        kubectl.apply(&class.to_string())?;
        let patch = json!({ "spec": { "volumeAttributesClassName": inodes } });
        kubectl.run(&["patch", "pvc", claim, "--patch", &patch.to_string()])?;
        let modified = format!("--for=jsonpath={{.status.currentVolumeAttributesClassName}}={inodes}");
        kubectl
            .run(&["wait", &modified, "--timeout=120s", "pvc", claim])
            .with_context(|| kubectl.describe("pvc", claim))?;
        let shown = kubectl.exec(POD, &format!("df -i {DIRECTORY}"))?;
        let total = shown.lines().last().and_then(|line| line.split_whitespace().nth(1)).context("no total")?;
        // The volume's own directory counts as one.
        ensure!(total.parse() == Ok(inodes.parse::<u64>()? + 1), "the pod sees: {shown}");
    }
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
