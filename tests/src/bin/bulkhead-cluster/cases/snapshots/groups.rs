//! Snapshots of several volumes at one moment, from a VolumeGroupSnapshot to its end.

use std::fs;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::groups::{GROUP_BEING_CREATED, GROUP_CONTENTS};
use bulkhead_tests::cluster::manifests;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{claim, from_snapshot, handle, on};
use bulkhead_tests::cluster::snapshots::{CONTENTS, MANAGED_BY};
use bulkhead_tests::commands::Printed;
use bulkhead_tests::csi::v1::DeleteSnapshotRequest;
use bulkhead_tests::documented::{BACKUPS, blocks, section};
use bulkhead_tests::expect::same;
use serde_json::{Value, json};

use super::super::plugin::plugin;
use super::{device, has, write};

cases! {
    on Cluster;
    a_group_is_taken_and_restored,
    volumes_on_two_nodes_are_no_group,
    a_group_that_an_agent_had_begun_is_finished_and_no_other_is_taken,
    a_retained_group_stays_and_is_found_again,
    a_class_of_groups_that_asks_for_something_takes_none,
    a_lost_nodes_groups_are_given_up,
    what_is_documented_of_groups_works: Bare + Recent,
}

/// Makes a claim for a device of `shop` on `node`, and returns its PersistentVolume's name.
fn made(cluster: &Cluster, name: &str, node: &str) -> Result<String> {
    let mut claim = on(device(cluster, name), node);
    claim["metadata"]["labels"] = json!({ "app": "shop" });
    cluster.create_claim(&claim)?;
    cluster.bound(name)?.metadata.name.context("a name")
}

/// The snapshots that an agent's node has.
fn taken(cluster: &Cluster, agent: usize) -> Result<Vec<String>> {
    let mut taken = cluster.agents[agent].volumes()?;
    taken.retain(|name| name.starts_with("groupsnapshot-"));
    Ok(taken)
}

/// The path of the object of a VolumeGroupSnapshot, once the snapshot controller has made it, and holds it.
fn content_of(cluster: &Cluster, group: &str) -> Result<String> {
    cluster.access.wait(cluster.patience(), "the snapshot controller", || {
        let group = cluster.ask("GET", &format!("{}/{group}", cluster.groups()), None)?;
        let bound = group["status"]["boundVolumeGroupSnapshotContentName"].as_str().context("it is not bound")?;
        let path = format!("{GROUP_CONTENTS}/{bound}");
        let content = cluster.ask("GET", &path, None)?;
        ensure!(!content["metadata"]["finalizers"].is_null(), "it has no finalizer yet");
        Ok(path)
    })
}

/// Waits until nothing is in progress for an object of a group.
fn is_settled(cluster: &Cluster, path: &str) -> Result<Value> {
    cluster.access.wait(cluster.patience(), "nothing to be in progress", || {
        let content = cluster.ask("GET", path, None)?;
        ensure!(content["metadata"]["annotations"][GROUP_BEING_CREATED].is_null(), "{}", content["metadata"]);
        Ok(content)
    })
}

fn a_group_is_taken_and_restored(cluster: &mut Cluster) -> Result<()> {
    let (class, node) = (cluster.add_group_class("together", |_| {})?, cluster.node());
    let (data, log) = (made(cluster, "data", &node)?, made(cluster, "log", &node)?);
    for object in [&data, &log] {
        write(&cluster.agents[0], object, "evening")?;
    }
    // Of the same program, and not of the group.
    cluster.create_claim(&on(device(cluster, "cache"), &node))?;
    cluster.bound("cache")?;
    cluster.group("evening", "shop", &class)?;
    let content = cluster.group_ready("evening")?;
    let uid = content["spec"]["volumeGroupSnapshotRef"]["uid"].as_str().context("a uid")?;
    let group = format!("groupsnapshot-{uid}");
    same("the handle", &content["status"]["volumeGroupSnapshotHandle"], json!(group))?;
    same("the node", &content["metadata"]["labels"][TOPOLOGY_KEY], json!(node))?;
    let listed = content["status"]["volumeSnapshotInfoList"].as_array().context("no list")?;
    let mut sources: Vec<&str> = listed.iter().filter_map(|info| info["volumeHandle"].as_str()).collect();
    sources.sort_unstable();
    let mut expected = [handle(&data), handle(&log)];
    expected.sort_unstable();
    ensure!(sources == expected, "they are of {sources:?}, not of {expected:?}");
    ensure!(listed[0]["creationTime"] == listed[1]["creationTime"], "of two moments: {listed:?}");
    let path = format!("{GROUP_CONTENTS}/{}", content["metadata"]["name"].as_str().context("a name")?);
    is_settled(cluster, &path)?;
    ensure!(taken(cluster, 0)?.len() == 2, "{:?}", taken(cluster, 0)?);

    let members = cluster.members_ready("evening", 2)?;
    for object in [&data, &log] {
        write(&cluster.agents[0], object, "morning")?;
    }
    for claim in ["data", "log"] {
        let (member, back) = (&members[claim], format!("{claim}-back"));
        cluster.create_claim(&on(from_snapshot(device(cluster, &back), member), &node))?;
        let back = cluster.bound(&back)?.metadata.name.context("a name")?;
        has(&cluster.agents[0], &back, "evening")?;
    }
    cluster.delete_group("evening")?;
    cluster.is_gone(&path)?;
    ensure!(taken(cluster, 0)?.is_empty(), "left: {:?}", taken(cluster, 0)?);
    cluster.access.wait(cluster.patience(), "the objects of its snapshots to be gone", || {
        let left = contents(cluster)?;
        ensure!(left.is_empty(), "left: {left:?}");
        Ok(())
    })
}

/// The paths of the objects of the test's snapshots.
fn contents(cluster: &Cluster) -> Result<Vec<String>> {
    let all = cluster.ask("GET", CONTENTS, None)?;
    let all = all["items"].as_array().context("no list")?.iter();
    let ours = all.filter(|content| content["spec"]["volumeSnapshotRef"]["namespace"] == cluster.namespace);
    let path = |content: &Value| Some(format!("{CONTENTS}/{}", content["metadata"]["name"].as_str()?));
    Ok(ours.filter_map(path).collect())
}

fn volumes_on_two_nodes_are_no_group(cluster: &mut Cluster) -> Result<()> {
    cluster.add_agent()?;
    let (first, second) = (cluster.node(), cluster.agents[1].node.clone());
    let class = cluster.add_group_class("together", |_| {})?;
    let (data, log) = (made(cluster, "data", &first)?, made(cluster, "log", &second)?);
    cluster.group("evening", "shop", &class)?;
    cluster.group_failed("evening", "volumes on several nodes have no moment in common")?;
    let path = content_of(cluster, "evening")?;
    let content = is_settled(cluster, &path)?;
    // That of the first volume says so, and only that.
    let of_first = if content["spec"]["source"]["volumeHandles"][0] == handle(&data) { &first } else { &second };
    same("the node", &content["metadata"]["labels"][TOPOLOGY_KEY], json!(of_first))?;
    let name = content["metadata"]["name"].as_str().context("a name")?;
    cluster.event(name, "GroupSnapshotCreationFailed", &format!("is not on node {of_first}"))?;
    ensure!(taken(cluster, 0)?.is_empty() && taken(cluster, 1)?.is_empty(), "something of {log} or {data} was taken");
    cluster.delete_group("evening")?;
    cluster.is_gone(&path)
}

fn a_group_that_an_agent_had_begun_is_finished_and_no_other_is_taken(cluster: &mut Cluster) -> Result<()> {
    let (class, node) = (cluster.add_group_class("together", |_| {})?, cluster.node());
    for name in ["data", "log"] {
        made(cluster, name, &node)?;
    }
    // It has died before it had anything taken.
    cluster.agent().rig.kill_frontend()?;
    cluster.group("evening", "shop", &class)?;
    let path = content_of(cluster, "evening")?;
    let begun = json!({ "metadata": { "annotations": { GROUP_BEING_CREATED: "yes" } } });
    cluster.ask("PATCH", &path, Some(&begun))?;
    cluster.agent().rig.start_frontend()?;
    cluster.group_ready("evening")?;
    let first = is_settled(cluster, &path)?;
    let snapshots = taken(cluster, 0)?;
    ensure!(snapshots.len() == 2, "{snapshots:?}");
    cluster.members_ready("evening", 2)?;
    // It has died before it said what it had taken.
    cluster.agent().rig.kill_frontend()?;
    cluster.ask("PATCH", &format!("{path}/status"), Some(&json!({ "status": null })))?;
    cluster.ask("PATCH", &path, Some(&begun))?;
    cluster.agent().rig.start_frontend()?;
    cluster.access.wait(cluster.patience(), "the agent to say it again", || {
        let content = cluster.ask("GET", &path, None)?;
        ensure!(content["status"]["readyToUse"] == true, "its status is {}", content["status"]);
        Ok(())
    })?;
    let again = is_settled(cluster, &path)?;
    same("what is said", &again["status"], first["status"].clone())?;
    ensure!(taken(cluster, 0)? == snapshots, "{:?}", taken(cluster, 0)?);
    cluster.delete_group("evening")?;
    cluster.is_gone(&path)?;
    ensure!(taken(cluster, 0)?.is_empty(), "left: {:?}", taken(cluster, 0)?);
    Ok(())
}

fn a_retained_group_stays_and_is_found_again(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_group_class("kept", |class| class["deletionPolicy"] = json!("Retain"))?;
    let node = cluster.node();
    for name in ["data", "log"] {
        made(cluster, name, &node)?;
    }
    cluster.group("evening", "shop", &class)?;
    let content = cluster.group_ready("evening")?;
    cluster.members_ready("evening", 2)?;
    let group = content["status"]["volumeGroupSnapshotHandle"].as_str().context("a handle")?.to_owned();
    cluster.delete_group("evening")?;
    let path = format!("{GROUP_CONTENTS}/{}", content["metadata"]["name"].as_str().context("a name")?);
    cluster.ask("DELETE", &path, None)?;
    cluster.is_gone(&path)?;
    for path in contents(cluster)? {
        cluster.ask("DELETE", &path, None)?;
        cluster.is_gone(&path)?;
    }
    let snapshots = taken(cluster, 0)?;
    ensure!(snapshots.len() == 2, "they are gone: {snapshots:?}");
    // An administrator names them again. Which node has them, nobody says.
    let named = |name: &str, snapshots: &[String]| -> Result<()> {
        let object = format!("{}-{name}", cluster.namespace);
        let handles = json!({ "volumeGroupSnapshotHandle": group, "volumeSnapshotHandles": snapshots });
        let by_hand = json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotContent",
            "metadata": { "name": object },
            "spec": {
                "driver": "bulkhead.csi.local", "deletionPolicy": "Delete",
                "source": { "groupSnapshotHandles": handles },
                "volumeGroupSnapshotRef": { "namespace": cluster.namespace, "name": name },
            },
        });
        cluster.ask("POST", GROUP_CONTENTS, Some(&by_hand))?;
        cluster.group_of(name, &json!({ "source": { "volumeGroupSnapshotContentName": object } }))
    };
    named("wrong", &snapshots[..1])?;
    let (object, why) = (format!("{}-wrong", cluster.namespace), "volumeSnapshotHandles are not those of group");
    cluster.event(&object, "GroupSnapshotContentCheckandUpdateFailed", why)?;
    let path = format!("{GROUP_CONTENTS}/{object}");
    cluster.ask("PATCH", &path, Some(&json!({ "spec": { "deletionPolicy": "Retain" } })))?;
    cluster.delete_group("wrong")?;
    cluster.ask("DELETE", &path, None)?;
    cluster.is_gone(&path)?;
    ensure!(taken(cluster, 0)? == snapshots, "it has deleted what is another's: {:?}", taken(cluster, 0)?);
    named("again", &snapshots)?;
    let content = cluster.group_ready("again")?;
    // As long as one is named by itself, the group stays.
    let single = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": { "name": format!("{}-single", cluster.namespace) },
        "spec": {
            "driver": "bulkhead.csi.local", "deletionPolicy": "Retain", "source": { "snapshotHandle": snapshots[0] },
            "sourceVolumeMode": "Block",
            "volumeSnapshotRef": { "namespace": cluster.namespace, "name": "single" },
        },
    });
    cluster.ask("POST", CONTENTS, Some(&single))?;
    cluster.snapshot_of("single", &json!({ "source": { "volumeSnapshotContentName": single["metadata"]["name"] } }))?;
    let single = cluster.snapshot_ready("single")?;
    cluster.ask("DELETE", &format!("{}/again", cluster.groups()), None)?;
    let name = content["metadata"]["name"].as_str().context("a name")?;
    cluster.event(name, "GroupSnapshotDeleteError", "names the same group of snapshots")?;
    ensure!(taken(cluster, 0)? == snapshots, "{:?}", taken(cluster, 0)?);
    cluster.delete_snapshot("single")?;
    cluster.ask("DELETE", &format!("{CONTENTS}/{}", single["metadata"]["name"].as_str().context("a name")?), None)?;
    cluster.is_gone(&format!("{}/again", cluster.groups()))?;
    ensure!(taken(cluster, 0)?.is_empty(), "they are still there: {:?}", taken(cluster, 0)?);
    Ok(())
}

fn a_lost_nodes_groups_are_given_up(cluster: &mut Cluster) -> Result<()> {
    let (class, node) = (cluster.add_group_class("together", |_| {})?, cluster.node());
    for name in ["data", "log"] {
        made(cluster, name, &node)?;
    }
    cluster.group("evening", "shop", &class)?;
    let content = cluster.group_ready("evening")?;
    cluster.members_ready("evening", 2)?;
    let path = format!("{GROUP_CONTENTS}/{}", content["metadata"]["name"].as_str().context("a name")?);
    is_settled(cluster, &path)?;
    cluster.agent().rig.kill_frontend()?;
    // A node that does not exist, which no other test speaks of.
    let gone = format!("{}-gone", cluster.namespace);
    let labels = json!({ "metadata": { "labels": { MANAGED_BY: gone, TOPOLOGY_KEY: gone } } });
    for path in contents(cluster)?.iter().chain([&path]) {
        cluster.ask("PATCH", path, Some(&labels))?;
    }
    let orphans = plugin(cluster, &["orphans"])?.succeeded()?;
    Printed::row(&orphans, &["group", &gone, &format!("{}/evening", cluster.namespace)])?;
    let told = plugin(cluster, &["release-node", &gone, "--yes"])?.succeeded()?;
    ensure!(told.contains("2 snapshots and 1 group of them given up"), "{told}");
    cluster.is_gone(&path)?;
    cluster.is_gone(&format!("{}/evening", cluster.groups()))?;
    cluster.access.wait(cluster.patience(), "the snapshots to be given up", || {
        let left = cluster.ask("GET", &cluster.snapshots(), None)?;
        ensure!(left["items"].as_array().is_some_and(Vec::is_empty), "left: {left}");
        Ok(())
    })?;
    // What is on the lost node's disk is nobody's concern any more.
    cluster.agent().rig.start_frontend()?;
    let csi = cluster.agents[0].rig.csi()?;
    for snapshot_id in taken(cluster, 0)? {
        csi.delete_snapshot(DeleteSnapshotRequest { snapshot_id, ..Default::default() })?;
    }
    Ok(())
}

fn a_class_of_groups_that_asks_for_something_takes_none(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    made(cluster, "data", &node)?;
    let unknown = cluster.add_group_class("unknown", |class| class["parameters"] = json!({ "colour": "red" }))?;
    cluster.group("unknown", "shop", &unknown)?;
    cluster.group_failed("unknown", "colour")?;
    ensure!(taken(cluster, 0)?.is_empty(), "{:?}", taken(cluster, 0)?);
    cluster.delete_group("unknown")
}

fn what_is_documented_of_groups_works(cluster: &mut Cluster) -> Result<()> {
    cluster.class = cluster.add_class(|class| class["parameters"] = json!({ "backing": "image", "sparse": "true" }))?;
    cluster.add_agent_with(|rig| rig.add_pool_for_filesystems("default"))?;
    let node = cluster.node();
    for name in ["data", "log"] {
        let mut claim = on(claim(name, &cluster.class, "512Mi"), &node);
        claim["metadata"]["labels"] = json!({ "app": "shop" });
        cluster.create_claim(&claim)?;
        cluster.bound(name)?;
    }
    let file = cluster.agents[0].rig.work().join("documented.yaml");
    for manifest in blocks(section(BACKUPS, "Several claims at one moment")?, "yaml") {
        fs::write(&file, manifest.replace("bulkhead-image", &cluster.class))?;
        let arguments = ["apply", "--namespace", &cluster.namespace, "--filename", &file.to_string_lossy()];
        manifests::kubectl(&cluster.access.kubeconfig(), &arguments)?;
    }
    cluster.group_ready("evening")?;
    cluster.members_ready("evening", 2)?;
    cluster.delete_group("evening")
}
