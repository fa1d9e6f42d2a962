//! Nothing leaks and nothing is lost when a component or an object disappears at the wrong time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::audit::{self, Request};
use bulkhead_tests::cluster::objects::{SELECTED_NODE, block, claim, on};
use bulkhead_tests::cluster::{Cluster, PATIENCE, START};
use bulkhead_tests::monitoring;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSINode;
use kube::Api;
use kube::api::Patch;
use serde_json::{Value, json};

cases! {
    on Cluster;
    the_api_server_refuses_the_object_for_a_while,
    the_agent_dies_before_the_object_is_there,
    the_claim_goes_before_the_object_is_there,
    the_claim_goes_while_the_agent_is_dead,
    the_claim_is_deleted_at_once,
    the_claim_is_made_again_under_its_name,
    the_claim_is_given_to_another_node,
    the_api_server_restarts: Alone("restarts the API server"),
    the_api_server_is_away_for_a_while: Alone("stops the API server"),
    etcd_restarts: Alone("stops etcd"),
    the_helper_dies,
    the_kubelet_forgets_the_driver,
    the_namespace_goes,
}

/// Waits until the node's pool contains exactly this many volumes.
fn holds(cluster: &Cluster, number: usize) -> Result<()> {
    // Before agents delete forgotten volumes, they look for them twice, some seconds apart.
    cluster.access.wait(2 * PATIENCE, &format!("the pool to hold {number} volumes"), || {
        let found = cluster.agents[0].volumes()?;
        ensure!(found.len() == number, "it holds {found:?}");
        Ok(())
    })
}

/// Creates a claim whose volume is created in the pool, while the API server refuses its PersistentVolume.
fn create_stuck_claim(cluster: &mut Cluster) -> Result<()> {
    cluster.fence_volumes()?;
    let node = cluster.node();
    cluster.create_claim(&on(claim("data", &cluster.class, "16Mi"), &node))?;
    holds(cluster, 1)?;
    cluster.access.wait(PATIENCE, "a PersistentVolume to be refused", || {
        let log = audit::log(&cluster.access, Some(&node))?;
        let refused = log.iter().any(|request| request.creates_volume() && request.status >= 400);
        ensure!(refused, "none was");
        Ok(())
    })
}

fn the_api_server_refuses_the_object_for_a_while(cluster: &mut Cluster) -> Result<()> {
    create_stuck_claim(cluster)?;
    shows(cluster, "bulkhead_failing_objects 1.0")?;
    cluster.unfence_volumes()?;
    cluster.bound("data")?;
    shows(cluster, "bulkhead_failing_objects 0.0")?;
    holds(cluster, 1)
}

/// Waits until the first agent's metrics have this line.
fn shows(cluster: &Cluster, line: &str) -> Result<()> {
    cluster.access.wait(PATIENCE, line, || {
        let (_, metrics) = monitoring::get(&cluster.agents[0].rig, "/metrics")?;
        ensure!(metrics.lines().any(|found| found == line), "the metrics do not say so");
        Ok(())
    })
}

fn the_agent_dies_before_the_object_is_there(cluster: &mut Cluster) -> Result<()> {
    create_stuck_claim(cluster)?;
    cluster.agent().rig.kill_frontend()?;
    cluster.unfence_volumes()?;
    cluster.agent().rig.start_frontend()?;
    cluster.bound("data")?;
    holds(cluster, 1)
}

fn the_claim_goes_before_the_object_is_there(cluster: &mut Cluster) -> Result<()> {
    create_stuck_claim(cluster)?;
    cluster.delete_claim("data")?;
    cluster.unfence_volumes()?;
    holds(cluster, 0)
}

fn the_claim_goes_while_the_agent_is_dead(cluster: &mut Cluster) -> Result<()> {
    create_stuck_claim(cluster)?;
    cluster.agent().rig.kill_frontend()?;
    cluster.delete_claim("data")?;
    cluster.unfence_volumes()?;
    cluster.agent().rig.start_frontend()?;
    holds(cluster, 0)
}

fn the_claim_is_deleted_at_once(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    // Each exists a little longer than the one before, so that some are deleted before the agent has seen them and some
    // while it is working on them. It was working on one if it has created a PersistentVolume.
    let mut worked = false;
    for number in 0..100 {
        if number >= 20 && worked {
            break;
        }
        let name = format!("data-{number}");
        cluster.create_claim(&on(claim(&name, &cluster.class, "4Mi"), &node))?;
        std::thread::sleep(Duration::from_millis(number * 4));
        cluster.delete_claim(&name)?;
        worked = audit::log(&cluster.access, Some(&node))?.iter().any(Request::creates_volume);
    }
    ensure!(worked, "the agent never worked on a claim");
    // The agent is done with them once it has bound a claim that was created later.
    cluster.create_claim(&on(claim("last", &cluster.class, "4Mi"), &node))?;
    cluster.bound("last")?;
    cluster.delete_claim("last")?;
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
    ensure!(
        volume.metadata.name == Some(format!("pvc-{uid}.{}", cluster.node())),
        "it has the volume {:?}",
        volume.metadata.name
    );
    holds(cluster, 1)
}

fn the_claim_is_given_to_another_node(cluster: &mut Cluster) -> Result<()> {
    let second = cluster.add_agent()?.node.clone();
    create_stuck_claim(cluster)?;
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
    wait_for_ready(cluster, 200, "[+]kubelet-registration ok")?;
    let logged = cluster.agents[0].log()?.len();
    let server = cluster.access.component("kube-apiserver");
    server.hold()?;
    wait_for_log(cluster, "the agent to notice that the API server is away", logged)?;
    wait_for_ready(cluster, 503, "[-]watch-persistentvolumeclaims not ready: ")?;
    // The kubelet's requests are still answered, even by an agent that starts without an API server.
    let logged = cluster.agents[0].log()?.len();
    cluster.agent().rig.restart_frontend()?;
    wait_for_log(cluster, "the new agent to notice that the API server is away", logged)?;
    wait_for_ready(cluster, 503, "[-]agent not ready: ")?;
    server.release();
    cluster.access.wait_until_ready(START)?;
    wait_for_ready(cluster, 200, "[+]watch-persistentvolumeclaims ok")?;
    cluster.delete_claim("data")?;
    holds(cluster, 0)
}

/// Waits until the first agent's /readyz answers with this status and `part`.
fn wait_for_ready(cluster: &Cluster, status: u16, part: &str) -> Result<()> {
    let what = format!("/readyz to answer {status}");
    cluster.access.wait(PATIENCE, &what, || monitoring::check_ready(&cluster.agents[0].rig, status, part))
}

/// Waits until the agent's log is longer than this many bytes.
fn wait_for_log(cluster: &Cluster, what: &str, bytes: usize) -> Result<()> {
    cluster.access.wait(PATIENCE, what, || {
        ensure!(cluster.agents[0].log()?.len() > bytes, "it has logged nothing");
        Ok(())
    })
}

fn etcd_restarts(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&on(claim("before", &cluster.class, "16Mi"), &node))?;
    let etcd = cluster.access.component("etcd");
    etcd.hold()?;
    cluster.access.wait(PATIENCE, "the API server to miss etcd", || {
        ensure!(cluster.access.wait_until_ready(Duration::ZERO).is_err(), "it says that it is ready");
        Ok(())
    })?;
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
    cluster.agent().rig.kill_helper()?;
    cluster.create_claim(&on(claim("data", &cluster.class, "16Mi"), &node))?;
    // With the helper running, the claim would be bound within a second.
    cluster.stays_pending("data", Duration::from_secs(1))?;
    cluster.agent().rig.start_helper()?;
    cluster.bound("data").map(drop)
}

fn the_kubelet_forgets_the_driver(cluster: &mut Cluster) -> Result<()> {
    let (node, nodes) = (cluster.node(), Api::<CSINode>::all(cluster.access.client()));
    wait_for_ready(cluster, 200, "[+]kubelet-registration ok")?;
    let drivers = cluster.access.run(nodes.get(&node))?.spec.drivers;
    let list = |drivers: Value| {
        let patch = Patch::Merge(json!({ "spec": { "drivers": drivers } }));
        cluster.access.run(nodes.patch(&node, &Default::default(), &patch)).map(drop)
    };
    list(json!([]))?;
    wait_for_ready(cluster, 503, "[-]kubelet-registration not ready: the kubelet's record of drivers")?;
    list(serde_json::to_value(drivers)?)?;
    wait_for_ready(cluster, 200, "[+]kubelet-registration ok")
}

fn the_namespace_goes(cluster: &mut Cluster) -> Result<()> {
    let name = format!("{}-other", cluster.namespace);
    let namespaces: Api<Namespace> = Api::all(cluster.access.client());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
    cluster.access.run(namespaces.create(&Default::default(), &namespace))?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.access.client(), &name);
    let node = cluster.node();
    for number in 0..3 {
        let claim = serde_json::from_value(on(claim(&format!("data-{number}"), &cluster.class, "4Mi"), &node))?;
        cluster.access.run(claims.create(&Default::default(), &claim)).context("create a claim")?;
    }
    cluster.access.wait(PATIENCE, "the agent to create a volume", || {
        ensure!(!cluster.agents[0].volumes()?.is_empty(), "the pool holds none");
        Ok(())
    })?;
    cluster.access.run(namespaces.delete(&name, &Default::default()))?;
    cluster.access.wait_until_gone(&namespaces, &name, PATIENCE)?;
    holds(cluster, 0)
}
