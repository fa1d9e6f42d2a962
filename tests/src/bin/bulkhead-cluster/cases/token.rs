//! The token of an agent: it may be replaced at any time, and it must be bound to the agent's own node.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::objects::{claim, on};
use bulkhead_tests::cluster::{Cluster, audit, node};
use bulkhead_tests::monitoring;

cases! {
    on Cluster;
    a_token_is_renewed,
    a_token_of_another_node_is_refused,
    a_token_that_is_bound_to_no_node_is_refused,
}

fn a_token_is_renewed(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&on(claim("before", &cluster.class, "8Mi"), &node))?;
    cluster.bound("before")?;
    // No token expires in less than ten minutes, so this test does not wait for that.
    let first = credentials(cluster, &node)?;
    cluster.agents[0].renew_token(&cluster.access, Duration::from_secs(600))?;
    let mut claims = 0..;
    cluster.access.wait(2 * cluster.patience(), "the new token to be used", || {
        let name = format!("data-{}", claims.next().unwrap_or(0));
        cluster.create_claim(&on(claim(&name, &cluster.class, "64Ki"), &node))?;
        // An idle agent makes no requests. Its client rereads the token once a minute.
        std::thread::sleep(Duration::from_secs(2));
        let used = credentials(cluster, &node)?;
        ensure!(used.len() > first.len(), "all requests came with {used:?}");
        Ok(())
    })?;
    cluster.create_claim(&on(claim("after", &cluster.class, "8Mi"), &node))?;
    cluster.bound("after").map(drop)
}

/// The tokens that were sent with a node's requests.
fn credentials(cluster: &Cluster, node: &str) -> Result<BTreeSet<String>> {
    let log = audit::log(&cluster.access, Some(node))?;
    Ok(log.into_iter().map(|request| request.credential).collect())
}

fn a_token_of_another_node_is_refused(cluster: &mut Cluster) -> Result<()> {
    let second = cluster.add_agent()?.node.clone();
    let (name, uid) = (cluster.node(), cluster.agents[0].uid.clone());
    let token = node::token(&cluster.access, &name, &uid, Duration::from_secs(600))?;
    cluster.agents[1].stand.kill_frontend()?;
    node::write_token(&cluster.agents[1].stand.work().join("run"), &token)?;
    cluster.agents[1].stand.start_frontend()?;
    cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &second))?;
    cluster.access.wait(cluster.patience(), "the agent to say why it does nothing", || {
        cluster.agents[1].has_logged("the token is bound to node")
    })?;
    // With its own token the agent would have bound the claim within a second.
    cluster.stays_pending("data", Duration::from_secs(1))?;
    ensure!(cluster.agents[1].volumes()?.is_empty(), "a volume was created");
    Ok(())
}

fn a_token_that_is_bound_to_no_node_is_refused(cluster: &mut Cluster) -> Result<()> {
    let token = node::unbound_token(&cluster.access)?;
    cluster.agent().stand.kill_frontend()?;
    node::write_token(&cluster.agents[0].stand.work().join("run"), &token)?;
    cluster.agent().stand.start_frontend()?;
    cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &cluster.node()))?;
    cluster.access.wait(cluster.patience(), "the agent to say so", || {
        let why = "[-]agent not ready: the token is bound to no node";
        monitoring::check_ready(&cluster.agents[0].stand, 503, why)
    })?;
    // With its own token the agent would bind the claim within a second.
    cluster.stays_pending("data", Duration::from_secs(2))?;
    // The claim is bound once the agent has its own token back, without a restart.
    cluster.agents[0].renew_token(&cluster.access, Duration::from_secs(600))?;
    cluster.bound("data").context("with its own token").map(drop)
}
