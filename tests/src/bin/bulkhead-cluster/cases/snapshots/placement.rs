//! A volume that begins as a copy is where its source is, whatever the scheduler thinks.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{SELECTED_NODE, from_claim, from_snapshot, on, pod};
use bulkhead_tests::cluster::snapshots::{CONTENTS, MANAGED_BY};
use bulkhead_tests::commands::Printed;
use bulkhead_tests::csi::v1::DeleteSnapshotRequest;
use serde_json::{Value, json};

use super::super::plugin::plugin;
use super::{bound_on, device, has, made, write};

cases! {
    on Cluster;
    a_copy_is_handed_over_to_the_node_of_its_source,
    a_copy_is_made_before_it_has_a_pod: Recent,
    a_pod_with_a_copy_and_a_new_claim_goes_where_the_source_is: Recent,
    a_copy_that_binds_at_once_is_where_its_source_is,
    a_source_on_a_node_that_is_gone_is_told,
    a_source_that_no_node_has_is_told_once: Long,
    a_lost_nodes_snapshots_are_given_up,
    a_pod_between_two_nodes_is_told: Recent,
    a_full_node_keeps_a_copy,
}

/// When the last agent has said that no node has a claim's source.
const LAST_TOLD: Duration = Duration::from_secs(140);

/// Two agents; the second has a claim called `data` and a snapshot of it called `monday`. Returns both nodes' names.
pub fn set_up(cluster: &mut Cluster) -> Result<(String, String)> {
    cluster.add_agent()?;
    let (first, second) = (cluster.node(), cluster.agents[1].node.clone());
    let class = cluster.add_snapshot_class("daily", |_| {})?;
    let object = made(cluster, "data", &second)?;
    write(&cluster.agents[1], &object, "monday")?;
    cluster.snapshot("monday", "data", &class)?;
    cluster.snapshot_ready("monday")?;
    Ok((first, second))
}

fn a_copy_is_handed_over_to_the_node_of_its_source(cluster: &mut Cluster) -> Result<()> {
    let (first, second) = set_up(cluster)?;
    for (name, copy) in [
        ("restored", from_snapshot(device(cluster, "restored"), "monday")),
        ("cloned", from_claim(device(cluster, "cloned"), "data")),
    ] {
        cluster.create_claim(&on(copy, &first))?;
        let object = bound_on(cluster, name, &second)?;
        has(&cluster.agents[1], &object, "monday")?;
        cluster.event(name, "Provisioning", &format!("on node {second}: handed over"))?;
    }
    ensure!(cluster.agents[0].volumes()?.is_empty(), "the wrong node has made something");
    cluster.delete_snapshot("monday")
}

fn a_copy_is_made_before_it_has_a_pod(cluster: &mut Cluster) -> Result<()> {
    let (_, second) = set_up(cluster)?;
    for (name, copy) in [
        ("restored", from_snapshot(device(cluster, "restored"), "monday")),
        ("cloned", from_claim(device(cluster, "cloned"), "data")),
    ] {
        cluster.create_claim(&copy)?;
        let object = bound_on(cluster, name, &second)?;
        has(&cluster.agents[1], &object, "monday")?;
        let notes = cluster.notes(name)?;
        ensure!(!notes.iter().any(|note| note.contains("handed over")), "{notes:?}");
    }
    cluster.delete_snapshot("monday")
}

fn a_pod_with_a_copy_and_a_new_claim_goes_where_the_source_is(cluster: &mut Cluster) -> Result<()> {
    let (_, second) = set_up(cluster)?;
    let begun = Instant::now();
    cluster.create_claim(&from_snapshot(device(cluster, "restored"), "monday"))?;
    cluster.create_claim(&device(cluster, "new"))?;
    cluster.create_pod(&with_devices(pod("user", &cluster.namespace, &["restored", "new"])))?;
    cluster.access.wait_for(&cluster.pods(), "user", cluster.patience(), "to be placed", |pod| {
        let placed = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        ensure!(placed == Some(&second), "it is on {placed:?}, not on {second}");
        Ok(())
    })?;
    println!("placed {:?} after its claims were made", begun.elapsed());
    for name in ["restored", "new"] {
        bound_on(cluster, name, &second)?;
    }
    cluster.delete_snapshot("monday")
}

/// A pod that uses its claims as devices.
pub fn with_devices(mut pod: Value) -> Value {
    let names: Vec<Value> =
        pod["spec"]["volumes"].as_array().into_iter().flatten().map(|volume| volume["name"].clone()).collect();
    let devices: Vec<Value> = names
        .iter()
        .map(|name| json!({ "name": name, "devicePath": format!("/dev/{}", name.as_str().unwrap_or_default()) }))
        .collect();
    pod["spec"]["containers"][0]["volumeDevices"] = json!(devices);
    pod
}

fn a_copy_that_binds_at_once_is_where_its_source_is(cluster: &mut Cluster) -> Result<()> {
    let (_, second) = set_up(cluster)?;
    let immediate = cluster.add_class(|class| class["volumeBindingMode"] = json!("Immediate"))?;
    // Enough that they would not all be placed correctly by chance.
    for number in 0..4 {
        let name = format!("restored-{number}");
        let mut copy = from_snapshot(device(cluster, &name), "monday");
        copy["spec"]["storageClassName"] = json!(immediate);
        cluster.create_claim(&copy)?;
        bound_on(cluster, &name, &second)?;
    }
    cluster.delete_snapshot("monday")
}

fn a_source_on_a_node_that_is_gone_is_told(cluster: &mut Cluster) -> Result<()> {
    let (first, _) = set_up(cluster)?;
    let labels = cluster.snapshot_ready("monday")?["metadata"]["labels"].clone();
    let path = lose(cluster)?;
    cluster.create_claim(&on(from_snapshot(device(cluster, "restored"), "monday"), &first))?;
    let why = format!("on node {}, which is no longer part of the cluster", gone(cluster));
    cluster.event("restored", "ProvisioningFailed", &why)?;
    let claim = cluster.access.run(cluster.claims().get("restored"))?;
    let annotations = claim.metadata.annotations.unwrap_or_default();
    ensure!(annotations.get(SELECTED_NODE) == Some(&first), "it was dropped: {annotations:?}");
    cluster.delete_claim("restored")?;
    cluster.ask("PATCH", &path, Some(&json!({ "metadata": { "labels": labels } })))?;
    cluster.agents[1].rig.start_frontend()?;
    cluster.delete_snapshot("monday")
}

fn a_source_that_no_node_has_is_told_once(cluster: &mut Cluster) -> Result<()> {
    let (first, second) = set_up(cluster)?;
    let immediate = cluster.add_class(|class| class["volumeBindingMode"] = json!("Immediate"))?;
    let mut copy = from_claim(device(cluster, "cloned"), "nothing");
    copy["spec"]["storageClassName"] = json!(immediate);
    cluster.create_claim(&copy)?;
    let told = "no node has taken the claim: none has claim nothing";
    let times = || -> Result<usize> { Ok(cluster.notes("cloned")?.iter().filter(|note| note.contains(told)).count()) };
    cluster.access.wait(LAST_TOLD, "an event about the claim", || {
        ensure!(times()? > 0, "there are: {:?}", cluster.notes("cloned")?);
        Ok(())
    })?;
    let doctor = plugin(cluster, &["doctor"])?.text;
    let line = format!("claim {}/cloned is taken by no node: claim nothing", cluster.namespace);
    ensure!(doctor.contains(&line), "{doctor}");
    // By then every agent has had its turn.
    std::thread::sleep(LAST_TOLD);
    ensure!(times()? == 1, "{first} and {second} have said: {:?}", cluster.notes("cloned")?);
    cluster.delete_claim("cloned")?;
    cluster.delete_snapshot("monday")
}

/// Makes the snapshot `monday` one of a node that does not exist, and returns the path of its object.
fn lose(cluster: &mut Cluster) -> Result<String> {
    let content = cluster.snapshot_ready("monday")?;
    let path = format!("{CONTENTS}/{}", content["metadata"]["name"].as_str().unwrap_or_default());
    cluster.agents[1].rig.kill_frontend()?;
    let gone = json!({ "metadata": { "labels": { MANAGED_BY: gone(cluster), TOPOLOGY_KEY: gone(cluster) } } });
    cluster.ask("PATCH", &path, Some(&gone))?;
    Ok(path)
}

/// A node that does not exist, which no other test speaks of.
fn gone(cluster: &Cluster) -> String {
    format!("{}-gone", cluster.namespace)
}

fn a_lost_nodes_snapshots_are_given_up(cluster: &mut Cluster) -> Result<()> {
    let (_, second) = set_up(cluster)?;
    let (node, name) = (gone(cluster), format!("{}/monday", cluster.namespace));
    let listed = plugin(cluster, &["snapshots"])?.succeeded()?;
    let row = listed.lines().find(|line| line.contains(&name)).with_context(|| listed.clone())?;
    ensure!(row.contains(&second) && row.contains("16 MiB") && row.contains("Ready"), "{listed}");
    let path = lose(cluster)?;
    let doctor = plugin(cluster, &["doctor"])?.text;
    ensure!(doctor.contains(&format!("1 snapshot on node {node}")), "{doctor}");
    let orphans = plugin(cluster, &["orphans"])?.succeeded()?;
    Printed::row(&orphans, &["snapshot", &node, &name, "16 MiB"])?;
    let told = plugin(cluster, &["release-node", &node, "--yes"])?.succeeded()?;
    ensure!(told.contains("1 snapshot given up"), "{told}");
    cluster.is_gone(&path)?;
    cluster.is_gone(&format!("{}/monday", cluster.snapshots()))?;
    let orphans = plugin(cluster, &["orphans"])?.succeeded()?;
    ensure!(!orphans.contains(&node), "{orphans}");
    // What is on the lost node's disk is nobody's concern any more.
    cluster.agents[1].rig.start_frontend()?;
    let left = cluster.agents[1].volumes()?.into_iter().find(|name| name.starts_with("snapshot-"));
    let snapshot_id = left.context("the snapshot is gone")?;
    let csi = cluster.agents[1].rig.csi()?;
    csi.delete_snapshot(DeleteSnapshotRequest { snapshot_id, ..Default::default() })?;
    Ok(())
}

fn a_pod_between_two_nodes_is_told(cluster: &mut Cluster) -> Result<()> {
    let (first, second) = set_up(cluster)?;
    made(cluster, "new", &first)?;
    cluster.create_claim(&from_snapshot(device(cluster, "restored"), "monday"))?;
    bound_on(cluster, "restored", &second)?;
    cluster.create_pod(&with_devices(pod("user", &cluster.namespace, &["restored", "new"])))?;
    let doctor = plugin(cluster, &["doctor"])?.text;
    let told = format!("pod {}/user fits on no node", cluster.namespace);
    ensure!(doctor.contains(&told) && doctor.contains(&format!("new on {first}; restored on {second}")), "{doctor}");
    // As it says.
    cluster.delete_pod("user")?;
    cluster.delete_claim("new")?;
    cluster.access.wait_until_gone(&cluster.claims(), "new", cluster.patience())?;
    cluster.create_claim(&device(cluster, "new"))?;
    cluster.create_pod(&with_devices(pod("user", &cluster.namespace, &["restored", "new"])))?;
    bound_on(cluster, "new", &second)?;
    cluster.delete_snapshot("monday")
}

fn a_full_node_keeps_a_copy(cluster: &mut Cluster) -> Result<()> {
    let (first, second) = set_up(cluster)?;
    let mut large = from_snapshot(device(cluster, "restored"), "monday");
    large["spec"]["resources"]["requests"]["storage"] = json!("4Gi");
    cluster.create_claim(&on(large, &first))?;
    cluster.event("restored", "Provisioning", "handed over")?;
    cluster.event("restored", "ProvisioningFailed", "has room for")?;
    let claim = cluster.access.run(cluster.claims().get("restored"))?;
    let annotations = claim.metadata.annotations.unwrap_or_default();
    ensure!(annotations.get(SELECTED_NODE) == Some(&second), "it was given back: {annotations:?}");
    cluster.delete_claim("restored")?;
    cluster.delete_snapshot("monday")
}
