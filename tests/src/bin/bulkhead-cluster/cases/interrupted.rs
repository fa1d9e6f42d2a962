//! Nothing leaks and nothing is lost when somebody disappears at the wrong time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::objects::{SELECTED_NODE, block, claim, on};
use bulkhead_tests::cluster::{Cluster, PATIENCE, START};
use serde_json::json;

cases! {
    on Cluster;
    the_api_server_refuses_the_object_for_a_while,
    the_agent_dies_before_the_object_is_there,
    the_claim_goes_before_the_object_is_there,
    the_claim_goes_while_the_agent_is_dead,
    the_claim_is_deleted_at_once,
    the_claim_is_made_again_under_its_name,
    the_claim_is_given_to_another_node,
    the_api_server_restarts,
    the_api_server_is_away_for_a_while,
    etcd_restarts,
    the_helper_dies,
    the_namespace_goes,
}

/// Waits until the node's pool holds exactly this many volumes.
fn holds(cluster: &Cluster, number: usize) -> Result<()> {
    // What was forgotten is looked for twice, some seconds apart.
    cluster.access.wait(2 * PATIENCE, &format!("the pool to hold {number} volumes"), || {
        let found = cluster.agents[0].volumes()?;
        ensure!(found.len() == number, "it holds {found:?}");
        Ok(())
    })
}

/// A volume is made and its object cannot be.
fn stuck(cluster: &mut Cluster) -> Result<()> {
    cluster.fence_volumes()?;
    let node = cluster.node();
    cluster.create_claim(&on(claim("data", &cluster.class, "16Mi"), &node))?;
    holds(cluster, 1)
}

fn the_api_server_refuses_the_object_for_a_while(cluster: &mut Cluster) -> Result<()> {
    stuck(cluster)?;
    std::thread::sleep(Duration::from_secs(1));
    cluster.unfence_volumes()?;
    cluster.bound("data")?;
    holds(cluster, 1)
}

fn the_agent_dies_before_the_object_is_there(cluster: &mut Cluster) -> Result<()> {
    stuck(cluster)?;
    cluster.agent().stand.kill_frontend()?;
    cluster.unfence_volumes()?;
    cluster.agent().stand.start_frontend()?;
    cluster.bound("data")?;
    holds(cluster, 1)
}

fn the_claim_goes_before_the_object_is_there(cluster: &mut Cluster) -> Result<()> {
    stuck(cluster)?;
    cluster.delete_claim("data")?;
    cluster.unfence_volumes()?;
    holds(cluster, 0)
}

fn the_claim_goes_while_the_agent_is_dead(cluster: &mut Cluster) -> Result<()> {
    stuck(cluster)?;
    cluster.agent().stand.kill_frontend()?;
    cluster.delete_claim("data")?;
    cluster.unfence_volumes()?;
    cluster.agent().stand.start_frontend()?;
    holds(cluster, 0)
}

fn the_claim_is_deleted_at_once(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    for number in 0..20 {
        let name = format!("data-{number}");
        cluster.create_claim(&on(claim(&name, &cluster.class, "4Mi"), &node))?;
        std::thread::sleep(Duration::from_millis(number * 4));
        cluster.delete_claim(&name)?;
    }
    holds(cluster, 0)
}

fn the_claim_is_made_again_under_its_name(cluster: &mut Cluster) -> Result<()> {
    let claim = on(claim("data", &cluster.class, "4Mi"), &cluster.node());
    for number in 0..10 {
        cluster.create_claim(&claim)?;
        std::thread::sleep(Duration::from_millis(number * 8));
        cluster.delete_claim("data")?;
        cluster.access.wait_until_gone(&cluster.claims(), "data", PATIENCE)?;
    }
    let uid = cluster.create_claim(&claim)?;
    let volume = cluster.bound("data")?;
    ensure!(volume.metadata.name == Some(format!("pvc-{uid}")), "it has the volume {:?}", volume.metadata.name);
    holds(cluster, 1)
}

fn the_claim_is_given_to_another_node(cluster: &mut Cluster) -> Result<()> {
    let second = cluster.add_agent()?.node.clone();
    stuck(cluster)?;
    cluster.patch_claim("data", &json!({ "metadata": { "annotations": { SELECTED_NODE: second } } }))?;
    cluster.unfence_volumes()?;
    let volume = cluster.bound("data")?;
    ensure!(cluster.agents[1].volumes()?.len() == 1, "{:?} is not on {second}", volume.metadata.name);
    holds(cluster, 0)
}

fn the_api_server_restarts(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&on(claim("before", &cluster.class, "16Mi"), &node))?;
    cluster.access.component("kube-apiserver").kill()?;
    cluster.access.wait_until_ready(START)?;
    cluster.create_claim(&block(on(claim("after", &cluster.class, "16Mi"), &node)))?;
    cluster.bound("before")?;
    cluster.bound("after")?;
    holds(cluster, 2)
}

fn the_api_server_is_away_for_a_while(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&on(claim("data", &cluster.class, "16Mi"), &node))?;
    cluster.bound("data")?;
    let server = cluster.access.component("kube-apiserver");
    server.hold()?;
    std::thread::sleep(Duration::from_secs(3));
    // What the kubelet asks of it goes on being answered, and a start without the API server is one, too.
    cluster.agent().stand.restart_frontend()?;
    std::thread::sleep(Duration::from_secs(1));
    server.release();
    cluster.access.wait_until_ready(START)?;
    cluster.delete_claim("data")?;
    holds(cluster, 0)
}

fn etcd_restarts(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&on(claim("before", &cluster.class, "16Mi"), &node))?;
    let etcd = cluster.access.component("etcd");
    etcd.hold()?;
    std::thread::sleep(Duration::from_secs(1));
    etcd.release();
    cluster.access.wait_until_ready(START)?;
    let claim = on(claim("after", &cluster.class, "16Mi"), &node);
    cluster.access.wait(PATIENCE, "claims to be accepted again", || cluster.create_claim(&claim))?;
    cluster.bound("before")?;
    cluster.bound("after")?;
    holds(cluster, 2)
}

fn the_helper_dies(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.agent().stand.kill_helper()?;
    cluster.create_claim(&on(claim("data", &cluster.class, "16Mi"), &node))?;
    cluster.stays_pending("data", Duration::from_secs(1))?;
    cluster.agent().stand.start_helper()?;
    cluster.bound("data").map(drop)
}

fn the_namespace_goes(cluster: &mut Cluster) -> Result<()> {
    use k8s_openapi::api::core::v1::Namespace;
    use kube::Api;
    let name = format!("{}-other", cluster.namespace);
    let namespaces: Api<Namespace> = Api::all(cluster.access.client());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
    cluster.access.run(namespaces.create(&Default::default(), &namespace))?;
    let claims: Api<k8s_openapi::api::core::v1::PersistentVolumeClaim> =
        Api::namespaced(cluster.access.client(), &name);
    let node = cluster.node();
    for number in 0..3 {
        let claim = serde_json::from_value(on(claim(&format!("data-{number}"), &cluster.class, "4Mi"), &node))?;
        cluster.access.run(claims.create(&Default::default(), &claim)).context("create a claim")?;
    }
    cluster.access.run(namespaces.delete(&name, &Default::default()))?;
    cluster.access.wait_until_gone(&namespaces, &name, PATIENCE)?;
    holds(cluster, 0)
}
