//! What pods ask of their volumes besides room: a group, a part of one, programs, labels; and what the kubelet measures.

use anyhow::{Context, Result, ensure};
use bulkhead_tests::node::{Kubectl, NAME, eventually};
use serde_json::{Value, json};

use crate::pods::{self, CLASSES, Class, IDLE};
use crate::story::Story;
use crate::volumes::POD;

/// The user and the groups of a pod that is not root.
const USER: u32 = 1000;
const GROUP: u32 = 2000;

/// The directory of each volume that a pod has mounted in addition.
const PART: &str = "inner/deep";

/// A pod that is not root has volumes of all classes twice: the whole, and a directory in it, which the kubelet makes.
fn unprivileged() -> Value {
    let mounts = CLASSES.map(|Class { claim, directory, .. }| {
        [
            json!({ "name": claim, "mountPath": directory }),
            json!({ "name": claim, "mountPath": format!("{directory}-part"), "subPath": PART }),
        ]
    });
    let claims = CLASSES.map(|class| class.claim);
    let mut pod = pods::pod_of("tenant", IDLE, &claims, &json!(mounts.concat()));
    pod["spec"]["securityContext"] = json!({ "runAsUser": USER, "runAsGroup": USER, "fsGroup": GROUP });
    pod
}

/// The kubelet gives the volumes, with all that is in them, to the pod's group, while another pod has them too. What is
/// executable runs from there.
pub fn a_pod_that_is_not_root(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    kubectl.apply(&unprivileged().to_string())?;
    kubectl.wait_ready(&["tenant"])?;
    for Class { directory, .. } in CLASSES {
        let expect = |command: String, wanted: &str| -> Result<()> {
            let told = kubectl.exec("tenant", &command)?;
            ensure!(told.trim() == wanted, "`{command}` prints {told:?}, not {wanted:?}");
            Ok(())
        };
        expect(format!("stat -c %u:%g:%a {directory}"), &format!("0:{GROUP}:2775"))?;
        expect(format!("stat -c %u:%g:%a {directory}/text"), &format!("0:{GROUP}:664"))?;
        expect(format!("stat -c %u:%g:%a {directory}-part"), &format!("0:{GROUP}:2775"))?;
        let file = format!("{directory}-part/file");
        expect(format!("echo mine >{file} && stat -c %u:%g {directory}/{PART}/file"), &format!("{USER}:{GROUP}"))?;
        // The shell is one program with many names.
        let program = format!("{directory}/sh");
        expect(format!("cp -L /proc/self/exe {program} && chmod 755 {program} && {program} -c 'echo runs'"), "runs")?;
        let script = format!("{directory}/script");
        expect(format!("printf '#!/bin/sh\\necho runs' >{script} && chmod 755 {script} && {script}"), "runs")?;
        kubectl.exec("tenant", &format!("rm -r {program} {script} {file}"))?;
    }
    kubectl.delete(&["pod", "tenant"])
}

/// Maps a mount for a user namespace, as container runtimes do for pods with `hostUsers: false`: clones it, maps the clone by
/// the process's namespace, and attaches that elsewhere.
const MAP: &str = r#"
my ($source, $place, $process) = @ARGV;
open(my $namespace, "<", "/proc/$process/ns/user") or die "its namespace: $!";
my $nothing = "";
my $tree = syscall(428, -100, $source, 0x80001);
die "open_tree: $!" if $tree < 0;
my $attributes = pack("Q4", 0x100000, 0, 0, fileno($namespace));
syscall(442, $tree, $nothing, 0x1000, $attributes, 32) == 0 or die "mount_setattr: $!";
syscall(429, $tree, $nothing, -100, $place, 4) == 0 or die "move_mount: $!";
"#;

/// Volumes can be mapped for pods with a user namespace of their own. The node's container runtime is too old for such pods,
/// so this does what a newer one does with a volume.
pub fn volumes_are_mapped_for_user_namespaces(story: &mut Story<'_>) -> Result<()> {
    let (kubectl, machine) = (&story.node.kubectl, &story.node.machine);
    for class in &CLASSES {
        let target =
            format!("/var/lib/kubelet/pods/*/volumes/kubernetes.io~csi/{}/mount", volume_of(kubectl, class.claim)?);
        let told = machine.run(&format!(
            "set -e
            mkdir -p /run/mapped
            unshare --user sleep 60 & process=$!
            trap 'umount /run/mapped; rmdir /run/mapped; kill $process' EXIT
            until [ \"$(readlink /proc/$process/ns/user)\" != \"$(readlink /proc/self/ns/user)\" ]; do sleep 0.1; done
            echo 0 70000 65536 >/proc/$process/uid_map && echo 0 70000 65536 >/proc/$process/gid_map
            perl -e '{MAP}' {target} /run/mapped $process
            stat -c %u /run/mapped/text
            setpriv --reuid 70000 --regid 70000 --clear-groups touch /run/mapped/mapped
            stat -c %u {target}/mapped
            rm {target}/mapped"
        ))?;
        ensure!(told == "70000\n0\n", "{}: {told}", class.claim);
    }
    Ok(())
}

/// SELinux: a mount option that would label a volume is refused where it cannot be kept: for a directory of the pool, in a class
/// too, and where SELinux is off, in a PersistentVolume that somebody has edited.
pub fn a_label_for_a_mount_is_refused(story: &mut Story<'_>) -> Result<()> {
    const OPTION: &str = "context=\"system_u:object_r:container_file_t:s0\"";
    let kubectl = &story.node.kubectl;
    let labelled = |class: &Class| format!("labelled-{}", class.claim);
    let mut copy = kubectl.get(&["storageclass", CLASSES[0].name])?;
    copy["metadata"] = json!({ "name": labelled(&CLASSES[0]) });
    copy["mountOptions"] = json!([OPTION]);
    kubectl.apply(&copy.to_string())?;
    for class in &CLASSES {
        edit_options(kubectl, class, &json!([OPTION]))?;
        let mounts = json!([{ "name": class.claim, "mountPath": "/data" }]);
        kubectl.apply(&pods::pod_of(&labelled(class), "sleep 60", &[class.claim], &mounts).to_string())?;
    }
    // The latter is in use by another pod, without a label.
    let reasons = ["use a class with backing: image", "is published without an SELinux context"];
    for (class, reason) in CLASSES.iter().zip(reasons) {
        let name = labelled(class);
        happens(kubectl, &["events", "--for", &format!("pod/{name}")], "FailedMount", reason)?;
        kubectl.delete(&["pod", &name])?;
        edit_options(kubectl, class, &Value::Null)?;
    }
    // Without the right to make volumes of the class, the agent would say that instead.
    let class = labelled(&CLASSES[0]);
    happens(kubectl, &["get", "events", "--all-namespaces"], "StorageClassInvalid", &class)?;
    kubectl.delete(&["storageclass", &class])
}

fn edit_options(kubectl: &Kubectl, class: &Class, options: &Value) -> Result<()> {
    let patch = json!({ "spec": { "mountOptions": options } }).to_string();
    kubectl.run(&["patch", "pv", &volume_of(kubectl, class.claim)?, "--type=merge", "--patch", &patch]).map(drop)
}

/// The PersistentVolume of a claim.
pub fn volume_of(kubectl: &Kubectl, claim: &str) -> Result<String> {
    let claim = kubectl.get(&["pvc", claim])?;
    Ok(claim["spec"]["volumeName"].as_str().context("the claim has no volume")?.to_owned())
}

fn happens(kubectl: &Kubectl, look: &[&str], reason: &str, text: &str) -> Result<()> {
    eventually(|| {
        let events = kubectl.run(look)?;
        ensure!(
            events.lines().any(|line| line.contains(reason) && line.contains(text)),
            "no event {reason} says {text:?}:\n{events}"
        );
        Ok(())
    })
}

/// The kubelet's own statistics of the volumes: of their quotas, or of the filesystems in them.
pub fn the_kubelet_measures(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    let path = format!("/api/v1/nodes/{NAME}/proxy/stats/summary");
    eventually(|| {
        let summary: Value = serde_json::from_str(&kubectl.run(&["get", "--raw", &path])?)?;
        let pods = summary["pods"].as_array().context("no pods")?;
        let writer = pods.iter().find(|pod| pod["podRef"]["name"] == POD).context("nothing about the pod")?;
        for Class { claim, sizes: [_, size], log, .. } in CLASSES {
            let volumes = writer["volume"].as_array().context("nothing about its volumes")?;
            let of_claim = volumes.iter().find(|volume| volume["pvcRef"]["name"] == claim);
            let volume = of_claim.with_context(|| format!("nothing about {claim}"))?;
            let number = |name: &str| volume[name].as_u64().with_context(|| format!("{claim} has no {name}"));
            ensure!(number("capacityBytes")? == (size - log) << 20, "{volume}");
            ensure!(number("usedBytes")? + number("availableBytes")? == number("capacityBytes")?, "{volume}");
            ensure!(number("usedBytes")? > 0 && number("inodesUsed")? > 0 && number("inodesFree")? > 0, "{volume}");
            ensure!(number("inodesUsed")? + number("inodesFree")? == number("inodes")?, "{volume}");
        }
        Ok(())
    })
}
