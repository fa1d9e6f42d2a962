//! A volume that begins as a copy is where its source is, whatever the scheduler thinks.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{SELECTED_NODE, from_claim, from_snapshot, on, pod};
use serde_json::{Value, json};

use super::{bound_on, device, has, made, write};

cases! {
    on Cluster;
    a_copy_is_handed_over_to_the_node_of_its_source,
    a_copy_is_made_before_it_has_a_pod: Recent,
    a_pod_with_a_copy_and_a_new_claim_goes_where_the_source_is: Recent,
    a_copy_that_binds_at_once_is_where_its_source_is,
    a_source_on_a_node_that_is_gone_is_told,
    a_full_node_keeps_a_copy,
}

/// Two agents; the second has a claim called `data` and a snapshot of it called `monday`. Returns both nodes' names.
fn set_up(cluster: &mut Cluster) -> Result<(String, String)> {
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
fn with_devices(mut pod: Value) -> Value {
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
    let content = cluster.snapshot_ready("monday")?;
    let path = format!(
        "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/{}",
        content["metadata"]["name"].as_str().unwrap_or_default()
    );
    // As if the node had been taken out of the cluster.
    cluster.agents[1].stand.kill_frontend()?;
    let gone = json!({ "metadata": { "labels": {
        "snapshot.storage.kubernetes.io/managed-by": "gone", TOPOLOGY_KEY: "gone",
    } } });
    cluster.ask("PATCH", &path, Some(&gone))?;
    cluster.create_claim(&on(from_snapshot(device(cluster, "restored"), "monday"), &first))?;
    cluster.event("restored", "ProvisioningFailed", "on node gone, which is no longer part of the cluster")?;
    cluster.stays_pending("restored", Duration::from_secs(1))?;
    let claim = cluster.access.run(cluster.claims().get("restored"))?;
    let annotations = claim.metadata.annotations.unwrap_or_default();
    ensure!(annotations.get(SELECTED_NODE) == Some(&first), "it was dropped: {annotations:?}");
    cluster.delete_claim("restored")?;
    let back = content["metadata"]["labels"].clone();
    cluster.ask("PATCH", &path, Some(&json!({ "metadata": { "labels": back } })))?;
    cluster.agents[1].stand.start_frontend()?;
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
