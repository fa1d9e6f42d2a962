//! Health, as Kubernetes 1.37 shows it to whoever looks at a pod or a node: what can be brought about on a node without
//! harm. docs/errors.md has all of it.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::node::{Kubectl, NAME, eventually};
use serde_json::Value;

use crate::copies;
use crate::restarts::HELPER;
use crate::story::Story;
use crate::tenants::volume_of;
use crate::volumes::POD;

const POOL: &str = "/srv/bulkhead/default";

/// A pod of its own, whose volume fails.
const SICK: &str = "sick";

/// A state: the status and the reason.
type Shown = (&'static str, &'static str);

/// What is shown of a pod, of that other pod, and of the node.
type Expected = [&'static [Shown]; 3];

const WELL: Expected = [&[], &[], &[]];

/// Everything that does not exclude the rest.
const ILL: Expected = [
    &[("Degraded", "OtherLimits"), ("DataLoss", "ImageSize")],
    &[("Inaccessible", "FilesystemShutDown")],
    &[("StorageDegraded", "DefaultLimits"), ("StorageDegraded", "QuotaEvasion"), ("StorageDegraded", "Overpromised")],
];

/// The same once the helper does not answer: what is known stays as it was.
const UNKNOWN: Expected = [
    ILL[0],
    ILL[1],
    &[
        ("StorageDegraded", "DefaultLimits"),
        ("StorageDegraded", "QuotaEvasion"),
        ("StorageDegraded", "Overpromised"),
        ("StorageDegraded", "HelperAway"),
    ],
];

/// Quotas that are off are all that can be seen of quotas.
const WITHOUT_QUOTAS: Expected = [&[], &[], &[("StorageDegraded", "QuotasOff")]];

pub fn conditions_are_shown(story: &mut Story<'_>) -> Result<()> {
    let (kubectl, machine) = (&story.node.kubectl, &story.node.machine);
    copies::started(kubectl, SICK, None)?;
    eventually(|| are_shown(kubectl, &WELL))?;
    let directory = |claim: &str| -> Result<String> {
        let object = kubectl.get(&["pv", &volume_of(kubectl, claim)?])?;
        Ok(format!("{POOL}/{}", object["spec"]["csi"]["volumeHandle"].as_str().context("no volume")?))
    };
    let attributes = machine.run(&format!("lsattr -pd {}/data", directory("files")?))?;
    let project = attributes.split_whitespace().next().context("no project")?;
    let image = format!("{}/image", directory("disk")?);
    let size: u64 = machine.run(&format!("stat --format %s {image}"))?.trim().parse()?;
    let mounted = format!("/var/lib/kubelet/pods/*/volumes/kubernetes.io~csi/{}/mount", volume_of(kubectl, SICK)?);
    machine.run(&format!("xfs_io -x -c shutdown {mounted}"))?;
    let quota = |command: &str| machine.run(&format!("xfs_quota -x -c '{command}' {POOL}"));

    quota(&format!("limit -p bsoft=1m {project}"))?;
    quota("limit -p -d bhard=64g")?;
    // Nothing was written to the end of the device.
    machine.run(&format!("truncate -s {} {image}", size - 4096))?;
    machine
        .run(&format!("touch {POOL}/Stray && chattr -p 114711 {POOL}/Stray && fallocate -l 1048576 {POOL}/Stray"))?;
    machine.run(&format!("fallocate -l $(($(stat -f -c '%a*%S' {POOL}) - 8388608)) {POOL}/Filler"))?;
    let shown = eventually(|| are_shown(kubectl, &ILL)).and_then(|()| {
        machine.run(&format!("kill -STOP $({HELPER})"))?;
        let shown = eventually(|| are_shown(kubectl, &UNKNOWN));
        machine.run(&format!("kill -CONT $({HELPER})"))?;
        shown
    });
    machine.run(&format!("rm {POOL}/Stray {POOL}/Filler && fallocate -o {} -l 4096 {image}", size - 4096))?;
    quota(&format!("limit -p bsoft=0 {project}"))?;
    quota("limit -p -d bhard=0")?;
    shown?;
    kubectl.delete(&["pod", SICK])?;
    kubectl.delete(&["pvc", SICK])?;

    quota("disable -p")?;
    let shown = eventually(|| are_shown(kubectl, &WITHOUT_QUOTAS));
    quota("enable -p")?;
    shown?;
    eventually(|| are_shown(kubectl, &WELL))
}

/// The pods' status, and that of the node's CSINode, say this and nothing else.
fn are_shown(kubectl: &Kubectl, [of_pod, of_sick, of_node]: &Expected) -> Result<()> {
    for (pod, expected) in [(POD, of_pod), (SICK, of_sick)] {
        let told = match kubectl.gone(&["pod", pod]) {
            Ok(()) => Value::Null,
            Err(_) => kubectl.get(&["pod", pod])?["status"]["volumeHealth"].clone(),
        };
        ensure!(states(&told) == expected.iter().copied().collect(), "the volumes of {pod}: {told}");
    }
    let told = &kubectl.get(&["csinode", NAME])?["status"]["storageHealth"];
    ensure!(states(told) == of_node.iter().copied().collect(), "the node's storage: {told}");
    Ok(())
}

fn states(told: &Value) -> BTreeSet<(&str, &str)> {
    let conditions = told.as_array().into_iter().flatten().flat_map(|entry| entry["healthConditions"].as_array());
    let state = |condition| (word(condition, "status"), word(condition, "reason"));
    conditions.flatten().map(state).collect()
}

fn word<'a>(condition: &'a Value, name: &str) -> &'a str {
    condition[name].as_str().unwrap_or_default()
}
