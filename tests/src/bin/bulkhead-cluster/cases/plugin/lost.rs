//! Nodes that are lost, and what was on them.

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::manifests::NAMESPACE;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::handle;
use bulkhead_tests::cluster::{manifests, node};
use bulkhead_tests::commands::Printed;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;

use super::super::nodes::lose_node;
use super::{agent_pod_on, plugin};

cases! {
    on Cluster;
    a_node_that_exists_is_not_released,
    a_lost_node_is_released,
}

fn a_node_that_exists_is_not_released(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let told = plugin(cluster, &["release-node", &node, "--yes"])?.failed()?;
    ensure!(told.contains("still exists") && told.contains("kubectl delete node"), "{told}");
    let nobody = plugin(cluster, &["release-node", "no-such-node"])?.succeeded()?;
    ensure!(nobody.contains("nothing refers to node no-such-node"), "{nobody}");
    Ok(())
}

fn a_lost_node_is_released(cluster: &mut Cluster) -> Result<()> {
    let (gone, volume) = lose_node(cluster)?;
    node::delete(&cluster.access, &gone)?;
    let (lost, waiting) = (format!("{}/there", cluster.namespace), format!("{}/waiting", cluster.namespace));
    cluster.access.wait(cluster.patience(), "the controller manager to leave the claim to the driver", || {
        let orphans = plugin(cluster, &["orphans"])?.succeeded()?;
        Printed::row(&orphans, &["lost", &gone, &lost, "8 MiB", &volume])?;
        Printed::row(&orphans, &["waiting", &gone, &waiting, "8 MiB"])?;
        Ok(())
    })?;
    let nodes = plugin(cluster, &["nodes"])?.succeeded()?;
    Printed::row(&nodes, &[&gone, "lost", "1"])?;

    // Nothing is done before it is confirmed.
    let told = plugin(cluster, &["release-node", &gone])?.failed()?;
    ensure!(told.contains(&volume) && told.contains("--yes"), "{told}");
    manifests::kubectl(&cluster.access.kubeconfig(), &["get", "pv", &volume])?;

    let told = plugin(cluster, &["release-node", &gone, "--yes"])?.succeeded()?;
    ensure!(told.contains("1 volume given up, 1 waiting claim given back"), "{told}");
    cluster.volume_gone(&volume)?;
    let elsewhere = cluster.bound("waiting")?.metadata.labels.context("labels")?;
    ensure!(elsewhere.get(TOPOLOGY_KEY) == Some(&cluster.node()), "it has {elsewhere:?}");
    let orphans = plugin(cluster, &["orphans"])?.succeeded()?;
    ensure!(!orphans.contains(&gone), "{orphans}");
    let doctor = cluster.access.wait(cluster.patience(), "a note of the node's pod", || {
        // The control plane collects it, since its node is gone: now, or within a minute.
        agent_pod_on(cluster, &gone, NAMESPACE, 1, true)?;
        let doctor = plugin(cluster, &["doctor"])?.text;
        Printed::row(&doctor, &["note", "node", &gone, "does not exist any more"])?;
        Ok(doctor)
    })?;
    ensure!(!doctor.lines().any(|line| line.starts_with("FAILED") && line.contains(&gone)), "{doctor}");
    let pods: Api<Pod> = Api::namespaced(cluster.access.client(), NAMESPACE);
    cluster.access.run(async {
        match pods.delete(&gone, &DeleteParams::default().grace_period(0)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            deleted => deleted.map(drop),
        }
    })?;
    // The agents no longer care about the volume on the lost node's disk.
    cluster.agents[1].rig.start_frontend()?;
    let csi = cluster.agents[1].rig.csi()?;
    csi.delete_volume(bulkhead_tests::csi::requests::delete(handle(&volume)))?;
    Ok(())
}
