//! Several agents on one API server: each does its own work, and none does the work of another.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::audit::{self, requests};
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{claim, on, pod};
use bulkhead_tests::cluster::{Cluster, manifests, node};

cases! {
    on Cluster;
    a_token_is_renewed,
    each_agent_does_its_own_work,
    claims_wait_for_an_agent_that_is_away,
    an_agent_with_another_nodes_token_does_nothing,
    what_is_documented_for_a_lost_node_works,
    a_token_that_is_bound_to_no_node_is_refused,
}

fn each_agent_does_its_own_work(cluster: &mut Cluster) -> Result<()> {
    cluster.add_agent()?;
    cluster.add_agent()?;
    let nodes: Vec<String> = cluster.agents.iter().map(|agent| agent.node.clone()).collect();
    for (number, node) in nodes.iter().enumerate() {
        for volume in 0..=number {
            cluster.create_claim(&on(claim(&format!("data-{number}-{volume}"), &cluster.class, "8Mi"), node))?;
        }
    }
    for number in 0..nodes.len() {
        for volume in 0..=number {
            cluster.bound(&format!("data-{number}-{volume}"))?;
        }
    }
    for (number, agent) in cluster.agents.iter().enumerate() {
        let found = agent.volumes()?;
        ensure!(found.len() == number + 1, "{} has {found:?}", agent.node);
        let made = requests(&cluster.access, Some(&agent.node))?;
        let objects = made.get("create persistentvolumes").copied().unwrap_or_default();
        ensure!(objects == number + 1, "{} created {objects} PersistentVolumes", agent.node);
    }
    // Only the third node has anything to delete.
    cluster.delete_claim("data-2-0")?;
    cluster.access.wait(cluster.patience(), "the third node to delete its volume", || {
        let counts: Vec<usize> =
            cluster.agents.iter().map(|agent| Ok(agent.volumes()?.len())).collect::<Result<_>>()?;
        ensure!(counts == [1, 2, 2], "the nodes hold {counts:?}");
        Ok(())
    })
}

fn claims_wait_for_an_agent_that_is_away(cluster: &mut Cluster) -> Result<()> {
    cluster.add_agent()?;
    let (first, second) = (cluster.node(), cluster.agents[1].node.clone());
    cluster.agents[1].stand.kill_frontend()?;
    cluster.create_claim(&on(claim("there", &cluster.class, "8Mi"), &second))?;
    cluster.create_claim(&on(claim("here", &cluster.class, "8Mi"), &first))?;
    cluster.bound("here")?;
    // The other claim, which came later, is bound already.
    cluster.stays_pending("there", Duration::from_millis(500))?;
    cluster.agents[1].stand.start_frontend()?;
    cluster.bound("there").map(drop)
}

/// The commands of docs/kubernetes.md, line by line.
fn what_is_documented_for_a_lost_node_works(cluster: &mut Cluster) -> Result<()> {
    let gone = cluster.add_agent()?.node.clone();
    cluster.create_claim(&on(claim("there", &cluster.class, "8Mi"), &gone))?;
    let volume = cluster.bound("there")?.metadata.name.context("a name")?;
    cluster.agents[1].stand.kill_frontend()?;
    cluster.create_claim(&on(claim("waiting", &cluster.class, "8Mi"), &gone))?;
    cluster.create_pod(&pod("user", &cluster.namespace, &["waiting"]))?;
    let kubeconfig = cluster.access.kubeconfig();
    let kubectl = |line: &str| {
        let words: Vec<&str> = line.split(' ').chain(["--namespace", &cluster.namespace]).collect();
        manifests::kubectl(&kubeconfig, &words)
    };
    kubectl(&format!("delete node {gone}"))?;
    kubectl("annotate pvc waiting volume.kubernetes.io/selected-node-")?;
    let elsewhere = cluster.bound("waiting")?.metadata.labels.context("labels")?;
    ensure!(elsewhere.get(TOPOLOGY_KEY) == Some(&cluster.node()), "it has {elsewhere:?}");
    kubectl("delete pvc there --wait=false")?;
    kubectl(&format!("delete pv {volume} --wait=false"))?;
    kubectl(&format!(r#"patch pv {volume} --type merge --patch {{"metadata":{{"finalizers":null}}}}"#))?;
    cluster.volume_gone(&volume)?;
    // The node comes back after all. What was never used there is deleted.
    let uid = node::make(&cluster.access, &gone, &[])?;
    cluster.agents[1].uid = uid;
    cluster.agents[1].renew_token(&cluster.access, Duration::from_secs(600))?;
    cluster.agents[1].stand.start_frontend()?;
    cluster.access.wait(2 * cluster.patience(), "the volume on the node to be deleted", || {
        let left = cluster.agents[1].volumes()?;
        ensure!(left.is_empty(), "it holds {left:?}");
        Ok(())
    })
}

fn an_agent_with_another_nodes_token_does_nothing(cluster: &mut Cluster) -> Result<()> {
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
    // An agent that did not mind its token would have bound the claim within a second.
    cluster.stays_pending("data", Duration::from_secs(1))?;
    ensure!(cluster.agents[1].volumes()?.is_empty(), "a volume was created");
    Ok(())
}

fn a_token_is_renewed(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&on(claim("before", &cluster.class, "8Mi"), &node))?;
    cluster.bound("before")?;
    // No token lives for less than ten minutes, so this test does not wait for the old one to expire.
    let first = credentials(cluster, &node)?;
    cluster.agents[0].renew_token(&cluster.access, Duration::from_secs(600))?;
    let mut claims = 0..;
    cluster.access.wait(Duration::from_secs(75), "the new token to be used", || {
        let name = format!("data-{}", claims.next().unwrap_or(0));
        cluster.create_claim(&on(claim(&name, &cluster.class, "64Ki"), &node))?;
        // An agent without work makes no requests. Its client reads the token again once a minute.
        std::thread::sleep(Duration::from_secs(2));
        let used = credentials(cluster, &node)?;
        ensure!(used.len() > first.len(), "all requests came with {used:?}");
        Ok(())
    })?;
    cluster.create_claim(&on(claim("after", &cluster.class, "8Mi"), &node))?;
    cluster.bound("after").map(drop)
}

/// The tokens that a node's requests came with.
fn credentials(cluster: &Cluster, node: &str) -> Result<BTreeSet<String>> {
    let log = audit::log(&cluster.access, Some(node))?;
    Ok(log.into_iter().map(|request| request.credential).collect())
}

fn a_token_that_is_bound_to_no_node_is_refused(cluster: &mut Cluster) -> Result<()> {
    let token = node::unbound_token(&cluster.access)?;
    cluster.agent().stand.kill_frontend()?;
    node::write_token(&cluster.agents[0].stand.work().join("run"), &token)?;
    cluster.agent().stand.start_frontend()?;
    cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &cluster.node()))?;
    // An agent that is not refused binds a claim within a second.
    cluster.stays_pending("data", Duration::from_secs(2))?;
    // The claim is bound when the agent has its own token again.
    cluster.agent().stand.kill_frontend()?;
    cluster.agents[0].renew_token(&cluster.access, Duration::from_secs(600))?;
    cluster.agent().stand.start_frontend()?;
    cluster.bound("data").context("with its own token").map(drop)
}
