//! What programs that move volumes' data do, object by object, as their sources say: Velero's data mover of version 1.18, in
//! a namespace of its own, VolSync's mover and populator, and KubeVirt's Containerized Data Importer.

use std::fs;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::objects::{SELECTED_NODE, claim, from_claim, from_snapshot, handle, on, pod};
use bulkhead_tests::cluster::snapshots::CONTENTS;
use serde_json::{Value, json};

use super::super::resize;
use super::placement::{set_up, with_devices};
use super::{bound_on, device, has, made, write};

cases! {
    on Cluster;
    velero_reads_a_snapshot_in_its_own_namespace,
    velero_fills_a_volume_for_another_claim,
    volsync_reads_a_copy_beside_its_cache: Recent,
    a_populator_gives_a_copy_to_the_claim_that_asked,
}

/// Another namespace, where a program has its own objects.
struct Elsewhere<'c> {
    cluster: &'c Cluster,
    name: String,
}

impl<'c> Elsewhere<'c> {
    fn make(cluster: &'c Cluster) -> Result<Self> {
        let name = format!("{}-mover", cluster.namespace);
        cluster.ask("POST", "/api/v1/namespaces", Some(&json!({ "metadata": { "name": name } })))?;
        cluster.access.wait_for_service_account(&name, "default", cluster.patience())?;
        Ok(Elsewhere { cluster, name })
    }

    fn path(&self, kind: &str, name: &str) -> String {
        let api = if kind == "volumesnapshots" { "apis/snapshot.storage.k8s.io" } else { "api" };
        format!("/{api}/v1/namespaces/{}/{kind}/{name}", self.name)
    }

    fn create(&self, kind: &str, object: &Value) -> Result<Value> {
        let path = self.path(kind, "");
        self.cluster.ask("POST", path.trim_end_matches('/'), Some(object))
    }

    fn delete(&self, kind: &str, name: &str) -> Result<()> {
        let path = self.path(kind, name);
        // There is no kubelet that a pod could wait for.
        let now = json!({ "gracePeriodSeconds": 0 });
        self.cluster.ask("DELETE", &path, Some(&now))?;
        self.cluster.is_gone(&path)
    }

    /// Waits until a claim is bound, and returns its PersistentVolume's name.
    fn bound(&self, claim: &str) -> Result<String> {
        let path = self.path("persistentvolumeclaims", claim);
        self.cluster.access.wait(self.cluster.patience(), &format!("{claim} to be bound"), || {
            let found = self.cluster.ask("GET", &path, None)?;
            ensure!(found["status"]["phase"] == "Bound", "it is {found}");
            Ok(found["spec"]["volumeName"].as_str().context("a volume")?.to_owned())
        })
    }

    /// Waits until a pod is placed, and checks that it is on this node.
    fn placed(&self, pod: &str, node: &str) -> Result<()> {
        let path = self.path("pods", pod);
        let found = self.cluster.access.wait(self.cluster.patience(), &format!("{pod} to be placed"), || {
            let found = self.cluster.ask("GET", &path, None)?;
            Ok(found["spec"]["nodeName"].as_str().context("it is on no node")?.to_owned())
        })?;
        ensure!(found == node, "{pod} is on {found}, not on {node}");
        Ok(())
    }

    fn remove(self) -> Result<()> {
        self.cluster.ask("DELETE", &format!("/api/v1/namespaces/{}", self.name), None).map(drop)
    }
}

/// A backup: the snapshot is taken out of the user's namespace by its handle, and read through a claim there.
fn velero_reads_a_snapshot_in_its_own_namespace(cluster: &mut Cluster) -> Result<()> {
    let (_, second) = set_up(cluster)?;
    let theirs = cluster.snapshot_ready("monday")?;
    let snapshot = cluster.ask("GET", &format!("{}/monday", cluster.snapshots()), None)?;
    let mover = Elsewhere::make(cluster)?;
    let name = format!("{}-backup", cluster.namespace);
    let object = mover.create(
        "volumesnapshots",
        &json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": { "name": "backup" },
            "spec": {
                "source": { "volumeSnapshotContentName": name },
                "volumeSnapshotClassName": snapshot["spec"]["volumeSnapshotClassName"],
            },
        }),
    )?;
    let handle = &theirs["status"]["snapshotHandle"];
    let reference = ["name", "namespace", "uid", "resourceVersion"];
    let reference: Value =
        reference.map(|field| (field.to_owned(), object["metadata"][field].clone())).into_iter().collect();
    let content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {
            "name": name,
            "annotations": { "snapshot.storage.kubernetes.io/allow-volume-mode-change": "true" },
        },
        "spec": {
            "driver": theirs["spec"]["driver"], "deletionPolicy": "Delete", "source": { "snapshotHandle": handle },
            "volumeSnapshotClassName": theirs["spec"]["volumeSnapshotClassName"], "volumeSnapshotRef": reference,
        },
    });
    cluster.ask("POST", CONTENTS, Some(&content))?;
    let path = format!("{CONTENTS}/{}", theirs["metadata"]["name"].as_str().context("a name")?);
    cluster.ask("PATCH", &path, Some(&json!({ "spec": { "deletionPolicy": "Retain" } })))?;
    cluster.delete_snapshot("monday")?;
    // The controller may have begun to delete it, as the policy said before.
    let _ = cluster.ask("DELETE", &path, None);
    cluster.is_gone(&path)?;

    mover.create("persistentvolumeclaims", &from_snapshot(device(cluster, "backup"), "backup"))?;
    mover.create("pods", &with_devices(pod("backup", &cluster.namespace, &["backup"])))?;
    has(&cluster.agents[1], &mover.bound("backup")?, "monday")?;
    mover.placed("backup", &second)?;

    let volume = mover.bound("backup")?;
    mover.delete("pods", "backup")?;
    mover.delete("persistentvolumeclaims", "backup")?;
    cluster.volume_gone(&volume)?;
    mover.delete("volumesnapshots", "backup")?;
    cluster.is_gone(&format!("{CONTENTS}/{name}"))?;
    let left = cluster.agents[1].volumes()?;
    ensure!(left.len() == 1, "more than the source is left: {left:?}");
    mover.remove()
}

/// A restore: the user's claim waits, with a selector that nothing has, until a volume that was filled elsewhere is made its.
fn velero_fills_a_volume_for_another_claim(cluster: &mut Cluster) -> Result<()> {
    const MARK: &str = "velero.io/dynamic-pv-restore";
    let node = cluster.node();
    let mut target = claim("data", &cluster.class, "16Mi");
    target["spec"]["selector"] = json!({ "matchLabels": { MARK: "data.abcde" } });
    cluster.create_claim(&target)?;
    cluster.create_pod(&pod("user", &cluster.namespace, &["data"]))?;
    cluster.access.wait_for(&cluster.claims(), "data", cluster.patience(), "to have a node", |claim| {
        let annotations = claim.metadata.annotations.as_ref();
        ensure!(annotations.and_then(|all| all.get(SELECTED_NODE)) == Some(&node), "it has {annotations:?}");
        Ok(())
    })?;

    let mover = Elsewhere::make(cluster)?;
    for (name, size) in [("restore", "16Mi"), ("restore-cache", "24Mi")] {
        mover.create("persistentvolumeclaims", &on(claim(name, &cluster.class, size), &node))?;
    }
    let mut filler = pod("restore", &cluster.namespace, &["restore", "restore-cache"]);
    filler["spec"]["nodeSelector"]["kubernetes.io/hostname"] = json!(node);
    mover.create("pods", &filler)?;
    let (filled, cache) = (mover.bound("restore")?, mover.bound("restore-cache")?);
    mover.placed("restore", &node)?;
    let inside = cluster.agents[0].rig.pool().volume(handle(&filled)).join("data");
    fs::write(inside.join("file"), "restored")?;

    cluster.patch_volume(&filled, &json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } }))?;
    mover.delete("pods", "restore")?;
    mover.delete("persistentvolumeclaims", "restore")?;
    cluster.patch_claim("data", &json!({ "spec": { "volumeName": filled } }))?;
    let ours = json!({
        "kind": "PersistentVolumeClaim", "namespace": cluster.namespace, "name": "data",
        "apiVersion": null, "uid": null, "resourceVersion": null,
    });
    cluster.patch_volume(
        &filled,
        &json!({
            "metadata": { "labels": { MARK: "data.abcde" }, "annotations": { "pv.kubernetes.io/bound-by-controller": null } },
            "spec": { "claimRef": ours },
        }),
    )?;
    cluster.volume_phase(&filled, "Bound")?;
    cluster.patch_volume(&filled, &json!({ "spec": { "persistentVolumeReclaimPolicy": "Delete" } }))?;
    ensure!(cluster.bound("data")?.metadata.name.as_ref() == Some(&filled), "the claim has another volume");
    mover.delete("persistentvolumeclaims", "restore-cache")?;
    cluster.volume_gone(&cache)?;

    resize::ask_for(cluster, "data", "32Mi")?;
    resize::has(cluster, "data", "32Mi")?;
    ensure!(fs::read_to_string(inside.join("file"))? == "restored", "the data is not what it was");
    cluster.delete_pod("user")?;
    cluster.delete_claim("data")?;
    cluster.volume_gone(&filled)?;
    let left = cluster.agents[0].volumes()?;
    ensure!(left.is_empty(), "this is left: {left:?}");
    mover.remove()
}

/// The pod of a replication has a copy, which can be on one node only, and an empty cache, which could be anywhere. VolSync
/// makes the copy in one pass and the job in another, whose pod comes from a third program: by then it is bound.
fn volsync_reads_a_copy_beside_its_cache(cluster: &mut Cluster) -> Result<()> {
    let (_, second) = set_up(cluster)?;
    let mut pods = Vec::new();
    // Enough that they would not all be placed correctly by chance.
    for number in 0..4 {
        let [copy, cache, mover] = ["src", "cache", "mover"].map(|part| format!("volsync-{number}-{part}"));
        cluster.create_claim(&from_snapshot(device(cluster, &copy), "monday"))?;
        has(&cluster.agents[1], &bound_on(cluster, &copy, &second)?, "monday")?;
        cluster.create_claim(&claim(&cache, &cluster.class, "8Mi"))?;
        let mut pod = pod(&mover, &cluster.namespace, &[&copy, &cache]);
        pod["spec"]["containers"][0]["volumeDevices"] = json!([{ "name": copy, "devicePath": "/dev/block" }]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": cache, "mountPath": "/cache" }]);
        cluster.create_pod(&pod)?;
        pods.push((copy, cache, mover));
    }
    for (_, cache, mover) in &pods {
        cluster.access.wait_for(&cluster.pods(), mover, cluster.patience(), "to be placed", |pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
            ensure!(node == Some(&second), "it is on {node:?}, not on {second}");
            Ok(())
        })?;
        bound_on(cluster, cache, &second)?;
    }
    for (copy, cache, mover) in &pods {
        cluster.delete_pod(mover)?;
        cluster.delete_claim(copy)?;
        cluster.delete_claim(cache)?;
    }
    cluster.delete_snapshot("monday")
}

/// A populator makes a copy under another name, has it grow, and gives it to the claim that asked for it, which names a
/// source that is none of ours. So do VolSync's, with a snapshot, and CDI's, with a claim.
fn a_populator_gives_a_copy_to_the_claim_that_asked(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let class = cluster.add_snapshot_class("daily", |_| {})?;
    let source = made(cluster, "source", &node)?;
    write(&cluster.agents[0], &source, "monday")?;
    cluster.snapshot("monday", "source", &class)?;
    cluster.snapshot_ready("monday")?;
    for (name, group, kind) in
        [("volsync", "volsync.backube", "ReplicationDestination"), ("importer", "cdi.kubevirt.io", "VolumeCloneSource")]
    {
        let mut target = on(device(cluster, name), &node);
        target["spec"]["resources"]["requests"]["storage"] = json!("32Mi");
        target["spec"]["dataSourceRef"] = json!({ "apiGroup": group, "kind": kind, "name": "source" });
        let uid = cluster.create_claim(&target)?;
        let prime = format!("prime-{name}");
        let wanted = on(device(cluster, &prime), &node);
        cluster.create_claim(&match name {
            "volsync" => from_snapshot(wanted, "monday"),
            _ => from_claim(wanted, "source"),
        })?;
        let copy = cluster.bound(&prime)?.metadata.name.context("a name")?;
        resize::ask_for(cluster, &prime, "32Mi")?;
        resize::has(cluster, &prime, "32Mi")?;
        let reference = json!({
            "apiVersion": null, "kind": null, "resourceVersion": null,
            "namespace": cluster.namespace, "name": name, "uid": uid,
        });
        cluster.patch_volume(&copy, &json!({ "spec": { "claimRef": reference } }))?;
        ensure!(cluster.bound(name)?.metadata.name.as_ref() == Some(&copy), "{name} has another volume");
        cluster.delete_claim(&prime)?;
        has(&cluster.agents[0], &copy, "monday")?;
        resize::ask_for(cluster, name, "48Mi")?;
        resize::has(cluster, name, "48Mi")?;
        cluster.delete_claim(name)?;
        cluster.volume_gone(&copy)?;
    }
    cluster.delete_snapshot("monday")
}
