//! What cannot be done is said, to whoever can change it.

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::objects::{claim, from_claim, from_snapshot, on};
use bulkhead_tests::cluster::snapshots::{BEING_CREATED, CONTENTS};
use serde_json::json;

use super::{device, made};

cases! {
    on Cluster;
    a_class_that_names_a_secret_takes_none,
    a_volume_that_cannot_be_copied_says_so,
    copies_that_cannot_be_made_say_so,
    a_snapshot_that_no_node_has_is_told_and_can_be_deleted: Bare,
}

fn a_class_that_names_a_secret_takes_none(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    made(cluster, "data", &node)?;
    let secret = cluster.add_snapshot_class("secret", |class| {
        class["parameters"] = json!({
            "csi.storage.k8s.io/snapshotter-secret-name": "s", "csi.storage.k8s.io/snapshotter-secret-namespace": "n",
        });
    })?;
    cluster.snapshot("secret", "data", &secret)?;
    cluster.snapshot_failed("secret", "names a secret")?;
    let unknown = cluster.add_snapshot_class("unknown", |class| class["parameters"] = json!({ "colour": "red" }))?;
    cluster.snapshot("unknown", "data", &unknown)?;
    cluster.snapshot_failed("unknown", "colour")?;
    ensure!(cluster.agents[0].volumes()?.len() == 1, "{:?}", cluster.agents[0].volumes()?);
    cluster.delete_snapshot("secret")?;
    cluster.delete_snapshot("unknown")
}

fn a_volume_that_cannot_be_copied_says_so(cluster: &mut Cluster) -> Result<()> {
    let (class, node) = (cluster.add_snapshot_class("daily", |_| {})?, cluster.node());
    cluster.create_claim(&on(claim("directory", &cluster.class, "16Mi"), &node))?;
    cluster.bound("directory")?;
    cluster.snapshot("monday", "directory", &class)?;
    cluster.snapshot_failed("monday", "backing")?;
    let snapshot = cluster.ask("GET", &format!("{}/monday", cluster.snapshots()), None)?;
    let content = format!("snapcontent-{}", snapshot["metadata"]["uid"].as_str().unwrap_or_default());
    cluster.event(&content, "SnapshotCreationFailed", "backing")?;
    // Its owner need not wait for anything to be able to give up.
    let path = format!("{CONTENTS}/{content}");
    cluster.access.wait(cluster.patience(), "nothing to be in progress", || {
        let content = cluster.ask("GET", &path, None)?;
        ensure!(content["metadata"]["annotations"][BEING_CREATED].is_null(), "{}", content["metadata"]);
        Ok(())
    })?;
    let version =
        |path: &str| Ok::<_, anyhow::Error>(cluster.ask("GET", path, None)?["metadata"]["resourceVersion"].clone());
    let before = version(&path)?;
    std::thread::sleep(std::time::Duration::from_secs(2));
    ensure!(version(&path)? == before, "what is said about a failure repeats the attempt");
    cluster.delete_snapshot("monday")?;
    cluster.is_gone(&path)
}

fn copies_that_cannot_be_made_say_so(cluster: &mut Cluster) -> Result<()> {
    let (class, node) = (cluster.add_snapshot_class("daily", |_| {})?, cluster.node());
    made(cluster, "data", &node)?;
    cluster.snapshot("monday", "data", &class)?;
    cluster.snapshot_ready("monday")?;
    let small = |mut claim: serde_json::Value| {
        claim["spec"]["resources"]["requests"]["storage"] = json!("8Mi");
        claim
    };
    let directory = |name: &str| claim(name, &cluster.class, "16Mi");
    for (name, copy, why) in [
        ("small", small(from_snapshot(device(cluster, "small"), "monday")), "request at least as much"),
        ("small-clone", small(from_claim(device(cluster, "small-clone"), "data")), "request at least as much"),
        ("directory", from_snapshot(directory("directory"), "monday"), "is of a block volume"),
        ("directory-clone", from_claim(directory("directory-clone"), "data"), "has a block volume"),
        ("missing", from_snapshot(device(cluster, "missing"), "tuesday"), "VolumeSnapshot tuesday, which"),
        ("missing-clone", from_claim(device(cluster, "missing-clone"), "other"), "claim other, which"),
    ] {
        cluster.create_claim(&on(copy, &node))?;
        cluster.event(name, "ProvisioningFailed", why)?;
        // A snapshot that a waiting claim names is not deleted.
        cluster.delete_claim(name)?;
    }
    ensure!(cluster.agents[0].volumes()?.len() == 2, "{:?}", cluster.agents[0].volumes()?);
    cluster.delete_snapshot("monday")
}

fn a_snapshot_that_no_node_has_is_told_and_can_be_deleted(cluster: &mut Cluster) -> Result<()> {
    cluster.add_hurried_agent()?;
    let name = format!("{}-nobodys", cluster.namespace);
    let by_hand = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": { "name": name },
        "spec": {
            "driver": "bulkhead.csi.local", "deletionPolicy": "Delete", "source": { "snapshotHandle": "nobodys" },
            "volumeSnapshotRef": { "namespace": cluster.namespace, "name": "nobodys" },
        },
    });
    cluster.ask("POST", CONTENTS, Some(&by_hand))?;
    cluster.snapshot_of("nobodys", &json!({ "source": { "volumeSnapshotContentName": name } }))?;
    cluster.snapshot_failed("nobodys", "no node has snapshot nobodys")?;
    cluster.event(&name, "SnapshotContentCheckandUpdateFailed", "no node has snapshot nobodys")?;
    cluster.delete_snapshot("nobodys")?;
    cluster.is_gone(&format!("{CONTENTS}/{name}"))
}
