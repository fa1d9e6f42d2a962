//! What is broken on purpose: each tool says so, and what to do; and it heals without a restart by hand.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::manifests::{NAMESPACE, kubectl};
use bulkhead_tests::cluster::network::POD_ADDRESS;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{SELECTED_NODE, claim, on, volume};
use bulkhead_tests::commands::{Printed, bulkheadctl};
use bulkhead_tests::monitoring;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::mount_image;
use bulkhead_tests::rig::Rig;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::plugin::{agent_pod, as_json, plugin};

cases! {
    on Cluster;
    a_node_whose_only_pool_is_missing_serves_it_once_it_is_there: Bare,
    pools_of_an_agent_on_the_host_are_in_the_doctor: Bare,
    a_pool_that_a_node_may_lack_is_absent: Bare,
    a_claim_that_asks_for_a_pool_that_the_node_lacks_goes_elsewhere,
    a_claim_does_not_wait_for_a_helper_that_is_gone: Bare,
    an_agent_that_has_stopped_is_named,
    a_deletion_waits_for_a_pool_that_is_absent: Bare + Slow,
    an_agent_without_its_helper_is_named,
    a_node_without_a_kubelet_is_named,
}

/// How long it may take until something is noticed.
const NOTICED: Duration = Duration::from_secs(110);

/// Starts an agent that the plugin can reach, with these pools, of which the last is not mounted.
fn agent_without_pool(cluster: &mut Cluster, pools: &[&str], flags: &[&str]) -> Result<String> {
    let agent = cluster.add_agent_with(|rig| {
        monitoring::serve_at(rig, &format!("{POD_ADDRESS}:0"));
        rig.frontend_flags.extend(flags.iter().map(Into::into));
        add_pools_but_the_last(rig, pools)
    })?;
    let address: SocketAddr = monitoring::address(&agent.rig)?.parse()?;
    agent_pod(cluster, NAMESPACE, address.port(), true)?;
    Ok(cluster.node())
}

fn add_pools_but_the_last(rig: &mut Rig, pools: &[&str]) -> Result<()> {
    pools.iter().try_for_each(|pool| rig.add_pool(pool))?;
    mounts::unmount_all(&rig.pools.last().context("a pool")?.directory)
}

fn mount(rig: &Rig) -> Result<()> {
    let directory = &rig.pools.last().context("a pool")?.directory;
    mount_image(&rig.run_options, &directory.with_extension("disk"), directory)
}

/// Mounts the last pool. The helper ends for it, and is started anew.
fn bring_the_last_pool(cluster: &mut Cluster) -> Result<()> {
    let rig = &mut cluster.agent().rig;
    mount(rig)?;
    rig.await_end_of_helper(rig.patience(Duration::from_secs(60)))?;
    rig.start_helper()
}

fn doctor_on_node(cluster: &Cluster) -> Result<String> {
    let socket = cluster.agents[0].rig.kubelet.csi_socket();
    Ok(Printed::by(bulkheadctl(&socket)?.arg("doctor"))?.text)
}

fn is_given_back(cluster: &Cluster, name: &str, limit: Duration) -> Result<()> {
    let done = cluster.access.wait_for(&cluster.claims(), name, limit, "to be given back", |claim| {
        let annotations = claim.metadata.annotations.clone().unwrap_or_default();
        ensure!(!annotations.contains_key(SELECTED_NODE), "it still has its node: {annotations:?}");
        Ok(())
    });
    done.map(drop)
}

fn a_node_whose_only_pool_is_missing_serves_it_once_it_is_there(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|_| {})?;
    let node = agent_without_pool(cluster, &["default"], &[])?;
    // It is ready, so that an update goes on to other nodes, and says what is missing.
    cluster.access.wait(cluster.patience(), "the agent to say what is missing", || {
        monitoring::check_ready(&cluster.agents[0].rig, 200, "[!]pool default: pool default is not served: ")
    })?;
    ensure!(cluster.room(&class, &node)? == 0, "there is room");
    cluster.create_claim(&on(claim("data", &class, "8Mi"), &node))?;
    is_given_back(cluster, "data", cluster.patience())?;
    cluster.event("data", "ProvisioningFailed", "pool default is not served")?;
    cluster.event(&node, "PoolConditionAbnormal", "pool default is not served")?;
    Printed::row(&doctor_on_node(cluster)?, &["FAILED", "pool default", "pool default is not served: "])?;
    let doctor = plugin(cluster, &["doctor"])?.text;
    Printed::row(&doctor, &["FAILED", &format!("pool default on {node}")])?;
    let pools = plugin(cluster, &["pools"])?.succeeded()?;
    ensure!(Printed::row(&pools, &[&node, "default"])?.ends_with("not_served"), "{pools}");
    Printed::row(&plugin(cluster, &["nodes"])?.succeeded()?, &[&node, "ready"])?;

    // Another agent says that it is over: neither of its processes knows of it by itself.
    cluster.agent().rig.kill_frontend()?;
    bring_the_last_pool(cluster)?;
    cluster.agent().rig.start_frontend()?;
    cluster.event(&node, "PoolConditionNormal", "pool default: no longer: the helper does not serve it")?;
    cluster.access.wait(NOTICED, "the pool to be offered", || {
        ensure!(cluster.room(&class, &node)? > 0, "nothing is");
        monitoring::check_ready(&cluster.agents[0].rig, 200, "[+]helper ok")?;
        let doctor = doctor_on_node(cluster)?;
        Printed::row(&doctor, &["note", "pool default"])?;
        ensure!(!doctor.contains("not served"), "{doctor}");
        Ok(())
    })?;
    cluster.patch_claim("data", &json!({ "metadata": { "annotations": { SELECTED_NODE: node } } }))?;
    cluster.bound("data").map(drop)
}

fn pools_of_an_agent_on_the_host_are_in_the_doctor(cluster: &mut Cluster) -> Result<()> {
    cluster.add_agent_with(|rig| add_pools_but_the_last(rig, &["default", "fast"]))?;
    let node = cluster.node();
    cluster.access.wait(NOTICED, "the doctor to know the node's pools", || {
        let doctor = plugin(cluster, &["doctor"])?.failed()?;
        Printed::row(
            &doctor,
            &["FAILED", &format!("pool fast on {node}"), "no figures; the helper does not serve it"],
        )?;
        Printed::row(&doctor, &["note", &format!("pool default on {node}"), "no figures; sizes are not enforced"])?;
        Printed::row(
            &doctor,
            &["note", &format!("volumes on {node}"), "unknown: its agent runs as a service of the host"],
        )?;
        Ok(())
    })?;
    bring_the_last_pool(cluster)?;
    cluster.access.wait(NOTICED, "the doctor to know that the pool is there", || {
        let doctor = plugin(cluster, &["doctor"])?.text;
        Printed::row(&doctor, &["note", &format!("pool fast on {node}"), "no figures; sizes are not enforced"])
            .map(drop)
    })
}

fn a_pool_that_a_node_may_lack_is_absent(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| class["parameters"] = json!({ "pool": "fast" }))?;
    let node = agent_without_pool(cluster, &["default", "fast"], &["--optional-pools", "slow,fast"])?;
    cluster.access.wait(cluster.patience(), "the agent to say what is absent", || {
        let rig = &cluster.agents[0].rig;
        monitoring::check_ready(rig, 200, "[!]pool fast: absent, as it may be on this node: pool fast is not served")?;
        let (_, metrics) = monitoring::get(rig, "/metrics")?;
        ensure!(metrics.contains("bulkhead_pool_condition{pool=\"fast\",condition=\"absent\"} 1.0"), "{metrics}");
        ensure!(!metrics.contains("not_served\"} 1.0"), "{metrics}");
        Ok(())
    })?;
    cluster.event(&node, "PoolConditionNotice", "pool fast: absent")?;
    Printed::row(&doctor_on_node(cluster)?, &["note", "pool fast", "absent, as it may be"])?;
    let doctor = plugin(cluster, &["doctor"])?.text;
    Printed::row(&doctor, &["note", &format!("pool fast on {node}"), "no figures; it is not there"])?;
    let pools = plugin(cluster, &["pools"])?.succeeded()?;
    ensure!(Printed::row(&pools, &[&node, "fast"])?.ends_with("absent"), "{pools}");
    ensure!(cluster.room(&class, &node)? == 0, "there is room");

    bring_the_last_pool(cluster)?;
    cluster.access.wait(NOTICED, "the pool to be offered", || {
        ensure!(cluster.room(&class, &node)? > 0, "nothing is");
        Ok(())
    })?;
    cluster.create_claim(&on(claim("data", &class, "8Mi"), &node))?;
    cluster.bound("data")?;
    cluster.access.wait(NOTICED, "it to be no longer absent", || {
        let pools = as_json(cluster, &["pools"])?;
        let fast = |pool: &&Value| pool["node"] == node && pool["pool"] == "fast";
        let fast = pools.as_array().and_then(|all| all.iter().find(fast)).context("no pool of the node")?;
        ensure!(fast["conditions"] == json!(["not_enforced"]), "{fast}");
        Ok(())
    })?;
    // Now that somebody needs what is in it, it may not be lacking any more.
    cluster.agent().rig.kill_helper()?;
    mounts::unmount_all(&cluster.agents[0].rig.pools[1].directory)?;
    cluster.agent().rig.start_helper()?;
    cluster.access.wait(NOTICED, "its loss to be a failure", || {
        let (_, metrics) = monitoring::get(&cluster.agents[0].rig, "/metrics")?;
        ensure!(metrics.contains("bulkhead_pool_condition{pool=\"fast\",condition=\"not_served\"} 1.0"), "{metrics}");
        Ok(())
    })?;
    // The next agent does not take it for absent until it knows what is needed.
    cluster.agent().rig.restart_frontend()?;
    cluster.access.wait(NOTICED, "the next agent to call it a failure too", || {
        let (_, metrics) = monitoring::get(&cluster.agents[0].rig, "/metrics")?;
        ensure!(metrics.contains("bulkhead_pool_condition{pool=\"fast\",condition=\"not_served\"} 1.0"), "{metrics}");
        ensure!(!metrics.contains("condition=\"absent\""), "it was absent before: {metrics}");
        Ok(())
    })?;
    bring_the_last_pool(cluster)
}

fn a_claim_that_asks_for_a_pool_that_the_node_lacks_goes_elsewhere(cluster: &mut Cluster) -> Result<()> {
    let here = cluster.node();
    let there = cluster.add_agent_with(|rig| ["default", "swift"].iter().try_for_each(|pool| rig.add_pool(pool)))?;
    let there = there.node.clone();
    let class = cluster.add_class(|class| class["parameters"] = json!({ "pool": "swift" }))?;
    let immediate = cluster.add_class(|class| {
        class["parameters"] = json!({ "pool": "swift" });
        class["volumeBindingMode"] = json!("Immediate");
    })?;
    ensure!(cluster.room(&class, &here)? == 0 && cluster.room(&class, &there)? > 0);
    cluster.create_claim(&on(claim("data", &class, "8Mi"), &here))?;
    is_given_back(cluster, "data", cluster.patience())?;
    cluster.event("data", "ProvisioningFailed", "pool swift is not served on this node")?;
    for number in 0..5 {
        let name = format!("anywhere-{number}");
        cluster.create_claim(&claim(&name, &immediate, "8Mi"))?;
        let labels = cluster.bound(&name)?.metadata.labels.unwrap_or_default();
        ensure!(!cluster.is_recent() || labels.get(TOPOLOGY_KEY) == Some(&there), "{labels:?}");
    }
    Ok(())
}

fn a_claim_does_not_wait_for_a_helper_that_is_gone(cluster: &mut Cluster) -> Result<()> {
    cluster.add_hurried_agent()?;
    let node = cluster.node();
    ensure!(cluster.room(&cluster.class, &node)? > 0);
    cluster.agent().rig.kill_helper()?;
    cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &node))?;
    is_given_back(cluster, "data", 2 * NOTICED)?;
    ensure!(cluster.room(&cluster.class, &node)? == 0, "it would come back at once");
    cluster.agent().rig.start_helper()?;
    cluster.access.wait(NOTICED, "the capacity to be offered again", || {
        ensure!(cluster.room(&cluster.class, &node)? > 0, "nothing is");
        Ok(())
    })
}

/// As after three minutes of silence, which nobody wants to wait for.
fn an_agent_that_has_stopped_is_named(cluster: &mut Cluster) -> Result<()> {
    let (node, leases) = (cluster.node(), Api::<Lease>::namespaced(cluster.access.client(), NAMESPACE));
    cluster.access.wait(cluster.patience(), "the agent to say that it works", || {
        let lease = cluster.access.run(leases.get(&node))?;
        ensure!(lease.metadata.owner_references.is_some_and(|owners| owners[0].name == node), "nobody's");
        Printed::row(&plugin(cluster, &["nodes"])?.succeeded()?, &[&node, "ready"]).map(drop)
    })?;
    cluster.agent().rig.kill_frontend()?;
    let ago = json!({ "spec": { "renewTime": "2026-01-01T00:00:00.000000Z" } });
    cluster.access.run(leases.patch(&node, &PatchParams::default(), &Patch::Merge(ago)))?;
    Printed::row(&plugin(cluster, &["nodes"])?.succeeded()?, &[&node, "silent"])?;
    let doctor = plugin(cluster, &["doctor"])?.failed()?;
    let told = Printed::row(&doctor, &["FAILED", "node", &node, "its agent has not said for"])?;
    ensure!(told.contains("systemctl status bulkhead-frontend"), "{told}");
    cluster.agent().rig.start_frontend()?;
    cluster.access.wait(cluster.patience(), "the agent to say that it works again", || {
        Printed::row(&plugin(cluster, &["nodes"])?.succeeded()?, &[&node, "ready"]).map(drop)
    })
}

/// As after a deletion that was interrupted before its object was gone: the volume may be in any pool.
fn a_deletion_waits_for_a_pool_that_is_absent(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|_| {})?;
    let node = agent_without_pool(cluster, &["default", "fast"], &["--optional-pools", "fast"])?;
    let name = format!("{}-deleted", cluster.namespace);
    let mut object = volume(&name, "deleted", &class, "8Mi", &node);
    object["metadata"]["labels"] = json!({ TOPOLOGY_KEY: node });
    object["metadata"]["finalizers"] = json!(["external-provisioner.volume.kubernetes.io/finalizer"]);
    object["spec"]["claimRef"] =
        json!({ "kind": "PersistentVolumeClaim", "namespace": cluster.namespace, "name": "gone", "uid": "gone" });
    cluster.create_volume(&object)?;
    cluster.event(&name, "VolumeDeleteWaiting", "is deleted once the pool is there")?;
    // Until the agent knows that nobody needs the pool, the deletion fails.
    cluster.access.wait(cluster.patience(), "nothing to fail", || {
        let (_, metrics) = monitoring::get(&cluster.agents[0].rig, "/metrics")?;
        ensure!(!metrics.contains("bulkhead_failing_objects 1.0"), "{metrics}");
        Ok(())
    })?;
    bring_the_last_pool(cluster)?;
    cluster.volume_gone(&name)
}

fn an_agent_without_its_helper_is_named(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let state = |cluster: &Cluster, state: &str| {
        cluster.access.wait(NOTICED, &format!("the node to be {state}"), || {
            Printed::row(&plugin(cluster, &["nodes"])?.succeeded()?, &[&node, state]).map(drop)
        })
    };
    state(cluster, "ready")?;
    cluster.agent().rig.kill_helper()?;
    state(cluster, "not-ready")?;
    // What it reported when it began, that the API server had not answered yet, may be what is known for a moment longer.
    let told = cluster.access.wait(NOTICED, "the helper to be named", || {
        let doctor = plugin(cluster, &["doctor"])?.failed()?;
        Printed::row(&doctor, &["FAILED", "node", &node, "the agent is not ready: helper not ready: "])
    })?;
    ensure!(told.contains("systemctl status bulkhead-privhelper"), "{told}");
    cluster.agent().rig.start_helper()?;
    state(cluster, "ready")
}

fn a_node_without_a_kubelet_is_named(cluster: &mut Cluster) -> Result<()> {
    let (node, nodes) = (cluster.node(), Api::<Node>::all(cluster.access.client()));
    cluster.capacity(&cluster.class, &node)?;
    let kubelet = |status: &str| {
        let ready = json!({ "type": "Ready", "status": status, "reason": "NodeStatusUnknown", "message": "test" });
        let patch = Patch::Strategic(json!({ "status": { "conditions": [ready] } }));
        cluster.access.run(nodes.patch_status(&node, &PatchParams::default(), &patch)).map(drop)
    };
    kubelet("Unknown")?;
    let found = plugin(cluster, &["nodes"])?.succeeded().and_then(|text| Printed::row(&text, &[&node, "no-kubelet"]));
    let doctor = plugin(cluster, &["doctor"])?.text;
    let told = Printed::row(&doctor, &["FAILED", "node", &node]);
    kubelet("True")?;
    kubectl(&cluster.access.kubeconfig(), &["taint", "node", &node, "node.kubernetes.io/unreachable-"]).ok();
    found?;
    ensure!(told?.contains("its kubelet does not report any more"), "{doctor}");
    cluster.access.wait(cluster.patience(), "the node to be ready again", || {
        Printed::row(&plugin(cluster, &["nodes"])?.succeeded()?, &[&node, "ready"]).map(drop)
    })
}
