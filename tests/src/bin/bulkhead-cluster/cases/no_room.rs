//! A node without room gives a claim back, and the scheduler finds another.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{SELECTED_NODE, block, claim, on, pod};
use bulkhead_tests::observe::mounts;
use serde_json::{Value, json};

cases! {
    on Cluster;
    a_claim_is_given_back_with_an_event,
    a_broken_pool_is_one_without_room,
    capacity_is_told_before_the_claim_is_given_back,
    the_scheduler_goes_elsewhere,
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
    ensure!(cluster.agents[0].volumes()?.is_empty(), "something was made");
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

fn a_broken_pool_is_one_without_room(cluster: &mut Cluster) -> Result<()> {
    let agent = cluster.add_agent_with(|stand| {
        stand.add_pool("default")?;
        stand.add_pool("fast")?;
        mounts::unmount_all(&stand.pools[1].directory)
    })?;
    let node = agent.node.clone();
    let class = cluster.add_class(|class| class["parameters"] = json!({ "pool": "fast" }))?;
    ensure!(cluster.room(&class, &node)? == 0, "there is room in a pool that is not mounted");
    ensure!(cluster.room(&cluster.class, &node)? > 0, "the pool beside it has none");
    cluster.create_claim(&on(claim("data", &class, "16Mi"), &node))?;
    is_given_back(cluster, "data")?;
    cluster.event("data", "ProvisioningFailed", "fast")?;
    cluster.agents[1].stand.pools.truncate(1);
    Ok(())
}

fn capacity_is_told_before_the_claim_is_given_back(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.capacity(&cluster.class, &node)?;
    let before = writes(cluster, &node)?.len();
    cluster.create_claim(&on(claim("first", &cluster.class, "300Mi"), &node))?;
    cluster.create_claim(&on(claim("second", &cluster.class, "300Mi"), &node))?;
    let given_back = || -> Result<String> {
        for name in ["first", "second"] {
            let found = cluster.access.run(cluster.claims().get(name))?;
            if !found.metadata.annotations.unwrap_or_default().contains_key(SELECTED_NODE) {
                return Ok(name.to_owned());
            }
        }
        anyhow::bail!("both have their node")
    };
    cluster.access.wait(cluster.patience(), "one of two claims to be given back", given_back)?;
    let order = writes(cluster, &node)?.split_off(before);
    let given_back = order.iter().position(|what| what == "persistentvolumeclaims").context("no claim was patched")?;
    let told = order[..given_back].iter().any(|what| what == "csistoragecapacities");
    ensure!(told, "the order is {order:?}");
    Ok(())
}

/// What kinds of objects a node's agent has patched, in order.
fn writes(cluster: &Cluster, node: &str) -> Result<Vec<String>> {
    let log = fs::read_to_string(cluster.access.directory().join("audit.log"))?;
    let patched = |line: &str| {
        let entry: Value = serde_json::from_str(line).ok()?;
        let own = entry["user"]["extra"]["authentication.kubernetes.io/node-name"][0] == node;
        let kind = entry["objectRef"]["resource"].as_str().map(str::to_owned);
        kind.filter(|_| own && entry["verb"] == "patch")
    };
    Ok(log.lines().filter_map(patched).collect())
}

fn the_scheduler_goes_elsewhere(cluster: &mut Cluster) -> Result<()> {
    cluster.add_agent()?;
    for agent in &cluster.agents {
        cluster.capacity(&cluster.class, &agent.node)?;
    }
    // Each node holds one of these and no second; the scheduler has room on both in its books when it begins.
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
    cluster.stays_pending("second", Duration::from_secs(3))?;
    cluster.delete_claim("first")?;
    cluster.bound("second").map(drop)
}
