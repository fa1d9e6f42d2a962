//! Claims that may be on any node: the nodes with enough space compete for them, and each claim is taken by one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{SELECTED_NODE, claim, on, pod};
use bulkhead_tests::pace::patience;
use serde_json::{Value, json};

cases! {
    on Cluster;
    one_node_takes_a_claim_within_two_seconds: Alone("any agent may take its claims, and they are timed"),
    three_nodes_share_without_making_a_volume_twice: Alone("any agent may take its claims"),
    the_fuller_node_holds_back: Alone("depends on a few tenths of a second"),
    allowed_topologies_are_obeyed,
    a_full_node_takes_no_claim,
    a_refusal_is_reported,
    a_pod_follows_the_volume,
}

fn immediate(class: &mut Value) {
    class["volumeBindingMode"] = json!("Immediate");
}

/// Allows only these nodes, so that the agents of other tests do not compete.
fn restricted(class: &mut Value, nodes: &[String]) {
    immediate(class);
    let wanted = json!([{ "key": TOPOLOGY_KEY, "values": nodes }]);
    class["allowedTopologies"] = json!([{ "matchLabelExpressions": wanted }]);
}

fn node_names(cluster: &Cluster) -> Vec<String> {
    cluster.agents.iter().map(|agent| agent.node.clone()).collect()
}

fn node_of(volume: &k8s_openapi::api::core::v1::PersistentVolume) -> Result<String> {
    let labels = volume.metadata.labels.as_ref().context("a volume without labels")?;
    labels.get(TOPOLOGY_KEY).cloned().context("a volume without a node")
}

/// A class whose claims all agents compete for.
fn contested(cluster: &mut Cluster) -> Result<String> {
    let class = cluster.add_class(immediate)?;
    for agent in &cluster.agents {
        // An agent that publishes its capacity also watches claims.
        cluster.capacity(&class, &agent.node)?;
    }
    Ok(class)
}

fn one_node_takes_a_claim_within_two_seconds(cluster: &mut Cluster) -> Result<()> {
    let class = contested(cluster)?;
    let mut times = Vec::new();
    for name in ["first", "second", "third"] {
        let start = Instant::now();
        cluster.create_claim(&claim(name, &class, "16Mi"))?;
        cluster.bound(name)?;
        times.push(start.elapsed());
    }
    // A busy machine may delay some of them, but not all three.
    times.sort();
    ensure!(times[0] < patience(Duration::from_secs(2)), "they took {times:?}");
    Ok(())
}

fn three_nodes_share_without_making_a_volume_twice(cluster: &mut Cluster) -> Result<()> {
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
    ensure!(made == 30, "{made} volumes were created for 30 claims");
    ensure!(nodes.len() == 3, "not all three nodes took any: {nodes:?}");
    Ok(())
}

fn the_fuller_node_holds_back(cluster: &mut Cluster) -> Result<()> {
    cluster.add_agent()?;
    let class = contested(cluster)?;
    let empty = cluster.room(&class, &cluster.node())?;
    cluster.create_claim(&on(claim("large", &cluster.class, "400Mi"), &cluster.node()))?;
    cluster.bound("large")?;
    // Each knows what the other publishes.
    cluster.capacity_below(&class, &cluster.node(), empty / 2)?;
    let mut nodes = BTreeMap::<String, usize>::new();
    let names: Vec<String> = (0..8).map(|number| format!("data-{number}")).collect();
    for name in &names {
        cluster.create_claim(&claim(name, &class, "8Mi"))?;
    }
    for name in &names {
        *nodes.entry(node_of(&cluster.bound(name)?)?).or_default() += 1;
    }
    // The fuller node wins one claim in fifty, and on a busy machine whenever the emptier one is late.
    let emptier = nodes.get(&cluster.agents[1].node).copied().unwrap_or_default();
    ensure!(emptier >= 6, "the claims went to {nodes:?}");
    Ok(())
}

fn allowed_topologies_are_obeyed(cluster: &mut Cluster) -> Result<()> {
    cluster.add_agent()?;
    // Enough claims that they would not all be placed correctly by chance.
    for node in node_names(cluster) {
        let class = cluster.add_class(|class| restricted(class, std::slice::from_ref(&node)))?;
        let names: Vec<String> = (0..5).map(|number| format!("{class}-{number}")).collect();
        for name in &names {
            cluster.create_claim(&claim(name, &class, "8Mi"))?;
        }
        for name in &names {
            let taken = node_of(&cluster.bound(name)?)?;
            ensure!(taken == node, "{taken} took {name}, which only {node} may");
        }
    }
    Ok(())
}

fn a_full_node_takes_no_claim(cluster: &mut Cluster) -> Result<()> {
    let nodes = node_names(cluster);
    let class = cluster.add_class(|class| restricted(class, &nodes))?;
    cluster.capacity(&class, &nodes[0])?;
    cluster.create_claim(&claim("data", &class, "4Gi"))?;
    // Even the fullest node would compete within one second.
    cluster.stays_pending("data", Duration::from_secs(2))?;
    let found = cluster.access.run(cluster.claims().get("data"))?;
    let annotations = found.metadata.annotations.unwrap_or_default();
    ensure!(!annotations.contains_key(SELECTED_NODE), "it was taken: {annotations:?}");
    Ok(())
}

fn a_refusal_is_reported(cluster: &mut Cluster) -> Result<()> {
    let nodes = node_names(cluster);
    let class = cluster.add_class(|class| {
        restricted(class, &nodes);
        class["parameters"] = json!({ "colour": "red" });
    })?;
    cluster.create_claim(&claim("data", &class, "16Mi"))?;
    cluster.event("data", "ProvisioningFailed", "colour").map(drop)
}

fn a_pod_follows_the_volume(cluster: &mut Cluster) -> Result<()> {
    cluster.add_agent()?;
    let nodes = node_names(cluster);
    let class = cluster.add_class(|class| restricted(class, &nodes))?;
    cluster.create_claim(&claim("data", &class, "16Mi"))?;
    let node = node_of(&cluster.bound("data")?)?;
    cluster.create_pod(&pod("user", &cluster.namespace, &["data"]))?;
    cluster.access.wait_for(&cluster.pods(), "user", cluster.patience(), "to be placed", |pod| {
        let placed = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        ensure!(placed == Some(&node), "it is on {placed:?}, not on {node}");
        Ok(())
    })?;
    Ok(())
}
