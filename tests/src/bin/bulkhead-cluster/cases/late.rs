//! A PersistentVolume that came too late, when its claim had been given back, holds the claim up until it is deleted as the
//! doctor says.

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::manifests::kubectl;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{SELECTED_NODE, claim, on, volume};
use bulkhead_tests::cluster::{Cluster, PATIENCE};
use bulkhead_tests::commands::{Printed, kubectl_bulkhead};
use serde_json::json;

cases! {
    on Cluster;
    an_object_that_holds_its_claim_up_is_named_and_deleted,
}

fn an_object_that_holds_its_claim_up_is_named_and_deleted(cluster: &mut Cluster) -> Result<()> {
    let (node, other) = (cluster.node(), format!("{}-1", cluster.namespace));
    cluster.fence_volumes()?;
    let uid = cluster.create_claim(&on(claim("data", &cluster.class, "16Mi"), &node))?;
    cluster.access.wait(PATIENCE, "the volume to be made", || {
        ensure!(cluster.agents[0].volumes()?.len() == 1, "it is not");
        Ok(())
    })?;
    // The API server makes the object, but the agent does not hear of it, and gives the claim back.
    cluster.agent().rig.kill_frontend()?;
    cluster.unfence_volumes()?;
    cluster.patch_claim("data", &json!({ "metadata": { "annotations": { SELECTED_NODE: other } } }))?;
    let name = format!("pvc-{uid}.{node}");
    let mut late = volume(&name, &format!("pvc-{uid}"), &cluster.class, "16Mi", &node);
    late["metadata"]["labels"] = json!({ TOPOLOGY_KEY: node });
    late["metadata"]["finalizers"] = json!(["external-provisioner.volume.kubernetes.io/finalizer"]);
    late["spec"]["claimRef"] =
        json!({ "kind": "PersistentVolumeClaim", "namespace": cluster.namespace, "name": "data", "uid": uid });
    cluster.create_volume(&late)?;

    let doctor = Printed::by(kubectl_bulkhead(&cluster.access.kubeconfig())?.arg("doctor"))?.failed()?;
    let told = format!("PersistentVolume {name} on node {node} holds it up");
    ensure!(doctor.contains(&told), "{doctor}");

    cluster.agent().rig.start_frontend()?;
    cluster.add_agent()?;
    let command = format!("delete pv {name} --wait=false");
    ensure!(doctor.contains(&format!("`kubectl {command}`")), "{doctor}");
    kubectl(&cluster.access.kubeconfig(), &command.split(' ').collect::<Vec<_>>())?;
    cluster.bound("data")?;
    ensure!(cluster.agents[1].volumes()?.len() == 1, "it is not on {other}");
    cluster.volume_gone(&name)?;
    cluster.access.wait(PATIENCE, "the volume to be deleted", || {
        ensure!(cluster.agents[0].volumes()?.is_empty(), "it is still there");
        Ok(())
    })
}
