//! Claims that want no particular node: those with room take them, without fighting over them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{SELECTED_NODE, claim, on, pod};
use serde_json::{Value, json};

cases! {
    on Cluster;
    one_node_takes_it_within_two_seconds,
    three_nodes_share_without_making_one_twice,
    the_fuller_node_stands_back,
    allowed_topologies_are_obeyed,
    a_full_node_does_not_take_it,
    a_refused_one_is_refused_aloud,
    a_pod_follows_the_volume,
}

fn immediate(class: &mut Value) {
    class["volumeBindingMode"] = json!("Immediate");
}

fn node_of(volume: &k8s_openapi::api::core::v1::PersistentVolume) -> Result<String> {
    let labels = volume.metadata.labels.as_ref().context("a volume without labels")?;
    labels.get(TOPOLOGY_KEY).cloned().context("a volume without a node")
}

/// A class of claims that all agents compete for.
fn contested(cluster: &mut Cluster) -> Result<String> {
    let class = cluster.add_class(immediate)?;
    for agent in &cluster.agents {
        // One that tells of its room is watching.
        cluster.capacity(&class, &agent.node)?;
    }
    Ok(class)
}

fn one_node_takes_it_within_two_seconds(cluster: &mut Cluster) -> Result<()> {
    let class = contested(cluster)?;
    let mut times = Vec::new();
    for name in ["first", "second", "third"] {
        let start = Instant::now();
        cluster.create_claim(&claim(name, &class, "16Mi"))?;
        cluster.bound(name)?;
        times.push(start.elapsed());
    }
    // The others are the machine's.
    times.sort();
    ensure!(times[0] < Duration::from_secs(2), "they took {times:?}");
    Ok(())
}

fn three_nodes_share_without_making_one_twice(cluster: &mut Cluster) -> Result<()> {
    cluster.add_agent()?;
    cluster.add_agent()?;
    let class = contested(cluster)?;
    let names: Vec<String> = (0..30).map(|number| format!("data-{number}")).collect();
    let start = Instant::now();
    for name in &names {
        cluster.create_claim(&claim(name, &class, "8Mi"))?;
    }
    let mut nodes = BTreeMap::<String, usize>::new();
    for name in &names {
        *nodes.entry(node_of(&cluster.bound(name)?)?).or_default() += 1;
    }
    println!("30 claims on {nodes:?} in {:?}", start.elapsed());
    let made: usize = cluster.agents.iter().map(|agent| agent.volumes().map(|found| found.len())).sum::<Result<_>>()?;
    ensure!(made == 30, "{made} volumes were made for 30 claims");
    ensure!(nodes.len() == 3, "only {nodes:?} took any");
    Ok(())
}

fn the_fuller_node_stands_back(cluster: &mut Cluster) -> Result<()> {
    cluster.add_agent()?;
    let class = contested(cluster)?;
    cluster.create_claim(&on(claim("large", &cluster.class, "400Mi"), &cluster.node()))?;
    cluster.bound("large")?;
    let mut nodes = BTreeMap::<String, usize>::new();
    for number in 0..8 {
        let name = format!("data-{number}");
        cluster.create_claim(&claim(&name, &class, "8Mi"))?;
        *nodes.entry(node_of(&cluster.bound(&name)?)?).or_default() += 1;
    }
    // A machine that is busy may hold up a node longer than its emptiness is worth.
    let emptier = nodes.get(&cluster.agents[1].node).copied().unwrap_or_default();
    ensure!(emptier >= 6, "the claims went to {nodes:?}");
    Ok(())
}

fn allowed_topologies_are_obeyed(cluster: &mut Cluster) -> Result<()> {
    cluster.add_agent()?;
    for number in [1, 0] {
        let node = cluster.agents[number].node.clone();
        let class = cluster.add_class(|class| {
            immediate(class);
            let wanted = json!([{ "key": TOPOLOGY_KEY, "values": [node] }]);
            class["allowedTopologies"] = json!([{ "matchLabelExpressions": wanted }]);
        })?;
        let name = format!("data-{number}");
        cluster.create_claim(&claim(&name, &class, "8Mi"))?;
        let taken = node_of(&cluster.bound(&name)?)?;
        ensure!(taken == node, "{taken} took what is for {node}");
    }
    Ok(())
}

fn a_full_node_does_not_take_it(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(immediate)?;
    cluster.create_claim(&claim("data", &class, "4Gi"))?;
    cluster.stays_pending("data", Duration::from_secs(2))?;
    let found = cluster.access.run(cluster.claims().get("data"))?;
    let annotations = found.metadata.annotations.unwrap_or_default();
    ensure!(!annotations.contains_key(SELECTED_NODE), "it was taken: {annotations:?}");
    Ok(())
}

fn a_refused_one_is_refused_aloud(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| {
        immediate(class);
        class["parameters"] = json!({ "colour": "red" });
    })?;
    cluster.create_claim(&claim("data", &class, "16Mi"))?;
    cluster.event("data", "ProvisioningFailed", "colour").map(drop)
}

fn a_pod_follows_the_volume(cluster: &mut Cluster) -> Result<()> {
    cluster.add_agent()?;
    let class = cluster.add_class(immediate)?;
    cluster.create_claim(&claim("data", &class, "16Mi"))?;
    let node = node_of(&cluster.bound("data")?)?;
    cluster.create_pod(&pod("user", &cluster.namespace, &["data"]))?;
    cluster.access.wait_for(&cluster.pods(), "user", cluster.patience(), "to be placed", |pod| {
        let placed = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        ensure!(placed == Some(&node), "it is on {placed:?}");
        Ok(())
    })?;
    Ok(())
}
