//! An operator has a pool take no new volumes, and take them again.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use bulkhead_model::objects::lease::PERIOD;
use bulkhead_tests::cases;
use bulkhead_tests::cluster::manifests::NAMESPACE;
use bulkhead_tests::cluster::objects::{SELECTED_NODE, claim, on};
use bulkhead_tests::cluster::{Cluster, PATIENCE};
use bulkhead_tests::commands::Printed;
use bulkhead_tests::monitoring;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::plugin::{add_reachable_agent, agent_pod, as_json, plugin};
use super::resize;

cases! {
    on Cluster;
    a_cordoned_pool_takes_no_new_volumes: Bare,
}

fn a_cordoned_pool_takes_no_new_volumes(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| class["allowVolumeExpansion"] = json!(true))?;
    add_reachable_agent(cluster)?;
    let (node, pool) = (cluster.node(), format!("{}/default", cluster.node()));
    is_reachable(cluster)?;
    cluster.create_claim(&on(claim("before", &class, "8Mi"), &node))?;
    cluster.bound("before")?;
    ensure!(cluster.room(&class, &node)? > 0, "there is no room");
    mistakes_are_told(cluster, &node)?;

    let told = plugin(cluster, &["cordon", &pool])?.succeeded()?;
    ensure!(told.contains(&format!("pool default of node {node} is cordoned")), "{told}");
    let again = as_json(cluster, &["cordon", &pool])?;
    ensure!(again == json!({ "node": node, "pool": "default", "cordoned": true, "changed": false }), "{again}");
    // The agent reads it when it next writes its Lease.
    cluster.access.wait(2 * PERIOD + PATIENCE, "the pool to have no room", || {
        ensure!(cluster.room(&class, &node)? == 0, "it has room");
        Ok(())
    })?;
    is_refused(cluster, &class, "after")?;
    is_said(cluster, &node, true)?;
    // What is there is served as before.
    resize::ask_for(cluster, "before", "16Mi")?;
    resize::has(cluster, "before", "16Mi")?;

    cluster.agent().rig.kill_frontend()?;
    cluster.agent().rig.start_frontend()?;
    is_refused(cluster, &class, "after-a-restart")?;

    let told = plugin(cluster, &["uncordon", &pool])?.succeeded()?;
    ensure!(told.contains("is not cordoned any more"), "{told}");
    cluster.agent().rig.kill_frontend()?;
    cluster.agent().rig.start_frontend()?;
    cluster.access.wait(PATIENCE, "the pool to have room", || {
        ensure!(cluster.room(&class, &node)? > 0, "it has none");
        Ok(())
    })?;
    cluster.patch_claim("after", &json!({ "metadata": { "annotations": { SELECTED_NODE: node } } }))?;
    cluster.bound("after")?;
    is_reachable(cluster)?;
    is_said(cluster, &node, false)
}

/// Makes a pod for the agent, which listens at another port after each start.
fn is_reachable(cluster: &Cluster) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(cluster.access.client(), NAMESPACE);
    let node = cluster.node();
    if cluster.access.run(pods.get_opt(&node))?.is_some() {
        cluster.access.run(pods.delete(&node, &DeleteParams::default().grace_period(0)))?;
    }
    let address: SocketAddr = monitoring::address(&cluster.agents[0].rig)?.parse()?;
    agent_pod(cluster, NAMESPACE, address.port(), true)
}

/// What is no pool, a pool that the agent does not have, and a node without an agent.
fn mistakes_are_told(cluster: &Cluster, node: &str) -> Result<()> {
    for (pool, told) in [
        (node.to_owned(), "it is called NODE/POOL".to_owned()),
        (format!("{node}/fast"), format!("node {node} has no pool fast: it has default")),
        ("nobody/default".to_owned(), "no agent of node nobody has ever worked".to_owned()),
    ] {
        let failed = plugin(cluster, &["cordon", &pool])?.failed()?;
        ensure!(failed.contains(&told), "{failed}");
    }
    let none = as_json(cluster, &["uncordon", &format!("{node}/fast")])?;
    ensure!(none["changed"] == false, "{none}");
    Ok(())
}

/// A claim for which the node was selected goes back to the scheduler.
fn is_refused(cluster: &mut Cluster, class: &str, name: &str) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&on(claim(name, class, "8Mi"), &node))?;
    cluster.event(name, "ProvisioningFailed", &format!("pool default of node {node} is cordoned"))?;
    let given_back = cluster.access.wait_for(&cluster.claims(), name, PATIENCE, "to be given back", |claim| {
        let annotations = claim.metadata.annotations.clone().unwrap_or_default();
        ensure!(!annotations.contains_key(SELECTED_NODE), "it still has its node: {annotations:?}");
        Ok(())
    });
    given_back.map(drop)
}

/// Whether the tools say that the pool is cordoned.
fn is_said(cluster: &Cluster, node: &str, is_cordoned: bool) -> Result<()> {
    cluster.access.wait(PATIENCE, "the tools to say so", || {
        let pools = as_json(cluster, &["pools"])?;
        let own = |pool: &&Value| pool["node"] == node;
        let pool = pools.as_array().and_then(|all| all.iter().find(own)).context("no pool of the node")?;
        ensure!(pool["cordoned"] == is_cordoned, "{pool}");
        let listed = plugin(cluster, &["pools"])?.succeeded()?;
        let row = Printed::row(&listed, &[node, "default"])?;
        let doctor = plugin(cluster, &["doctor"])?.text;
        let check = Printed::row(&doctor, &["note", &format!("pool default on {node}")])?;
        let remedy = check.contains("`kubectl bulkhead uncordon NODE/POOL`");
        ensure!(row.contains("cordoned") == is_cordoned && remedy == is_cordoned, "{row}\n{check}");
        Ok(())
    })
}
