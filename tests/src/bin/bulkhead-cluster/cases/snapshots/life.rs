//! From a VolumeSnapshot to a snapshot, to a volume, and to the end of each.

use std::fs;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::manifests;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{claim, from_claim, from_snapshot, on};
use bulkhead_tests::cluster::snapshots::{BEING_CREATED, CONTENTS, MANAGED_BY};
use bulkhead_tests::documented::{BACKUPS, blocks, section};
use bulkhead_tests::expect::same;
use serde_json::json;

use super::{device, has, made, write};

cases! {
    on Cluster;
    a_snapshot_is_taken_and_restored,
    a_volume_is_cloned,
    a_snapshot_outlives_its_volume,
    a_retained_snapshot_stays_and_is_found_again,
    what_an_agent_had_begun_is_finished,
    what_was_never_said_is_deleted_nevertheless,
    what_is_documented_works: Bare + Recent,
}

fn a_snapshot_is_taken_and_restored(cluster: &mut Cluster) -> Result<()> {
    let (class, node) = (cluster.add_snapshot_class("daily", |_| {})?, cluster.node());
    let object = made(cluster, "data", &node)?;
    write(&cluster.agents[0], &object, "monday")?;
    cluster.snapshot("monday", "data", &class)?;
    let content = cluster.snapshot_ready("monday")?;
    let uid = content["spec"]["volumeSnapshotRef"]["uid"].as_str().context("a uid")?;
    same("the handle", &content["status"]["snapshotHandle"], json!(format!("snapshot-{uid}")))?;
    same("the size", &content["status"]["restoreSize"], json!(16 << 20))?;
    ensure!(content["status"]["creationTime"].as_i64() > Some(1_600_000_000_000_000_000), "{}", content["status"]);
    // No snapshot controller says so here.
    for label in [MANAGED_BY, TOPOLOGY_KEY] {
        same(label, &content["metadata"]["labels"][label], json!(node))?;
    }
    let path = format!("{CONTENTS}/{}", content["metadata"]["name"].as_str().context("a name")?);
    cluster.access.wait(cluster.patience(), "nothing to be in progress", || {
        let content = cluster.ask("GET", &path, None)?;
        ensure!(content["metadata"]["annotations"][BEING_CREATED].is_null(), "{}", content["metadata"]);
        Ok(())
    })?;
    write(&cluster.agents[0], &object, "friday")?;
    cluster.create_claim(&on(from_snapshot(device(cluster, "back"), "monday"), &node))?;
    let back = cluster.bound("back")?.metadata.name.context("a name")?;
    has(&cluster.agents[0], &back, "monday")?;
    has(&cluster.agents[0], &object, "friday")?;
    ensure!(cluster.agents[0].volumes()?.len() == 3, "{:?}", cluster.agents[0].volumes()?);
    cluster.delete_snapshot("monday")?;
    cluster.is_gone(&path)?;
    let left = cluster.agents[0].volumes()?;
    ensure!(left.len() == 2 && !left.iter().any(|name| name.starts_with("snapshot-")), "{left:?}");
    has(&cluster.agents[0], &back, "monday")
}

fn a_volume_is_cloned(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let object = made(cluster, "data", &node)?;
    write(&cluster.agents[0], &object, "one")?;
    let mut larger = on(from_claim(device(cluster, "copy"), "data"), &node);
    larger["spec"]["resources"]["requests"]["storage"] = json!("24Mi");
    cluster.create_claim(&larger)?;
    let copy = cluster.bound("copy")?;
    let capacity = copy.spec.and_then(|spec| spec.capacity).and_then(|all| all.get("storage").cloned());
    ensure!(capacity.as_ref().is_some_and(|size| size.0 == "24Mi"), "it has {capacity:?}");
    let copy = copy.metadata.name.context("a name")?;
    has(&cluster.agents[0], &copy, "one")?;
    write(&cluster.agents[0], &copy, "two")?;
    has(&cluster.agents[0], &object, "one")
}

fn a_snapshot_outlives_its_volume(cluster: &mut Cluster) -> Result<()> {
    let (class, node) = (cluster.add_snapshot_class("daily", |_| {})?, cluster.node());
    let object = made(cluster, "data", &node)?;
    write(&cluster.agents[0], &object, "monday")?;
    cluster.snapshot("monday", "data", &class)?;
    cluster.snapshot_ready("monday")?;
    cluster.delete_claim("data")?;
    cluster.volume_gone(&object)?;
    cluster.create_claim(&on(from_snapshot(device(cluster, "back"), "monday"), &node))?;
    let back = cluster.bound("back")?.metadata.name.context("a name")?;
    has(&cluster.agents[0], &back, "monday")?;
    cluster.delete_snapshot("monday")
}

fn a_retained_snapshot_stays_and_is_found_again(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_snapshot_class("kept", |class| class["deletionPolicy"] = json!("Retain"))?;
    let node = cluster.node();
    let object = made(cluster, "data", &node)?;
    write(&cluster.agents[0], &object, "monday")?;
    cluster.snapshot("monday", "data", &class)?;
    let content = cluster.snapshot_ready("monday")?;
    let handle = content["status"]["snapshotHandle"].as_str().context("a handle")?.to_owned();
    cluster.delete_snapshot("monday")?;
    let path = format!("{CONTENTS}/{}", content["metadata"]["name"].as_str().context("a name")?);
    cluster.ask("DELETE", &path, None)?;
    cluster.is_gone(&path)?;
    ensure!(cluster.agents[0].volumes()?.contains(&handle), "the snapshot is gone");
    // An administrator names it again. Which node has it, nobody says.
    let name = format!("{}-found", cluster.namespace);
    let by_hand = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": { "name": name },
        "spec": {
            "driver": "bulkhead.csi.local", "deletionPolicy": "Delete", "source": { "snapshotHandle": handle },
            "sourceVolumeMode": "Block",
            "volumeSnapshotRef": { "namespace": cluster.namespace, "name": "again" },
        },
    });
    cluster.ask("POST", CONTENTS, Some(&by_hand))?;
    cluster.snapshot_of("again", &json!({ "source": { "volumeSnapshotContentName": name } }))?;
    let content = cluster.snapshot_ready("again")?;
    same("the size", &content["status"]["restoreSize"], json!(16 << 20))?;
    cluster.create_claim(&on(from_snapshot(device(cluster, "back"), "again"), &node))?;
    let back = cluster.bound("back")?.metadata.name.context("a name")?;
    has(&cluster.agents[0], &back, "monday")?;
    cluster.delete_snapshot("again")?;
    ensure!(!cluster.agents[0].volumes()?.contains(&handle), "the snapshot is still there");
    Ok(())
}

/// The object's name and path of a snapshot that an agent, which is away, has yet to take.
fn waiting(cluster: &mut Cluster) -> Result<String> {
    let (class, node) = (cluster.add_snapshot_class("daily", |_| {})?, cluster.node());
    made(cluster, "data", &node)?;
    cluster.agent().rig.kill_frontend()?;
    cluster.snapshot("monday", "data", &class)?;
    cluster.access.wait(cluster.patience(), "the snapshot controller", || {
        let path = format!("{}/monday", cluster.snapshots());
        let snapshot = cluster.ask("GET", &path, None)?;
        let uid = snapshot["metadata"]["uid"].as_str().context("a uid")?;
        let path = format!("{CONTENTS}/snapcontent-{uid}");
        let content = cluster.ask("GET", &path, None)?;
        ensure!(!content["metadata"]["finalizers"].is_null(), "it has no finalizer yet");
        Ok(path)
    })
}

fn what_an_agent_had_begun_is_finished(cluster: &mut Cluster) -> Result<()> {
    let path = waiting(cluster)?;
    let begun = json!({ "metadata": { "annotations": { BEING_CREATED: "yes" } } });
    cluster.ask("PATCH", &path, Some(&begun))?;
    cluster.agent().rig.start_frontend()?;
    cluster.snapshot_ready("monday")?;
    cluster.access.wait(cluster.patience(), "nothing to be in progress", || {
        let content = cluster.ask("GET", &path, None)?;
        ensure!(content["metadata"]["annotations"][BEING_CREATED].is_null(), "{}", content["metadata"]);
        Ok(())
    })?;
    cluster.delete_snapshot("monday")
}

fn what_was_never_said_is_deleted_nevertheless(cluster: &mut Cluster) -> Result<()> {
    let path = waiting(cluster)?;
    cluster.agent().rig.start_frontend()?;
    cluster.snapshot_ready("monday")?;
    // What the agent has written is lost, as if it had died before, and its owner gives up at the same time.
    cluster.agent().rig.kill_frontend()?;
    cluster.ask("PATCH", &format!("{path}/status"), Some(&json!({ "status": null })))?;
    let begun = json!({ "metadata": { "annotations": { BEING_CREATED: "yes" } } });
    cluster.ask("PATCH", &path, Some(&begun))?;
    cluster.ask("DELETE", &format!("{}/monday", cluster.snapshots()), None)?;
    cluster.access.wait(cluster.patience(), "the object to be deleted", || {
        let content = cluster.ask("GET", &path, None)?;
        ensure!(!content["metadata"]["deletionTimestamp"].is_null(), "{}", content["metadata"]);
        Ok(())
    })?;
    cluster.agent().rig.start_frontend()?;
    cluster.is_gone(&path)?;
    let left = cluster.agents[0].volumes()?;
    ensure!(!left.iter().any(|name| name.starts_with("snapshot-")), "{left:?}");
    Ok(())
}

fn what_is_documented_works(cluster: &mut Cluster) -> Result<()> {
    cluster.class = cluster.add_class(|class| class["parameters"] = json!({ "backing": "image", "sparse": "true" }))?;
    cluster.add_agent_with(|rig| rig.add_pool_for_filesystems("default"))?;
    cluster.create_claim(&on(claim("data", &cluster.class, "512Mi"), &cluster.node()))?;
    cluster.bound("data")?;
    let file = cluster.agents[0].rig.work().join("documented.yaml");
    for manifest in blocks(section(BACKUPS, "Take and restore a snapshot")?, "yaml") {
        fs::write(&file, manifest.replace("bulkhead-image", &cluster.class))?;
        let arguments = ["apply", "--namespace", &cluster.namespace, "--filename", &file.to_string_lossy()];
        manifests::kubectl(&cluster.access.kubeconfig(), &arguments)?;
    }
    cluster.snapshot_ready("monday")?;
    cluster.bound("restored")?;
    ensure!(cluster.agents[0].volumes()?.len() == 3, "{:?}", cluster.agents[0].volumes()?);
    cluster.delete_snapshot("monday")
}
