//! `kubectl bulkhead`, with agents on a real control plane.

mod classes;
mod doctor;
mod lists;
mod lost;

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::case::Case;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::manifests::NAMESPACE;
use bulkhead_tests::cluster::network::POD_ADDRESS;
use bulkhead_tests::cluster::objects::{claim, on, pod};
use bulkhead_tests::commands::{Printed, kubectl_bulkhead};
use bulkhead_tests::monitoring;
use bulkhead_tests::rig::Rig;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, from_value, json};

/// The tests.
pub fn cases() -> Vec<Case<Cluster>> {
    [lists::cases(), doctor::cases(), classes::cases(), lost::cases()].concat()
}

pub fn plugin(cluster: &Cluster, arguments: &[&str]) -> Result<Printed> {
    Printed::by(kubectl_bulkhead(&cluster.access.kubeconfig())?.args(arguments))
}

pub fn as_json(cluster: &Cluster, arguments: &[&str]) -> Result<Value> {
    let printed = plugin(cluster, &[arguments, &["-o", "json"]].concat())?.succeeded()?;
    serde_json::from_str(&printed).with_context(|| format!("no JSON: {printed}"))
}

/// Adds an agent whose metrics and probes the API server can reach as those of a pod.
pub fn add_reachable_agent(cluster: &mut Cluster) -> Result<()> {
    let prepare = |rig: &mut Rig| {
        monitoring::serve_at(rig, &format!("{POD_ADDRESS}:0"));
        rig.add_pool("default")
    };
    cluster.add_agent_with(prepare).map(drop)
}

/// Adds a claim called data, and waits until an agent that can be reached tells of its volume.
pub fn tell_of_a_volume(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|_| ())?;
    add_reachable_agent(cluster)?;
    cluster.create_claim(&on(claim("data", &class, "8Mi"), &cluster.node()))?;
    cluster.bound("data")?;
    let address: SocketAddr = monitoring::address(&cluster.agents[0].rig)?.parse()?;
    agent_pod(cluster, NAMESPACE, address.port(), true)?;
    // The agent looks at its volumes and pools every half minute.
    cluster.access.wait(cluster.patience(), "the agent to tell of its volumes", || {
        let volumes = as_json(cluster, &["volumes"])?;
        ensure!(volumes[0]["condition"]["state"] == "ok", "{volumes}");
        Ok(())
    })
}

/// Creates a pod labelled as an agent's, as the first node's kubelet would report it.
pub fn agent_pod(cluster: &Cluster, namespace: &str, port: u16, is_ready: bool) -> Result<()> {
    agent_pod_on(cluster, &cluster.node(), namespace, port, is_ready)
}

fn agent_pod_on(cluster: &Cluster, name: &str, namespace: &str, port: u16, is_ready: bool) -> Result<()> {
    let mut agent = pod(name, &cluster.namespace, &[]);
    agent["metadata"]["labels"] = json!({ "app.kubernetes.io/name": "bulkhead" });
    agent["spec"]["nodeName"] = json!(name);
    agent["spec"]["containers"][0]["name"] = json!("frontend");
    agent["spec"]["containers"][0]["ports"] = json!([{ "name": "metrics", "containerPort": port }]);
    let pods: Api<Pod> = Api::namespaced(cluster.access.client(), namespace);
    if cluster.access.run(pods.get_opt(name))?.is_none() {
        cluster.access.run(pods.create(&PostParams::default(), &from_value(agent)?))?;
    }
    let ready = json!({ "type": "Ready", "status": if is_ready { "True" } else { "False" } });
    let address = json!({ "ip": POD_ADDRESS });
    let status = json!({ "phase": "Running", "podIP": POD_ADDRESS, "podIPs": [address], "conditions": [ready] });
    let patch = Patch::Strategic(json!({ "status": status }));
    cluster.access.run(pods.patch_status(name, &PatchParams::default(), &patch))?;
    Ok(())
}
