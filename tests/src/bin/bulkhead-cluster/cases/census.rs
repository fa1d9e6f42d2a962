//! Volumes that are missing, and volumes that nobody needs: each tool says so, and stops saying so.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::manifests::NAMESPACE;
use bulkhead_tests::cluster::network::POD_ADDRESS;
use bulkhead_tests::cluster::node;
use bulkhead_tests::cluster::objects::{block, claim, handle, on, volume};
use bulkhead_tests::cluster::{Cluster, HURRIED};
use bulkhead_tests::commands::{Printed, bulkheadctl};
use bulkhead_tests::csi::requests;
use bulkhead_tests::csi::v1::DeleteSnapshotRequest;
use bulkhead_tests::monitoring;
use serde_json::Value;

use super::adopt::noted;
use super::plugin::{agent_pod, as_json, plugin};

cases! {
    on Cluster;
    a_volume_that_is_gone_is_missed_until_it_is_back: Bare,
    a_volume_that_nobody_needs_is_shown_until_somebody_does: Bare,
    a_snapshot_that_no_object_names_is_shown: Bare,
    a_renamed_node_keeps_what_claims_are_bound_to,
    a_renamed_node_keeps_what_is_noted_while_the_former_one_exists,
}

/// How long it may take until volumes have been compared with objects twice.
const COMPARED: Duration = Duration::from_secs(110);

/// Starts an agent that the plugin can reach, and returns the class of its claims.
fn reachable_agent(cluster: &mut Cluster) -> Result<String> {
    let class = cluster.add_class(|_| {})?;
    cluster.add_agent_with(|rig| {
        rig.frontend_flags.push(HURRIED.into());
        monitoring::serve_at(rig, &format!("{POD_ADDRESS}:0"));
        rig.add_pool("default")
    })?;
    let address: SocketAddr = monitoring::address(&cluster.agents[0].rig)?.parse()?;
    agent_pod(cluster, NAMESPACE, address.port(), true)?;
    Ok(class)
}

fn doctor_on_node(cluster: &Cluster) -> Result<String> {
    let socket = cluster.agents[0].rig.kubelet.csi_socket();
    Ok(Printed::by(bulkheadctl(&socket)?.arg("doctor"))?.text)
}

/// Checks that the first agent's metrics have this line, and no other of that name.
pub fn has_metric(cluster: &Cluster, line: &str) -> Result<()> {
    let (_, metrics) = monitoring::get(&cluster.agents[0].rig, "/metrics")?;
    let name = line.split(' ').next().unwrap_or_default();
    let found: Vec<_> = metrics.lines().filter(|found| found.starts_with(name)).collect();
    ensure!(found == [line], "{found:?}, not {line}");
    Ok(())
}

/// The plugin's object about a volume.
fn listed(cluster: &Cluster, volume: &str) -> Result<Value> {
    let node = cluster.node();
    let volumes = as_json(cluster, &["volumes", "--node", &node])?;
    let found = volumes.as_array().and_then(|all| all.iter().find(|one| one["name"] == volume));
    found.cloned().with_context(|| format!("{volume} is not among {volumes}"))
}

fn a_volume_that_is_gone_is_missed_until_it_is_back(cluster: &mut Cluster) -> Result<()> {
    let class = reachable_agent(cluster)?;
    let node = cluster.node();
    for name in ["data", "other"] {
        cluster.create_claim(&on(claim(name, &class, "8Mi"), &node))?;
    }
    let volume = cluster.bound("data")?.metadata.name.context("a name")?;
    let other = cluster.bound("other")?.metadata.name.context("a name")?;
    cluster.access.wait(COMPARED, "the first comparison", || has_metric(cluster, "bulkhead_missing_volumes 0.0"))?;
    let at = cluster.agents[0].rig.pool().volume(handle(&volume));
    let aside = at.with_file_name("aside");
    cluster.agent().rig.kill_helper()?;
    fs::rename(&at, &aside)?;
    cluster.agent().rig.start_helper()?;

    cluster.access.wait(COMPARED, "the volume to be missed", || has_metric(cluster, "bulkhead_missing_volumes 1.0"))?;
    cluster.event("data", "VolumeConditionAbnormal", "the volume does not exist")?;
    let told = Printed::row(&doctor_on_node(cluster)?, &["FAILED", "volumes"])?;
    ensure!(told.starts_with("PersistentVolumes name 1 volume that no pool contains"), "{told}");
    let found = listed(cluster, &volume)?;
    ensure!(found["condition"]["state"] == "missing", "{found}");
    let table = plugin(cluster, &["volumes", "--node", &node])?.succeeded()?;
    for (volume, claim, state) in [(&volume, "data", "missing"), (&other, "other", "ok")] {
        Printed::row(&table, &[volume, &node, &format!("{}/{claim}", cluster.namespace), "8 MiB", "Bound", state])?;
    }
    ensure!(table.contains(&format!("{volume}: the volume does not exist")), "{table}");
    let doctor = plugin(cluster, &["doctor"])?.text;
    Printed::row(&doctor, &["FAILED", &format!("volumes on {node}"), "1 volume missing"])?;
    ensure!(cluster.notes("other")?.iter().all(|note| !note.contains("VolumeCondition")), "the other is there");

    cluster.agent().rig.kill_helper()?;
    fs::rename(&aside, &at)?;
    cluster.agent().rig.start_helper()?;
    cluster.access.wait(COMPARED, "the volume to be back", || has_metric(cluster, "bulkhead_missing_volumes 0.0"))?;
    cluster.event("data", "VolumeConditionNormal", "healthy again")?;
    ensure!(listed(cluster, &volume)?["condition"]["state"] == "ok");
    ensure!(!doctor_on_node(cluster)?.contains("PersistentVolumes name"));
    Ok(())
}

fn a_volume_that_nobody_needs_is_shown_until_somebody_does(cluster: &mut Cluster) -> Result<()> {
    let class = reachable_agent(cluster)?;
    let node = cluster.node();
    let csi = cluster.agent().rig.csi()?;
    csi.create_volume(requests::create("by-hand", 8 << 20, requests::mount()))?;
    cluster.access.wait(COMPARED, "the orphan to be found", || has_metric(cluster, "bulkhead_orphaned_volumes 1.0"))?;
    cluster.event(&node, "VolumesOrphaned", "1 volume that no PersistentVolume names")?;
    Printed::row(&doctor_on_node(cluster)?, &["note", "volumes", "no PersistentVolume names 1 volume"])?;
    let orphans = plugin(cluster, &["orphans"])?.succeeded()?;
    Printed::row(&orphans, &["orphan", &node, "-", "8 MiB", "by-hand"])?;
    let doctor = plugin(cluster, &["doctor"])?.text;
    Printed::row(&doctor, &["note", &format!("volumes on {node}"), "1 volume"])?;
    // An administrator gives it an object.
    cluster.create_volume(&volume(&format!("{node}-by-hand"), "by-hand", &class, "8Mi", &node))?;
    if cluster.is_recent() {
        cluster
            .access
            .wait(COMPARED, "the orphan to be needed", || has_metric(cluster, "bulkhead_orphaned_volumes 0.0"))?;
        let orphans = as_json(cluster, &["orphans"])?;
        let left = orphans["orphanedVolumes"].as_array().context("orphans")?;
        ensure!(left.iter().all(|orphan| orphan["volume"] != "by-hand"), "{orphans}");
    }
    let objects = cluster.volumes();
    cluster.access.run(objects.delete(&format!("{node}-by-hand"), &Default::default()))?;
    // The frontend has closed the first connection, on which nothing was said for so long.
    cluster.agent().rig.csi()?.delete_volume(requests::delete("by-hand"))?;
    // One that was made for a claim which is gone, and never used, is deleted, though no event tells of it.
    let forgotten = "pvc-0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a333";
    cluster.agent().rig.csi()?.create_volume(requests::create(forgotten, 8 << 20, requests::mount()))?;
    cluster.access.wait(COMPARED, "the forgotten volume to be deleted", || {
        let left = cluster.agents[0].volumes()?;
        ensure!(left.is_empty(), "it holds {left:?}");
        Ok(())
    })
}

fn a_snapshot_that_no_object_names_is_shown(cluster: &mut Cluster) -> Result<()> {
    let class = reachable_agent(cluster)?;
    let daily = cluster.add_snapshot_class("daily", |_| {})?;
    let node = cluster.node();
    cluster.create_claim(&on(block(claim("data", &class, "16Mi")), &node))?;
    let object = cluster.bound("data")?.metadata.name.context("a name")?;
    cluster.snapshot("monday", "data", &daily)?;
    let named = cluster.snapshot_ready("monday")?["status"]["snapshotHandle"].as_str().context("a handle")?.to_owned();
    let csi = cluster.agent().rig.csi()?;
    csi.create_snapshot(requests::take("by-hand", handle(&object)))?;
    let orphans = plugin(cluster, &["orphans"])?.succeeded()?;
    let told = Printed::row(&orphans, &["orphan-snapshot", &node, "-"])?;
    ensure!(told.ends_with("by-hand") && !orphans.contains(&named), "{orphans}");
    let orphans = as_json(cluster, &["orphans"])?;
    let found = orphans["orphanedSnapshots"].as_array().context("orphans")?;
    ensure!(found.len() == 1 && found[0]["snapshot"] == "by-hand" && found[0]["node"] == node, "{orphans}");
    // It is told, and left alone.
    csi.create_volume(requests::restore("copy", "by-hand", requests::block()))?;
    csi.delete_volume(requests::delete("copy"))?;
    csi.delete_snapshot(DeleteSnapshotRequest { snapshot_id: "by-hand".to_owned(), ..Default::default() })?;
    cluster.delete_snapshot("monday")
}

fn a_renamed_node_keeps_what_claims_are_bound_to(cluster: &mut Cluster) -> Result<()> {
    let former = cluster.node();
    cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &former))?;
    let volume = cluster.bound("data")?.metadata.name.context("a name")?;
    cluster.agent().rig.kill_frontend()?;
    node::delete(&cluster.access, &former)?;
    rename(cluster)?;
    // Volumes without a claim, or whose claims wait elsewhere, are deleted at this moment.
    is_kept(cluster, &volume, "its PersistentVolume says that it is on a node that is gone")?;
    goes_once_nobody_needs_it(cluster, &volume)
}

/// The node was made anew with another name, and nobody has deleted the former one. The claim says that it is there, as that
/// of a volume which was left behind when its claim was given to another node does; only the note tells them apart.
fn a_renamed_node_keeps_what_is_noted_while_the_former_one_exists(cluster: &mut Cluster) -> Result<()> {
    let former = cluster.node();
    cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &former))?;
    let volume = cluster.bound("data")?.metadata.name.context("a name")?;
    noted(cluster, &[handle(&volume)])?;
    cluster.agent().rig.kill_frontend()?;
    rename(cluster)?;
    is_kept(cluster, &volume, "a note on it says that it belongs to a PersistentVolume that is on another node")?;
    goes_once_nobody_needs_it(cluster, &volume)?;
    node::delete(&cluster.access, &former)
}

/// Starts the agent again, for a node of another name.
fn rename(cluster: &mut Cluster) -> Result<()> {
    let name = format!("{}-renamed", cluster.node());
    let uid = node::make(&cluster.access, &name, &[])?;
    let access = &cluster.access;
    let agent = &mut cluster.agents[0];
    (agent.node, agent.uid) = (name.clone(), uid);
    agent.rig.node = name;
    agent.renew_token(access, Duration::from_secs(3600))?;
    agent.rig.start_frontend()
}

fn is_kept(cluster: &Cluster, volume: &str, why: &str) -> Result<()> {
    let kept = format!("volume kept: {why} volume={}", handle(volume));
    cluster.access.wait(cluster.patience(), "the agent to judge the volume", || {
        ensure!(cluster.agents[0].log()?.contains(&kept), "it does not say {kept:?}");
        Ok(())
    })?;
    ensure!(cluster.agents[0].volumes()? == [handle(volume)], "it is gone");
    Ok(())
}

fn goes_once_nobody_needs_it(cluster: &mut Cluster, volume: &str) -> Result<()> {
    let objects = cluster.volumes();
    cluster.delete_claim("data")?;
    cluster.volume_phase(volume, "Released")?;
    let release = serde_json::json!({ "metadata": { "finalizers": null } });
    cluster.patch_volume(volume, &release)?;
    cluster.access.run(objects.delete(volume, &Default::default()))?;
    cluster.volume_gone(volume)?;
    cluster.agent().rig.restart_frontend()?;
    cluster.access.wait(cluster.patience(), "the volume to be deleted", || {
        let left = cluster.agents[0].volumes()?;
        ensure!(left.is_empty(), "it holds {left:?}");
        Ok(())
    })
}
