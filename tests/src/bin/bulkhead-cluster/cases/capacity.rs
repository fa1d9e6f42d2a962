//! What the scheduler is told of each node's room.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::audit::{requests, since};
use bulkhead_tests::cluster::manifests::NAMESPACE;
use bulkhead_tests::cluster::node::{self, TOPOLOGY_KEY};
use bulkhead_tests::cluster::objects::{claim, on};
use bulkhead_tests::cluster::{Cluster, bytes};
use bulkhead_tests::expect::same;
use bulkhead_tests::kubelet::DRIVER;
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use kube::Api;
use serde_json::{Value, json, to_value};

cases! {
    on Cluster;
    one_object_a_class_field_by_field,
    classes_come_and_go,
    a_class_that_cannot_be_served_has_no_room,
    a_class_that_leaves_the_pool_open_has_no_room,
    it_falls_and_rises_with_volumes,
    many_volumes_are_told_together,
    objects_stay_when_the_agent_restarts,
    objects_go_with_the_node,
    objects_return_when_the_node_does: Long,
}

fn objects(cluster: &Cluster) -> Api<CSIStorageCapacity> {
    Api::namespaced(cluster.access.client(), NAMESPACE)
}

fn one_object_a_class_field_by_field(cluster: &mut Cluster) -> Result<()> {
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

fn classes_come_and_go(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let start = Instant::now();
    let class = cluster.add_class(|class| class["parameters"] = json!({ "sparse": "true" }))?;
    let name = cluster.capacity(&class, &node)?.metadata.name.context("a name")?;
    println!("a new class is told of after {:?}", start.elapsed());
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

/// Nothing would be made for such a class either: no pool of several is meant when none is called default.
fn a_class_that_leaves_the_pool_open_has_no_room(cluster: &mut Cluster) -> Result<()> {
    let agent = cluster.add_agent_with(|stand| {
        stand.add_pool("fast")?;
        stand.add_pool("slow")
    })?;
    let node = agent.node.clone();
    let open = to_value(cluster.capacity(&cluster.class, &node)?)?;
    same("the room", &open["capacity"], json!("0"))?;
    let named = cluster.add_class(|class| class["parameters"] = json!({ "pool": "fast" }))?;
    ensure!(cluster.room(&named, &node)? > 0, "there is no room in a pool that is named");
    Ok(())
}

fn it_falls_and_rises_with_volumes(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let before = cluster.room(&cluster.class, &node)?;
    cluster.create_claim(&on(claim("data", &cluster.class, "200Mi"), &node))?;
    cluster.bound("data")?;
    let start = Instant::now();
    cluster.capacity_below(&cluster.class, &node, before - (150 << 20))?;
    println!("less room is told after {:?}", start.elapsed());
    cluster.delete_claim("data")?;
    let start = Instant::now();
    cluster.access.wait(cluster.patience(), "the room to be told again", || {
        let room = cluster.room(&cluster.class, &node)?;
        ensure!(room + (8 << 20) > before, "it is {room}, and was {before}");
        Ok(())
    })?;
    println!("more room is told after {:?}", start.elapsed());
    Ok(())
}

fn many_volumes_are_told_together(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.capacity(&cluster.class, &node)?;
    std::thread::sleep(Duration::from_secs(2));
    let before = requests(&cluster.access, Some(&node))?;
    let all: Api<StorageClass> = Api::all(cluster.access.client());
    let classes = cluster.access.run(all.list(&Default::default()))?.items.len();
    let start = Instant::now();
    for number in 0..30 {
        cluster.create_claim(&on(claim(&format!("data-{number}"), &cluster.class, "4Mi"), &node))?;
    }
    for number in 0..30 {
        cluster.bound(&format!("data-{number}"))?;
    }
    std::thread::sleep(Duration::from_secs(2));
    let made = since(&before, &requests(&cluster.access, Some(&node))?);
    println!("{made:?}");
    let told = made.get("patch csistoragecapacities").copied().unwrap_or_default();
    // Once a second, and a few times behind the last change.
    let most = classes * (usize::try_from(start.elapsed().as_secs())? + 6);
    ensure!(told >= classes && told <= most, "capacity was told {told} times for 30 volumes, {most} would do");
    Ok(())
}

fn objects_stay_when_the_agent_restarts(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let before = cluster.capacity(&cluster.class, &node)?;
    cluster.agent().stand.kill_frontend()?;
    std::thread::sleep(Duration::from_secs(1));
    cluster.capacity(&cluster.class, &node)?;
    cluster.agent().stand.start_frontend()?;
    std::thread::sleep(Duration::from_secs(2));
    let after = cluster.capacity(&cluster.class, &node)?;
    ensure!(after.metadata.uid == before.metadata.uid, "the object was made anew");
    Ok(())
}

fn objects_go_with_the_node(cluster: &mut Cluster) -> Result<()> {
    let second = cluster.add_agent()?.node.clone();
    let name = cluster.capacity(&cluster.class, &second)?.metadata.name.context("a name")?;
    let agent = cluster.agents.pop().context("two agents")?;
    agent.stand.finish()?;
    node::delete(&cluster.access, &second)?;
    cluster.access.wait_until_gone(&objects(cluster), &name, Duration::from_secs(60))?;
    // The other one's are still there.
    let node = cluster.node();
    let left: Value = to_value(cluster.capacity(&cluster.class, &node)?)?;
    ensure!(left.is_object(), "the other node's object is gone");
    Ok(())
}

/// A node that is deleted and registers again is another object, and whatever belonged to the first goes.
fn objects_return_when_the_node_does(cluster: &mut Cluster) -> Result<()> {
    let name = cluster.node();
    cluster.capacity(&cluster.class, &name)?;
    node::delete(&cluster.access, &name)?;
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
