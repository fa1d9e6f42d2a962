//! Volumes in images that the kubelet has mounted with the SELinux label of their pod (`seLinuxMount`): nobody labels their
//! files, and pods with other categories do not get at them.

use anyhow::{Context, Result, ensure};
use bulkhead_tests::node::{Kubectl, NAME, eventually};
use serde_json::{Value, json};

use crate::copies::take_snapshot;
use crate::deployment;
use crate::pods::{self, CLASSES, Class, DIRECTORY, IDLE, Mode};
use crate::story::Story;
use crate::tenants::volume_of;
use crate::volumes::POD;

/// The class whose volumes can be mounted so.
const CLASS: Class = CLASSES[1];

/// The levels of two tenants.
const ONE: &str = "s0:c100,c200";
const OTHER: &str = "s0:c300,c400";

/// From now on the kubelet mounts the volumes of pods that name a level with that. No other pod notices.
pub fn the_kubelet_is_asked_for_labels(story: &mut Story<'_>) -> Result<()> {
    let patch = json!({ "spec": { "seLinuxMount": true } }).to_string();
    story.node.kubectl.run(&["patch", "csidriver", "bulkhead.csi.local", "--type=merge", "--patch", &patch]).map(drop)
}

fn claim(name: &str, access: &str, source: Option<Value>) -> Value {
    let mut claim = pods::claim(name, CLASS.name, Mode::Filesystem, &format!("{}Mi", CLASS.sizes[0]));
    claim["spec"]["accessModes"] = json!([access]);
    if let Some(source) = source {
        claim["spec"]["dataSource"] = source;
    }
    claim
}

/// A pod with this claim at a level.
fn pod(name: &str, claim: &str, level: &str) -> Value {
    let mounts = json!([{ "name": claim, "mountPath": DIRECTORY }]);
    at_level(pods::pod_of(name, IDLE, &[claim], &mounts), level)
}

fn at_level(mut pod: Value, level: &str) -> Value {
    pod["spec"]["securityContext"] = json!({ "seLinuxOptions": { "level": level } });
    pod
}

fn start(kubectl: &Kubectl, name: &str, pod: &Value) -> Result<()> {
    kubectl.apply(&pod.to_string())?;
    kubectl.wait_ready(&[name])
}

/// The filesystem of a claim is mounted with this label, the file in it has that too, and the pod reads it.
fn check_label(story: &Story<'_>, pod: &str, claim: &str, level: &str) -> Result<()> {
    let (kubectl, machine) = (&story.node.kubectl, &story.node.machine);
    let target = format!("/kubernetes.io~csi/{}/mount ", volume_of(kubectl, claim)?);
    let mounts = machine.run(&format!("grep -F '{target}' /proc/self/mountinfo"))?;
    let label = format!("system_u:object_r:container_file_t:{level}");
    let is_labelled = |line: &str| line.contains(&format!(",context=\"{label}\""));
    ensure!(mounts.lines().count() > 0 && mounts.lines().all(is_labelled), "{claim} is mounted so:\n{mounts}");
    let point = mounts.split(' ').nth(4).context("no mount point")?;
    let file = machine.run(&format!("stat -c %C {point}/secret"))?;
    ensure!(file.trim() == label, "the file is labelled {file}");
    let read = kubectl.exec(pod, &format!("cat {DIRECTORY}/secret"))?;
    ensure!(read.trim() == "mine", "{pod} reads {read:?}");
    Ok(())
}

/// A pod's volume is mounted with the pod's label, and stays so whatever becomes of it; what is copied from it, and what is
/// mounted for the next pod, has that one's label.
pub fn a_volume_has_the_label_of_its_pod(story: &mut Story<'_>) -> Result<()> {
    let (kubectl, machine) = (&story.node.kubectl, &story.node.machine);
    kubectl.apply(&claim("labelled", "ReadWriteOncePod", None).to_string())?;
    start(kubectl, "first", &pod("first", "labelled", ONE))?;
    kubectl.exec("first", &format!("echo mine >{DIRECTORY}/secret && sync"))?;
    check_label(story, "first", "labelled", ONE)?;
    machine.run("pkill -KILL -x bulkhead-privhe")?;
    eventually(|| machine.run("pgrep -x bulkhead-privhe").map(drop))?;
    deployment::wait_until_ready(story.node)?;
    // It finds the mount as it was, and needs it for both.
    let size = CLASS.sizes[1];
    let patch = json!({ "spec": { "resources": { "requests": { "storage": format!("{size}Mi") } } } }).to_string();
    kubectl.run(&["patch", "pvc", "labelled", "--patch", &patch])?;
    let grown = format!("--for=jsonpath={{.status.capacity.storage}}={size}Mi");
    kubectl
        .run(&["wait", &grown, "--timeout=120s", "pvc", "labelled"])
        .with_context(|| kubectl.describe("pvc", "labelled"))?;
    take_snapshot(kubectl, "labelled")?;
    check_label(story, "first", "labelled", ONE)?;

    let of_snapshot = json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "labelled" });
    let of_claim = json!({ "kind": "PersistentVolumeClaim", "name": "labelled" });
    for (name, source) in [("of-snapshot", of_snapshot), ("of-claim", of_claim)] {
        let mut copy = claim(name, "ReadWriteOncePod", Some(source));
        copy["spec"]["resources"]["requests"]["storage"] = json!(format!("{size}Mi"));
        kubectl.apply(&copy.to_string())?;
        start(kubectl, name, &pod(name, name, OTHER))?;
        check_label(story, name, name, OTHER)?;
    }
    check_label(story, "first", "labelled", ONE)?;

    kubectl.delete(&["pod", "first"])?;
    start(kubectl, "next", &pod("next", "labelled", OTHER))?;
    check_label(story, "next", "labelled", OTHER)?;
    kubectl.delete(&["pod", "next", "of-snapshot", "of-claim"])?;
    check_unlabelled(story, "labelled")?;
    kubectl.delete(&["volumesnapshot", "labelled"])?;
    kubectl.delete(&["pvc", "labelled", "of-snapshot", "of-claim"])
}

/// No file in the image of this claim has a label of its own: nobody has ever given it one. Those in the image of another claim
/// have, which the container runtime labels for its pod.
fn check_unlabelled(story: &Story<'_>, claim: &str) -> Result<()> {
    let (kubectl, machine) = (&story.node.kubectl, &story.node.machine);
    kubectl.exec(POD, "sync")?;
    let labels = |claim: &str| -> Result<u64> {
        let volume = kubectl.get(&["pv", &volume_of(kubectl, claim)?])?;
        let id = volume["spec"]["csi"]["volumeHandle"].as_str().context("no handle")?;
        let image = format!("/srv/bulkhead/default/{id}/image");
        // Labels are texts, and a small file keeps its own beside all else that the filesystem has of it.
        let counted = machine.run(&format!("grep -a -c ':container_file_t:' {image} || test $? = 1"))?;
        counted.trim().parse().with_context(|| format!("grep counts {counted:?}"))
    };
    let (own, runtimes) = (labels(claim)?, labels(CLASS.claim)?);
    ensure!(own == 0 && runtimes > 0, "{own} lines with labels in the image, and {runtimes} in one that is labelled");
    Ok(())
}

/// How often the kubelet has found that a pod cannot have a volume which another pod has with another label.
fn mismatches(kubectl: &Kubectl) -> Result<f64> {
    let metrics = kubectl.run(&["get", "--raw", &format!("/api/v1/nodes/{NAME}/proxy/metrics")])?;
    let ours = |line: &&str| {
        line.starts_with("volume_manager_selinux_volume_context_mismatch_errors_total{")
            && line.contains("bulkhead.csi.local")
    };
    let values = metrics.lines().filter(ours).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    Ok(values.sum())
}

/// A pod that wants a volume with another label waits until whoever has it is gone.
pub fn a_pod_with_another_label_waits(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    let before = mismatches(kubectl)?;
    kubectl.apply(&claim("shared", "ReadWriteOnce", None).to_string())?;
    start(kubectl, "one", &pod("one", "shared", ONE))?;
    kubectl.exec("one", &format!("echo mine >{DIRECTORY}/secret && sync"))?;
    start(kubectl, "beside", &pod("beside", "shared", ONE))?;
    check_label(story, "beside", "shared", ONE)?;
    kubectl.apply(&pod("other", "shared", OTHER).to_string())?;
    eventually(|| {
        ensure!(mismatches(kubectl)? > before, "the kubelet has not refused it: {}", kubectl.describe("pod", "other"));
        Ok(())
    })?;
    check_label(story, "one", "shared", ONE)?;
    kubectl.delete(&["pod", "one", "beside"])?;
    kubectl.wait_ready(&["other"])?;
    check_label(story, "other", "shared", OTHER)?;
    kubectl.delete(&["pod", "other"])?;
    kubectl.delete(&["pvc", "shared"])
}

/// Whoever is shown the volume of a pod by the host does not get at it without its categories. This is denied, and logged.
pub fn other_categories_are_denied(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    kubectl.apply(&claim("kept", "ReadWriteOncePod", None).to_string())?;
    start(kubectl, "owner", &pod("owner", "kept", ONE))?;
    kubectl.exec("owner", &format!("echo mine >{DIRECTORY}/secret && chmod 666 {DIRECTORY}/secret && sync"))?;
    let owner = kubectl.get(&["pod", "owner"])?;
    let uid = owner["metadata"]["uid"].as_str().context("no uid")?;
    let target = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/{}/mount", volume_of(kubectl, "kept")?);
    for (name, level) in [("friend", ONE), ("thief", OTHER)] {
        let mut pod =
            at_level(pods::pod_of(name, IDLE, &[], &json!([{ "name": "host", "mountPath": "/host" }])), level);
        pod["spec"]["volumes"] = json!([{ "name": "host", "hostPath": { "path": target } }]);
        start(kubectl, name, &pod)?;
    }
    let read = kubectl.exec("friend", "cat /host/secret")?;
    ensure!(read.trim() == "mine", "who has the categories reads {read:?}");
    for attempt in ["cat /host/secret", "echo theirs >/host/secret", "touch /host/new", "ls /host"] {
        let told = kubectl.exec("thief", attempt);
        ensure!(
            told.as_ref().is_err_and(|error| error.to_string().contains("Permission denied")),
            "`{attempt}`: {told:?}"
        );
    }
    kubectl.delete(&["pod", "owner", "friend", "thief"])?;
    kubectl.delete(&["pvc", "kept"])?;
    eventually(|| kubectl.gone(&["pv"]))
}
