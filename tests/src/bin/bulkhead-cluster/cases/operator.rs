//! What an operator sees of a node that is part of a cluster.

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::objects::{claim, handle, on};
use bulkhead_tests::commands::{Printed, bulkheadctl, bulkheadctl_json};
use bulkhead_tests::csi::requests;

cases! {
    on Cluster;
    a_volume_leads_to_its_claim_and_one_without_is_an_orphan,
    a_volume_that_a_claim_needs_is_not_deleted,
    the_doctor_knows_the_api_server_and_the_policies,
}

fn a_volume_leads_to_its_claim_and_one_without_is_an_orphan(cluster: &mut Cluster) -> Result<()> {
    cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &cluster.node()))?;
    let volume = cluster.bound("data")?.metadata.name.context("a name")?;
    let namespace = cluster.namespace.clone();
    let rig = &cluster.agent().rig;
    let (socket, csi) = (rig.kubelet.csi_socket(), rig.csi()?);
    let shown = bulkheadctl_json(&socket, &["volume", "show", handle(&volume)])?;
    ensure!(shown["claim"] == format!("{namespace}/data") && shown["persistentVolume"] == volume, "{shown}");
    let orphans = bulkheadctl_json(&socket, &["volume", "orphans"])?;
    ensure!(orphans.as_array().is_some_and(Vec::is_empty), "{orphans}");
    csi.create_volume(requests::create("by-hand", 8 << 20, requests::mount()))?;
    let orphans = Printed::by(bulkheadctl(&socket)?.args(["volume", "orphans"]))?.succeeded()?;
    Printed::row(&orphans, &["by-hand", "default", "directory", "8 MiB"])?;
    ensure!(!orphans.contains(handle(&volume)), "{orphans}");
    csi.delete_volume(requests::delete("by-hand"))?;
    Ok(())
}

fn a_volume_that_a_claim_needs_is_not_deleted(cluster: &mut Cluster) -> Result<()> {
    cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &cluster.node()))?;
    let volume = cluster.bound("data")?.metadata.name.context("a name")?;
    let namespace = cluster.namespace.clone();
    let rig = &cluster.agent().rig;
    let (socket, csi) = (rig.kubelet.csi_socket(), rig.csi()?);
    let told = Printed::by(bulkheadctl(&socket)?.args(["volume", "delete", handle(&volume), "--yes"]))?.failed()?;
    ensure!(told.contains(&format!("claim {namespace}/data")) && told.contains("--force"), "{told}");
    ensure!(rig.pool().volume(handle(&volume)).exists(), "it was deleted");
    let asked = Printed::by(bulkheadctl(&socket)?.args(["volume", "delete", handle(&volume), "--force"]))?.failed()?;
    ensure!(asked.contains(&format!("It belongs to claim {namespace}/data (PersistentVolume {volume})")), "{asked}");
    ensure!(rig.pool().volume(handle(&volume)).exists(), "it was deleted");
    // What no object names may go.
    csi.create_volume(requests::create("by-hand", 8 << 20, requests::mount()))?;
    let shown = Printed::by(bulkheadctl(&socket)?.args(["volume", "show", "by-hand"]))?.succeeded()?;
    Printed::row(&shown, &["claim:", "none"])?;
    Printed::by(bulkheadctl(&socket)?.args(["volume", "delete", "by-hand", "--yes"]))?.succeeded()?;
    ensure!(!rig.pool().volume("by-hand").exists(), "it was not deleted");
    Ok(())
}

fn the_doctor_knows_the_api_server_and_the_policies(cluster: &mut Cluster) -> Result<()> {
    let socket = cluster.agent().rig.kubelet.csi_socket();
    cluster.access.wait(cluster.patience(), "the agent to have heard of all objects", || {
        let told = Printed::by(bulkheadctl(&socket)?.arg("doctor"))?.succeeded()?;
        Printed::row(&told, &["ok", "API server"])?;
        Printed::row(&told, &["ok", "policies", "in force for system:serviceaccount:bulkhead-system:bulkhead-agent"])
            .map(drop)
    })
}
