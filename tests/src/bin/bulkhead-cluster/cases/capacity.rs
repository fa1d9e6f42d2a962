//! The capacity that agents publish for the scheduler.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::audit;
use bulkhead_tests::cluster::manifests::NAMESPACE;
use bulkhead_tests::cluster::node::{self, TOPOLOGY_KEY};
use bulkhead_tests::cluster::objects::{claim, on};
use bulkhead_tests::cluster::{Cluster, bytes};
use bulkhead_tests::expect::same;
use bulkhead_tests::kubelet::DRIVER;
use k8s_openapi::api::storage::v1::{CSINode, CSIStorageCapacity, StorageClass};
use kube::Api;
use serde_json::{json, to_value};

cases! {
    on Cluster;
    each_class_has_one_object_field_by_field,
    objects_come_and_go_with_classes,
    a_class_that_cannot_be_served_has_no_room,
    a_class_that_does_not_say_which_pool_has_no_room,
    a_node_whose_helper_is_gone_offers_nothing: Bare,
    capacity_falls_and_rises_with_volumes,
    many_volumes_are_published_together: Alone("counts writes within a time"),
    objects_stay_when_the_agent_restarts,
    objects_go_with_the_node,
    objects_return_when_the_node_does: Long,
}

fn objects(cluster: &Cluster) -> Api<CSIStorageCapacity> {
    Api::namespaced(cluster.access.client(), NAMESPACE)
}

fn each_class_has_one_object_field_by_field(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let object = to_value(cluster.capacity(&cluster.class, &node)?)?;
    same("the namespace", &object["metadata"]["namespace"], json!(NAMESPACE))?;
    let labels = json!({
        TOPOLOGY_KEY: node,
        "csi.storage.k8s.io/drivername": DRIVER,
        "csi.storage.k8s.io/managed-by": "bulkhead",
    });
    same("the labels", &object["metadata"]["labels"], labels)?;
    let owner = &object["metadata"]["ownerReferences"];
    same("the owner's kind", &owner[0]["kind"], json!("Node"))?;
    same("the owner's name", &owner[0]["name"], json!(node))?;
    same("the owner's uid", &owner[0]["uid"], json!(cluster.agents[0].uid))?;
    same("the topology", &object["nodeTopology"], json!({ "matchLabels": { TOPOLOGY_KEY: node } }))?;
    let size = |what: &str| bytes(object[what].as_str().unwrap_or_default());
    let (room, largest) = (size("capacity")?, size("maximumVolumeSize")?);
    ensure!((300 << 20..512 << 20).contains(&room), "a pool of 512 MiB has {room} bytes");
    ensure!(largest <= room && largest > 0, "the largest volume has {largest} bytes of {room}");
    Ok(())
}

fn objects_come_and_go_with_classes(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let start = Instant::now();
    let class = cluster.add_class(|class| class["parameters"] = json!({ "sparse": "true" }))?;
    let name = cluster.capacity(&class, &node)?.metadata.name.context("a name")?;
    println!("the capacity of a new class is published after {:?}", start.elapsed());
    let classes: Api<StorageClass> = Api::all(cluster.access.client());
    cluster.access.run(classes.delete(&class, &Default::default()))?;
    cluster.access.wait_until_gone(&objects(cluster), &name, cluster.patience())
}

fn a_class_that_cannot_be_served_has_no_room(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| class["parameters"] = json!({ "colour": "red" }))?;
    let elsewhere = cluster.add_class(|class| class["parameters"] = json!({ "pool": "fast" }))?;
    let node = cluster.node();
    for class in [class, elsewhere] {
        let object = to_value(cluster.capacity(&class, &node)?)?;
        same("the room", &object["capacity"], json!("0"))?;
        same("the largest volume", &object["maximumVolumeSize"], json!("0"))?;
    }
    Ok(())
}

/// Nor would a volume be created for such a class: with several pools, a class that names none means the one called
/// default.
fn a_class_that_does_not_say_which_pool_has_no_room(cluster: &mut Cluster) -> Result<()> {
    let agent = cluster.add_agent_with(|rig| {
        rig.add_pool("fast")?;
        rig.add_pool("slow")
    })?;
    let node = agent.node.clone();
    let open = to_value(cluster.capacity(&cluster.class, &node)?)?;
    same("the room", &open["capacity"], json!("0"))?;
    let named = cluster.add_class(|class| class["parameters"] = json!({ "pool": "fast" }))?;
    ensure!(cluster.room(&named, &node)? > 0, "a pool that is named has no room");
    Ok(())
}

fn a_node_whose_helper_is_gone_offers_nothing(cluster: &mut Cluster) -> Result<()> {
    cluster.add_hurried_agent()?;
    let node = cluster.node();
    ensure!(cluster.room(&cluster.class, &node)? > 0);
    cluster.agent().rig.kill_helper()?;
    // It is expected back for a while.
    let soon = Duration::from_secs(110);
    cluster.access.wait(soon, "the capacity to be withdrawn", || {
        ensure!(cluster.room(&cluster.class, &node)? == 0, "it is still offered");
        Ok(())
    })?;
    cluster.agent().rig.start_helper()?;
    cluster.access.wait(soon, "the capacity to be offered again", || {
        ensure!(cluster.room(&cluster.class, &node)? > 0, "nothing is");
        Ok(())
    })
}

fn capacity_falls_and_rises_with_volumes(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let before = cluster.room(&cluster.class, &node)?;
    cluster.create_claim(&on(claim("data", &cluster.class, "200Mi"), &node))?;
    cluster.bound("data")?;
    let start = Instant::now();
    cluster.capacity_below(&cluster.class, &node, before - (150 << 20))?;
    println!("less room is published after {:?}", start.elapsed());
    cluster.delete_claim("data")?;
    let start = Instant::now();
    cluster.access.wait(cluster.patience(), "the room to be published again", || {
        let room = cluster.room(&cluster.class, &node)?;
        ensure!(room + (8 << 20) > before, "it is {room}, and was {before}");
        Ok(())
    })?;
    println!("more room is published after {:?}", start.elapsed());
    Ok(())
}

fn many_volumes_are_published_together(cluster: &mut Cluster) -> Result<()> {
    const VOLUMES: usize = 30;
    let node = cluster.node();
    let object = cluster.capacity(&cluster.class, &node)?.metadata.name.context("a name")?;
    let room = cluster.room(&cluster.class, &node)?;
    // The agent finds all the claims when it starts.
    cluster.agent().rig.kill_frontend()?;
    for number in 0..VOLUMES {
        cluster.create_claim(&on(claim(&format!("data-{number}"), &cluster.class, "4Mi"), &node))?;
    }
    let before = times_published(cluster, &object)?;
    let start = Instant::now();
    cluster.agent().rig.start_frontend()?;
    for number in 0..VOLUMES {
        cluster.bound(&format!("data-{number}"))?;
    }
    // All but one of them.
    cluster.capacity_below(&cluster.class, &node, room - (VOLUMES as u64 - 1) * (4 << 20))?;
    let published = times_published(cluster, &object)? - before;
    // At the start and after the first volume, then once a second.
    let most = usize::try_from(start.elapsed().as_secs())? + 3;
    println!("published {published} times for {VOLUMES} volumes in {:?}", start.elapsed());
    ensure!(
        most < VOLUMES,
        "the volumes took {:?}, too long to show that they are published together",
        start.elapsed()
    );
    ensure!(
        (1..=most).contains(&published),
        "published {published} times for {VOLUMES} volumes, not 1 to {most} times"
    );
    Ok(())
}

/// Returns how many times a capacity object was written by the agent of the first node.
fn times_published(cluster: &Cluster, object: &str) -> Result<usize> {
    let log = audit::log(&cluster.access, Some(&cluster.node()))?;
    Ok(log.iter().filter(|request| request.verb == "patch" && request.name == object).count())
}

fn objects_stay_when_the_agent_restarts(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let before = cluster.capacity(&cluster.class, &node)?;
    let object = before.metadata.name.clone().context("a name")?;
    cluster.agent().rig.kill_frontend()?;
    // An object that is deleted with its agent would be gone by then.
    std::thread::sleep(Duration::from_secs(1));
    cluster.access.run(objects(cluster).get(&object))?;
    let published = times_published(cluster, &object)?;
    cluster.agent().rig.start_frontend()?;
    cluster.access.wait(cluster.patience(), "the agent to publish its capacity again", || {
        let now = times_published(cluster, &object)?;
        ensure!(now > published, "it was written {now} times");
        Ok(())
    })?;
    let after = cluster.capacity(&cluster.class, &node)?;
    ensure!(after.metadata.uid == before.metadata.uid, "the object was created again");
    Ok(())
}

fn objects_go_with_the_node(cluster: &mut Cluster) -> Result<()> {
    let first = cluster.capacity(&cluster.class, &cluster.node())?;
    let second = cluster.add_agent()?.node.clone();
    let name = cluster.capacity(&cluster.class, &second)?.metadata.name.context("a name")?;
    let agent = cluster.agents.pop().context("two agents")?;
    agent.rig.finish()?;
    node::delete(&cluster.access, &second)?;
    cluster.access.wait_until_gone(&objects(cluster), &name, Duration::from_secs(60))?;
    let left = cluster.capacity(&cluster.class, &cluster.node())?;
    ensure!(left.metadata.uid == first.metadata.uid, "the other node's object was replaced");
    Ok(())
}

/// A node that is deleted and registers again is a new object, and everything that belonged to the old one is deleted.
fn objects_return_when_the_node_does(cluster: &mut Cluster) -> Result<()> {
    let name = cluster.node();
    cluster.capacity(&cluster.class, &name)?;
    node::delete(&cluster.access, &name)?;
    // The controller manager deletes what belonged to the node a while after it.
    let csi_nodes: Api<CSINode> = Api::all(cluster.access.client());
    cluster.access.wait_until_gone(&csi_nodes, &name, cluster.patience())?;
    let uid = node::make(&cluster.access, &name, &[])?;
    cluster.agents[0].uid.clone_from(&uid);
    cluster.agents[0].renew_token(&cluster.access, Duration::from_secs(3600))?;
    let what = "capacity that belongs to the new node";
    cluster.access.wait(Duration::from_secs(420), what, || {
        let owners = cluster.capacity(&cluster.class, &name)?.metadata.owner_references.unwrap_or_default();
        ensure!(owners.iter().any(|owner| owner.uid == uid), "its owners are {owners:?}");
        Ok(())
    })
}
