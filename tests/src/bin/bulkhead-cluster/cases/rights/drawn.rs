//! What a thief of a token would do to bring others' pods, with their Secrets, to its node: it binds their claims to volumes
//! there, or promises room there. Here with a real controller manager, which would bind them.

use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::objects::{PROVISIONER, SELECTED_NODE};
use bulkhead_tests::kubelet::DRIVER;
use serde_json::{Value, json};

use super::claims::select;
use super::{CAPACITIES, Patch, Rights, VOLUMES, path_of, reports, volumes, with_rights};

const POLICY: &str = "bulkhead-agent-bindings";
// The messages of its expressions.
const NODE: &str = "a claim may be bound only to a volume on the node that is selected for it";
const DRIVERS: &str = "a claim of another driver may not be bound to a volume of this one";
// Those of others.
const VOLUME_CLASS: &str =
    "an agent may create volumes only of storage classes for which its account is granted the verb provision";
const CAPACITY_CLASS: &str =
    "an agent may publish capacity only of storage classes for which its account is granted the verb provision";
pub const TAKEN_CLASS: &str =
    "an agent may take only claims of storage classes for which its account is granted the verb take";

/// Longer than the controller manager takes to bind a claim to a volume that suits it: one tries for the other, and a
/// claim that nothing holds back is bound within a second.
const LONG: Duration = Duration::from_secs(3);

cases! {
    on Cluster;
    another_drivers_claim_is_not_drawn: Bare,
    another_nodes_claim_is_not_drawn: Bare,
    a_claim_that_waits_for_its_pod_is_not_drawn: Bare,
    volumes_of_an_older_release_are_bound: Bare,
    no_room_is_promised_for_another_drivers_class: Bare,
}

/// Checks that the claim at `path` is bound to nothing, though a volume is there for it.
fn stays_unbound(rights: &Rights<'_>, path: &str) -> Result<()> {
    std::thread::sleep(LONG);
    let claim = rights.administrator.get(path).granted()?;
    ensure!(claim["spec"]["volumeName"].is_null(), "it was bound: {claim}");
    Ok(())
}

/// Binds the claim at `path` as the controller manager would.
fn bind(volume: &Value) -> Value {
    json!({ "spec": { "volumeName": volume["metadata"]["name"] } })
}

fn is_bound_to(rights: &Rights<'_>, path: &str, volume: &Value) -> Result<()> {
    rights.cluster.access.wait(rights.cluster.patience(), "the claim to be bound", || {
        let claim = rights.administrator.get(path).granted()?;
        ensure!(claim["status"]["phase"] == "Bound", "its status is {}", claim["status"]);
        ensure!(claim["spec"]["volumeName"] == volume["metadata"]["name"], "it is bound to another: {claim}");
        Ok(())
    })
}

fn another_drivers_claim_is_not_drawn(cluster: &mut Cluster) -> Result<()> {
    let foreign = cluster.add_class_without_grant(|class| class["provisioner"] = json!("other.example.com"))?;
    with_rights(cluster, |rights| {
        let mut claim = rights.claim("data", &rights.here);
        claim["spec"]["storageClassName"] = json!(foreign);
        claim["metadata"]["annotations"][PROVISIONER] = json!("other.example.com");
        let (path, claim) = rights.make_claim(&claim)?;
        let mut volume = rights.volume(&claim, &rights.here);
        volume["spec"]["storageClassName"] = json!(foreign);
        rights.agent.create(VOLUMES, &volume).refused_by(volumes::POLICY, VOLUME_CLASS)?;
        volume["spec"]["storageClassName"] = Value::Null;
        rights.agent.create(VOLUMES, &volume).refused_by(volumes::POLICY, VOLUME_CLASS)?;
        // With a false class the volume is made, and the controller manager would bind it to the claim nevertheless.
        let volume = rights.agent.create(VOLUMES, &rights.volume(&claim, &rights.here)).granted()?;
        rights.administrator.patch(&path, Patch::Merge, &bind(&volume)).refused_by(POLICY, DRIVERS)?;
        stays_unbound(rights, &path)
    })
}

fn another_nodes_claim_is_not_drawn(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (path, claim) = rights.make_claim(&rights.claim("data", &rights.there))?;
        let decoy = rights.agent.create(VOLUMES, &rights.volume(&claim, &rights.here)).granted()?;
        rights.administrator.patch(&path, Patch::Merge, &bind(&decoy)).refused_by(POLICY, NODE)?;
        stays_unbound(rights, &path)?;
        // It holds the claim up, as long as it is there.
        rights.administrator.delete(&path_of(VOLUMES, &decoy)).granted()?;
        let released = json!({ "metadata": { "finalizers": null } });
        rights.administrator.patch(&path_of(VOLUMES, &decoy), Patch::Merge, &released).granted()?;
        let volume = rights.other.create(VOLUMES, &rights.volume(&claim, &rights.there)).granted()?;
        is_bound_to(rights, &path, &volume)
    })
}

fn a_claim_that_waits_for_its_pod_is_not_drawn(cluster: &mut Cluster) -> Result<()> {
    let waiting = cluster.add_class_without_grant(|_| {})?;
    with_rights(cluster, |rights| {
        let (path, claim) = rights.make_claim(&rights.open_claim("data"))?;
        let volume = rights.agent.create(VOLUMES, &rights.volume(&claim, &rights.here)).granted()?;
        rights.administrator.patch(&path, Patch::Merge, &bind(&volume)).refused_by(POLICY, NODE)?;
        stays_unbound(rights, &path)?;
        // Nor can the claim be taken, unless its class is one for any node.
        let mut claim = rights.open_claim("other");
        claim["spec"]["storageClassName"] = json!(waiting);
        let (path, _) = rights.make_claim(&claim)?;
        rights
            .agent
            .patch(&path, Patch::Merge, &select(rights.here.as_str()))
            .refused_by("bulkhead-agent-claims", TAKEN_CLASS)
    })
}

/// Their names say nothing about the node, and they exist already.
fn volumes_of_an_older_release_are_bound(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (path, claim) = rights.make_claim(&rights.claim("data", &rights.here))?;
        let mut volume = rights.volume(&claim, &rights.here);
        volume["metadata"]["name"] = volume["spec"]["csi"]["volumeHandle"].clone();
        let volume = rights.administrator.create(VOLUMES, &volume).granted()?;
        is_bound_to(rights, &path, &volume)?;
        // The node's agent goes on serving them.
        let larger = json!({ "spec": { "capacity": { "storage": "16Mi" } } });
        rights.agent.patch(&path_of(VOLUMES, &volume), Patch::Strategic, &larger).granted()?;
        let annotations = rights.administrator.get(&path).granted()?["metadata"]["annotations"].clone();
        ensure!(annotations[SELECTED_NODE] == rights.here && annotations[PROVISIONER] == DRIVER, "{annotations}");
        Ok(())
    })
}

fn no_room_is_promised_for_another_drivers_class(cluster: &mut Cluster) -> Result<()> {
    let foreign = cluster.add_class_without_grant(|class| class["provisioner"] = json!("other.example.com"))?;
    with_rights(cluster, |rights| {
        let mut capacity = reports::capacity(rights, &rights.here);
        capacity["storageClassName"] = json!(foreign);
        rights.agent.create(CAPACITIES, &capacity).refused_by(reports::ROOM_POLICY, CAPACITY_CLASS)
    })
}
