//! Several agents on one API server: each does its own work, and none does another's.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::audit::requests;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{claim, on, pod};
use bulkhead_tests::cluster::{Cluster, manifests, node};

cases! {
    on Cluster;
    each_does_its_own_work,
    one_that_disappears_is_waited_for,
    one_with_anothers_token_does_nothing,
    what_a_node_took_along_is_let_go,
    a_token_is_renewed,
    a_token_that_is_bound_to_nothing_may_do_nothing,
}

fn each_does_its_own_work(cluster: &mut Cluster) -> Result<()> {
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
        ensure!(objects == number + 1, "{} made {objects} objects", agent.node);
    }
    // Deleting one node's claims is that node's work alone.
    cluster.delete_claim("data-2-0")?;
    cluster.access.wait(cluster.patience(), "the third node to delete its volume", || {
        let counts: Vec<usize> =
            cluster.agents.iter().map(|agent| Ok(agent.volumes()?.len())).collect::<Result<_>>()?;
        ensure!(counts == [1, 2, 2], "the nodes hold {counts:?}");
        Ok(())
    })
}

fn one_that_disappears_is_waited_for(cluster: &mut Cluster) -> Result<()> {
    cluster.add_agent()?;
    let (first, second) = (cluster.node(), cluster.agents[1].node.clone());
    cluster.agents[1].stand.kill_frontend()?;
    cluster.create_claim(&on(claim("there", &cluster.class, "8Mi"), &second))?;
    cluster.create_claim(&on(claim("here", &cluster.class, "8Mi"), &first))?;
    cluster.bound("here")?;
    cluster.stays_pending("there", Duration::from_secs(1))?;
    cluster.agents[1].stand.start_frontend()?;
    cluster.bound("there").map(drop)
}

/// The way out that docs/kubernetes.md tells of, line by line.
fn what_a_node_took_along_is_let_go(cluster: &mut Cluster) -> Result<()> {
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
    // It comes back after all, and what was never used goes.
    let uid = node::make(&cluster.access, &gone, &[])?;
    cluster.agents[1].uid = uid;
    cluster.agents[1].renew_token(&cluster.access, Duration::from_secs(600))?;
    cluster.agents[1].stand.start_frontend()?;
    cluster.access.wait(2 * cluster.patience(), "the node's volume to go", || {
        let left = cluster.agents[1].volumes()?;
        ensure!(left.is_empty(), "it holds {left:?}");
        Ok(())
    })
}

fn one_with_anothers_token_does_nothing(cluster: &mut Cluster) -> Result<()> {
    let second = cluster.add_agent()?.node.clone();
    let (name, uid) = (cluster.node(), cluster.agents[0].uid.clone());
    let token = node::token(&cluster.access, &name, &uid, Duration::from_secs(600))?;
    cluster.agents[1].stand.kill_frontend()?;
    node::write_token(&cluster.agents[1].stand.work().join("run"), &token)?;
    cluster.agents[1].stand.start_frontend()?;
    cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &second))?;
    cluster.access.wait(cluster.patience(), "the agent to say why it does nothing", || {
        let log = cluster.agents[1].log()?;
        ensure!(log.contains("the token is bound to node"), "it has not");
        Ok(())
    })?;
    cluster.stays_pending("data", Duration::from_secs(2))?;
    ensure!(cluster.agents[1].volumes()?.is_empty(), "a volume was made");
    Ok(())
}

fn a_token_is_renewed(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&on(claim("before", &cluster.class, "8Mi"), &node))?;
    cluster.bound("before")?;
    // The shortest that there is lives for ten minutes: what becomes of an older one is not waited for.
    let first = requests_by_credential(cluster, &node)?;
    cluster.agents[0].renew_token(&cluster.access, Duration::from_secs(600))?;
    let mut claims = 0..;
    cluster.access.wait(Duration::from_secs(75), "the new token to be used", || {
        let name = format!("data-{}", claims.next().unwrap_or(0));
        cluster.create_claim(&on(claim(&name, &cluster.class, "64Ki"), &node))?;
        std::thread::sleep(Duration::from_secs(2));
        let number = requests_by_credential(cluster, &node)?;
        ensure!(number > first, "all requests come with {number} tokens");
        Ok(())
    })?;
    cluster.create_claim(&on(claim("after", &cluster.class, "8Mi"), &node))?;
    cluster.bound("after").map(drop)
}

/// How many different tokens a node's requests came with.
fn requests_by_credential(cluster: &Cluster, node: &str) -> Result<usize> {
    let log = std::fs::read_to_string(cluster.access.directory().join("audit.log"))?;
    let mut seen = std::collections::BTreeSet::new();
    for entry in log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()) {
        let extra = &entry["user"]["extra"];
        if extra["authentication.kubernetes.io/node-name"][0] == node {
            seen.insert(extra["authentication.kubernetes.io/credential-id"][0].to_string());
        }
    }
    Ok(seen.len())
}

fn a_token_that_is_bound_to_nothing_may_do_nothing(cluster: &mut Cluster) -> Result<()> {
    let token = node::unbound_token(&cluster.access)?;
    cluster.agent().stand.kill_frontend()?;
    node::write_token(&cluster.agents[0].stand.work().join("run"), &token)?;
    cluster.agent().stand.start_frontend()?;
    cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &cluster.node()))?;
    cluster.stays_pending("data", Duration::from_secs(3))?;
    // What it made before it was refused goes when it has its own token again.
    cluster.agent().stand.kill_frontend()?;
    cluster.agents[0].renew_token(&cluster.access, Duration::from_secs(600))?;
    cluster.agent().stand.start_frontend()?;
    cluster.bound("data").context("with a token of its own").map(drop)
}
