//! The token of an agent: it may be replaced at any time, and it must be bound to the agent's own node.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::manifests::NAMESPACE;
use bulkhead_tests::cluster::objects::{claim, on};
use bulkhead_tests::cluster::{Cluster, audit, node};
use bulkhead_tests::commands::{Printed, bulkheadctl};
use bulkhead_tests::monitoring;

use super::plugin::{add_reachable_agent, agent_pod, plugin};

cases! {
    on Cluster;
    a_token_is_renewed: Slow,
    a_token_of_another_node_is_refused,
    a_token_that_is_bound_to_no_node_is_refused: Bare,
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
        cluster.create_claim(&on(claim(&name, &cluster.class, "1Mi"), &node))?;
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
    cluster.agents[1].rig.kill_frontend()?;
    node::write_token(&cluster.agents[1].rig.work().join("run"), &token)?;
    cluster.agents[1].rig.start_frontend()?;
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
    let class = cluster.add_class(|_| {})?;
    add_reachable_agent(cluster)?;
    let node = cluster.node();
    cluster.capacity(&class, &node)?;
    let token = node::unbound_token(&cluster.access)?;
    cluster.agent().rig.kill_frontend()?;
    node::write_token(&cluster.agents[0].rig.work().join("run"), &token)?;
    cluster.agent().rig.start_frontend()?;
    cluster.create_claim(&on(claim("data", &class, "8Mi"), &node))?;
    let why = "the token is bound to no node, so the cluster's policies refuse all that it writes";
    let remedy = "give the agent one that is bound to its pod or to its Node";
    cluster.access.wait(cluster.patience(), "the agent to say so", || {
        monitoring::check_ready(&cluster.agents[0].rig, 503, &format!("[-]agent not ready: {why}: {remedy}"))
    })?;
    // So do the tools, on the node and elsewhere. The kubelet has seen that the agent is not ready.
    let socket = cluster.agents[0].rig.kubelet.csi_socket();
    let told = Printed::by(bulkheadctl(&socket)?.arg("doctor"))?.failed()?;
    let told = Printed::row(&told, &["FAILED", "API server"])?;
    ensure!(told.contains(why) && told.contains(remedy), "{told}");
    let address: SocketAddr = monitoring::address(&cluster.agents[0].rig)?.parse()?;
    agent_pod(cluster, NAMESPACE, address.port(), false)?;
    Printed::row(&plugin(cluster, &["nodes"])?.succeeded()?, &[&node, "not-ready"])?;
    let told = plugin(cluster, &["doctor"])?.failed()?;
    let told = Printed::row(&told, &["FAILED", "node", &node])?;
    ensure!(told.contains(why) && told.contains(remedy), "{told}");
    // With its own token the agent would bind the claim within a second.
    cluster.stays_pending("data", Duration::from_secs(2))?;
    // The claim is bound once the agent has its own token back, without a restart.
    cluster.agents[0].renew_token(&cluster.access, Duration::from_secs(600))?;
    cluster.bound("data").context("with its own token")?;
    agent_pod(cluster, NAMESPACE, address.port(), true)?;
    Printed::row(&plugin(cluster, &["nodes"])?.succeeded()?, &[&node, "ready"])?;
    let told = Printed::by(bulkheadctl(&socket)?.arg("doctor"))?.text;
    Printed::row(&told, &["ok", "API server", "answers"]).map(drop)
}
