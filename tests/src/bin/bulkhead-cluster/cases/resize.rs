//! A claim that asks for more space gets it: its volume, its PersistentVolume and its status grow.

use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::objects::{PROVISIONER, SELECTED_NODE, block, claim, conditions, handle, on};
use bulkhead_tests::expect::same;
use serde_json::{Value, json, to_value};

use super::reclaim::{given_to_another, kept};

cases! {
    on Cluster;
    a_directory_grows,
    an_image_grows,
    several_steps_in_a_row,
    a_growth_that_was_infeasible_can_be_lowered,
    a_growth_that_was_infeasible_is_done_when_there_is_room,
    an_agent_that_was_dead_finishes_when_it_is_back,
    a_claim_that_others_have_bound_grows,
}

/// Asks for that size.
pub fn ask_for(cluster: &Cluster, name: &str, size: &str) -> Result<()> {
    cluster.patch_claim(name, &json!({ "spec": { "resources": { "requests": { "storage": size } } } }))
}

/// Waits until the claim's capacity is `size`, and returns the whole claim.
pub fn has(cluster: &Cluster, name: &str, size: &str) -> Result<Value> {
    let claim = cluster.access.wait_for(&cluster.claims(), name, cluster.patience(), "to have grown", |claim| {
        let status = to_value(&claim.status)?;
        ensure!(status["capacity"]["storage"] == size, "its status is {status}");
        Ok(())
    });
    let claim = claim.with_context(|| format!("events: {:?}", cluster.notes(name).unwrap_or_default()))?;
    Ok(to_value(claim)?)
}

/// Checks that the claim's status is what external-resizer and the kubelet leave when an expansion is finished.
fn is_settled(claim: &Value, size: &str) -> Result<()> {
    let status = &claim["status"];
    same("the allocated size", &status["allocatedResources"], json!({ "storage": size }))?;
    ensure!(status["allocatedResourceStatuses"].get("storage").is_none(), "a growth is under way: {status}");
    let conditions = conditions(status);
    ensure!(conditions.is_empty(), "conditions are left over: {conditions:?}");
    let key = "volume.kubernetes.io/node-expansion-not-required";
    same("the mark for the kubelet", &claim["metadata"]["annotations"][key], json!("true"))
}

fn a_directory_grows(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&on(claim("data", &cluster.class, "16Mi"), &node))?;
    let name = cluster.bound("data")?.metadata.name.context("a name")?;
    let start = Instant::now();
    ask_for(cluster, "data", "48Mi")?;
    is_settled(&has(cluster, "data", "48Mi")?, "48Mi")?;
    println!("grown in {:?}", start.elapsed());
    let volume = to_value(cluster.access.run(cluster.volumes().get(&name))?)?;
    same("the object's capacity", &volume["spec"]["capacity"], json!({ "storage": "48Mi" }))?;
    cluster.event("data", "VolumeResizeSuccessful", handle(&name))?;
    cluster.event("data", "Resizing", handle(&name)).map(drop)
}

fn an_image_grows(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&block(on(claim("disk", &cluster.class, "16Mi"), &node)))?;
    let name = cluster.bound("disk")?.metadata.name.context("a name")?;
    ask_for(cluster, "disk", "32Mi")?;
    is_settled(&has(cluster, "disk", "32Mi")?, "32Mi")?;
    let image = cluster.agent().rig.pool().volume(handle(&name)).join("image").metadata()?;
    ensure!(image.len() == 32 << 20 && image.blocks() * 512 >= 32 << 20, "the image has {} bytes", image.len());
    Ok(())
}

fn several_steps_in_a_row(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&on(claim("data", &cluster.class, "16Mi"), &node))?;
    cluster.bound("data")?;
    for size in ["20Mi", "24Mi", "28Mi", "32Mi"] {
        ask_for(cluster, "data", size)?;
    }
    is_settled(&has(cluster, "data", "32Mi")?, "32Mi")
}

fn is_infeasible(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.access.wait_for(&cluster.claims(), name, cluster.patience(), "to be infeasible", |claim| {
        let status = to_value(&claim.status)?;
        let found = &status["allocatedResourceStatuses"]["storage"];
        ensure!(found == "ControllerResizeInfeasible", "its status is {status}");
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let failed = conditions.iter().any(|condition| condition["type"] == "ControllerResizeError");
        ensure!(failed, "its conditions are {conditions:?}");
        Ok(())
    })?;
    let event = cluster.event(name, "VolumeResizeFailed", "room")?;
    ensure!(event.type_.as_deref() == Some("Warning"), "it is of type {:?}", event.type_);
    Ok(())
}

fn a_growth_that_was_infeasible_can_be_lowered(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    for (name, claim) in [
        ("data", on(claim("data", &cluster.class, "16Mi"), &node)),
        ("disk", block(on(claim("disk", &cluster.class, "16Mi"), &node))),
    ] {
        cluster.create_claim(&claim)?;
        cluster.bound(name)?;
        ask_for(cluster, name, "2Gi")?;
        is_infeasible(cluster, name)?;
        // Less than was requested before, but still more than the volume has.
        ask_for(cluster, name, "32Mi")?;
        is_settled(&has(cluster, name, "32Mi")?, "32Mi")?;
    }
    Ok(())
}

fn a_growth_that_was_infeasible_is_done_when_there_is_room(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&on(claim("data", &cluster.class, "16Mi"), &node))?;
    cluster.create_claim(&on(claim("other", &cluster.class, "300Mi"), &node))?;
    cluster.bound("data")?;
    cluster.bound("other")?;
    ask_for(cluster, "data", "300Mi")?;
    is_infeasible(cluster, "data")?;
    // The published capacity may still be from before the volumes were created.
    let wait_for_room = |enough: bool| {
        cluster.access.wait(cluster.patience(), "the capacity to be published", || {
            let room = cluster.room(&cluster.class, &node)?;
            ensure!((room > 300 << 20) == enough, "there are {room} bytes");
            Ok(())
        })
    };
    wait_for_room(false)?;
    cluster.delete_claim("other")?;
    wait_for_room(true)?;
    // The agent retries the same size only after minutes, but a different one immediately.
    ask_for(cluster, "data", "301Mi")?;
    is_settled(&has(cluster, "data", "301Mi")?, "301Mi")
}

fn an_agent_that_was_dead_finishes_when_it_is_back(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&on(claim("data", &cluster.class, "16Mi"), &node))?;
    cluster.bound("data")?;
    cluster.agent().rig.kill_frontend()?;
    ask_for(cluster, "data", "32Mi")?;
    cluster.agent().rig.start_frontend()?;
    is_settled(&has(cluster, "data", "32Mi")?, "32Mi")
}

fn a_claim_that_others_have_bound_grows(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| class["reclaimPolicy"] = json!("Retain"))?;
    let name = kept(cluster, &class)?;
    given_to_another(cluster, &class, &name)?;
    let annotations = cluster.access.run(cluster.claims().get("again"))?.metadata.annotations.unwrap_or_default();
    ensure!(!annotations.contains_key(PROVISIONER) && !annotations.contains_key(SELECTED_NODE), "{annotations:?}");
    ask_for(cluster, "again", "48Mi")?;
    is_settled(&has(cluster, "again", "48Mi")?, "48Mi")?;
    cluster.patch_volume(&name, &json!({ "spec": { "persistentVolumeReclaimPolicy": "Delete" } }))
}
