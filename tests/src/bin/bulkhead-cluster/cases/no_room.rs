//! A node without enough space gives a claim back, and the scheduler chooses another node.

use std::fs::File;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{SELECTED_NODE, block, claim, on, pod};
use bulkhead_tests::cluster::{Cluster, audit};
use bulkhead_tests::observe::mounts;
use bulkhead_tests::rig::Rig;
use serde_json::json;

cases! {
    on Cluster;
    a_claim_is_given_back_with_an_event,
    a_broken_pool_has_no_room,
    capacity_is_published_before_the_claim_is_given_back,
    the_scheduler_chooses_another_node,
    a_pod_waits_until_there_is_room,
}

fn a_claim_is_given_back_with_an_event(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    for (name, claim) in [
        ("data", on(claim("data", &cluster.class, "4Gi"), &node)),
        ("disk", block(on(claim("disk", &cluster.class, "4Gi"), &node))),
    ] {
        cluster.create_claim(&claim)?;
        is_given_back(cluster, name)?;
        cluster.event(name, "ProvisioningFailed", "has room for")?;
    }
    ensure!(cluster.agents[0].volumes()?.is_empty(), "a volume was created");
    Ok(())
}

fn is_given_back(cluster: &Cluster, name: &str) -> Result<()> {
    let done = cluster.access.wait_for(&cluster.claims(), name, cluster.patience(), "to be given back", |claim| {
        let annotations = claim.metadata.annotations.clone().unwrap_or_default();
        ensure!(!annotations.contains_key(SELECTED_NODE), "it still has its node: {annotations:?}");
        Ok(())
    });
    done.map(drop)
}

fn a_broken_pool_has_no_room(cluster: &mut Cluster) -> Result<()> {
    let agent = cluster.add_agent_with(|rig| {
        rig.add_pools(["default", "fast"])?;
        mounts::unmount_all(&rig.pools[1].directory)
    })?;
    let node = agent.node.clone();
    let class = cluster.add_class(|class| class["parameters"] = json!({ "pool": "fast" }))?;
    ensure!(cluster.room(&class, &node)? == 0, "a pool that is not mounted has room");
    ensure!(cluster.room(&cluster.class, &node)? > 0, "the other pool has no room");
    cluster.create_claim(&on(claim("data", &class, "16Mi"), &node))?;
    is_given_back(cluster, "data")?;
    cluster.event("data", "ProvisioningFailed", "fast")?;
    cluster.agents[1].rig.pools.truncate(1);
    Ok(())
}

fn capacity_is_published_before_the_claim_is_given_back(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let object = cluster.capacity(&cluster.class, &node)?.metadata.name.context("a name")?;
    // Something else fills the pool, and the agent does not know.
    let filler = cluster.agents[0].rig.pool().directory.join(".filler");
    let file = File::create(&filler)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 300 << 20)?;
    the_helper_has_noticed(&cluster.agents[0].rig)?;
    let before = audit::log(&cluster.access, Some(&node))?.len();
    cluster.create_claim(&on(claim("data", &cluster.class, "300Mi"), &node))?;
    is_given_back(cluster, "data")?;
    let made = audit::log(&cluster.access, Some(&node))?.split_off(before);
    let order: Vec<&str> = made.iter().filter(|one| one.verb == "patch").map(|one| one.name.as_str()).collect();
    let given_back = order.iter().position(|name| *name == "data").context("the agent has not patched the claim")?;
    ensure!(order[..given_back].contains(&object.as_str()), "the order is {order:?}");
    std::fs::remove_file(filler)?;
    Ok(())
}

/// The helper measures its pools at most once a second, and until then still creates volumes that no longer fit.
fn the_helper_has_noticed(rig: &Rig) -> Result<()> {
    let helper = rig.helper()?;
    let pool = Request::PoolStatus { pool: rig.pool().name.parse()? };
    rig.eventually(15, || match helper.ask(&pool)? {
        Reply::Pool(status) if status.available < 300 << 20 => Ok(()),
        other => bail!("{other:?}"),
    })
}

fn the_scheduler_chooses_another_node(cluster: &mut Cluster) -> Result<()> {
    cluster.add_agent()?;
    for agent in &cluster.agents {
        cluster.capacity(&cluster.class, &agent.node)?;
    }
    // A node has space for one of these, but not for two. When the scheduler starts, it sees enough space on both
    // nodes.
    for name in ["a", "b"] {
        cluster.create_claim(&claim(name, &cluster.class, "300Mi"))?;
    }
    for name in ["a", "b"] {
        cluster.create_pod(&pod(name, &cluster.namespace, &[name]))?;
    }
    let mut nodes = Vec::new();
    for name in ["a", "b"] {
        let volume = cluster.bound(name)?;
        nodes.push(volume.metadata.labels.context("labels")?.get(TOPOLOGY_KEY).cloned());
    }
    nodes.sort();
    nodes.dedup();
    ensure!(nodes.len() == 2, "both are on {nodes:?}");
    Ok(())
}

fn a_pod_waits_until_there_is_room(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&on(claim("first", &cluster.class, "400Mi"), &node))?;
    cluster.bound("first")?;
    cluster.capacity_below(&cluster.class, &node, 200 << 20)?;
    cluster.create_claim(&claim("second", &cluster.class, "300Mi"))?;
    cluster.create_pod(&pod("second", &cluster.namespace, &["second"]))?;
    cluster.access.wait_for(&cluster.pods(), "second", cluster.patience(), "to be unschedulable", |pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let waits = conditions.iter().any(|condition| condition.reason.as_deref() == Some("Unschedulable"));
        ensure!(waits, "its conditions are {conditions:?}");
        Ok(())
    })?;
    let claim = cluster.access.run(cluster.claims().get("second"))?;
    ensure!(claim.spec.is_some_and(|spec| spec.volume_name.is_none()), "the claim has a volume already");
    cluster.delete_claim("first")?;
    cluster.bound("second").map(drop)
}
