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
    each_agent_does_its_own_work,
    claims_wait_for_an_agent_that_is_away,
    what_is_documented_for_a_lost_node_works,
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
    cluster.agents[1].rig.kill_frontend()?;
    cluster.create_claim(&on(claim("there", &cluster.class, "8Mi"), &second))?;
    cluster.create_claim(&on(claim("here", &cluster.class, "8Mi"), &first))?;
    cluster.bound("here")?;
    // The other claim, which was created later, is already bound.
    cluster.stays_pending("there", Duration::from_millis(500))?;
    cluster.agents[1].rig.start_frontend()?;
    cluster.bound("there").map(drop)
}

/// Adds a node whose agent stops for good, and returns the node and the volume on it of the claim `there`. A pod waits
/// for the claim `waiting`, which is also for that node.
pub fn lose_node(cluster: &mut Cluster) -> Result<(String, String)> {
    let gone = cluster.add_agent()?.node.clone();
    cluster.create_claim(&on(claim("there", &cluster.class, "8Mi"), &gone))?;
    let volume = cluster.bound("there")?.metadata.name.context("a name")?;
    cluster.agents[1].rig.kill_frontend()?;
    cluster.create_claim(&on(claim("waiting", &cluster.class, "8Mi"), &gone))?;
    cluster.create_pod(&pod("user", &cluster.namespace, &["waiting"]))?;
    Ok((gone, volume))
}

/// The commands in docs/operate.md, line by line.
fn what_is_documented_for_a_lost_node_works(cluster: &mut Cluster) -> Result<()> {
    let (gone, volume) = lose_node(cluster)?;
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
    // The node comes back after all. Volumes that were never used there are deleted.
    let uid = node::make(&cluster.access, &gone, &[])?;
    cluster.agents[1].uid = uid;
    cluster.agents[1].renew_token(&cluster.access, Duration::from_secs(600))?;
    cluster.agents[1].rig.start_frontend()?;
    cluster.access.wait(2 * cluster.patience(), "the volume on the node to be deleted", || {
        let left = cluster.agents[1].volumes()?;
        ensure!(left.is_empty(), "it holds {left:?}");
        Ok(())
    })
}
