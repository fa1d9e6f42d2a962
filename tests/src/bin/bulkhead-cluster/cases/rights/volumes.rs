//! Volumes: an agent makes, grows and deletes those of its own node, each for one claim.

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::volume;
use serde_json::{Value, json};

use super::{FINALIZER, Patch, Rights, VOLUMES, path_of, with_rights};

const POLICY: &str = "bulkhead-agent-volumes";

cases! {
    on Cluster;
    the_life_of_a_volume_passes: Bare,
    only_volumes_of_the_own_node_are_made: Bare,
    a_volume_is_of_one_claim: Bare,
    another_nodes_volume_is_left_alone: Bare,
    nothing_but_capacity_and_finalizer_is_changed: Bare,
    static_volumes_are_not_taken: Bare,
    volumes_get_their_nodes_label: Bare,
}

fn the_life_of_a_volume_passes(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let agent = &rights.agent;
        let (claim, path) = rights.bound("data", &rights.here, agent)?;
        agent.get(VOLUMES).granted()?;
        agent.get(&path).granted()?;
        agent.patch(&path, Patch::Strategic, &json!({ "spec": { "capacity": { "storage": "16Mi" } } })).granted()?;
        let without = json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": [FINALIZER] } });
        agent.patch(&path, Patch::Strategic, &without).granted()?;
        agent.patch(&path, Patch::Strategic, &json!({ "metadata": { "finalizers": [FINALIZER] } })).granted()?;
        rights.administrator.delete(&claim).granted()?;
        rights.cluster.access.wait(rights.cluster.patience(), "the volume to be released", || {
            let volume = rights.administrator.get(&path).granted()?;
            ensure!(volume["status"]["phase"] == "Released", "its status is {}", volume["status"]);
            Ok(())
        })?;
        agent.delete(&path).granted()?;
        agent.patch(&path, Patch::Strategic, &without).granted()?;
        Ok(())
    })
}

/// Tries to make a volume for a claim of this node, changed by `edit`.
fn refused(rights: &Rights<'_>, claim: &Value, edit: impl FnOnce(&mut Value)) -> Result<()> {
    let mut volume = rights.volume(claim, &rights.here);
    edit(&mut volume);
    rights.agent.create(VOLUMES, &volume).refused_by(POLICY)
}

fn only_volumes_of_the_own_node_are_made(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (_, claim) = rights.make_claim(&rights.claim("data", &rights.here))?;
        let (here, there) = (&rights.here, &rights.there);
        let only = "/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0";
        rights.agent.create(VOLUMES, &rights.volume(&claim, there)).refused_by(POLICY)?;
        rights.other.create(VOLUMES, &rights.volume(&claim, here)).refused_by(POLICY)?;
        rights.unbound.create(VOLUMES, &rights.volume(&claim, here)).refused_by(POLICY)?;
        rights.unbound.create(VOLUMES, &rights.volume(&claim, "")).refused_by(POLICY)?;
        refused(rights, &claim, |volume| volume["metadata"]["labels"][TOPOLOGY_KEY] = json!(there))?;
        refused(rights, &claim, |volume| volume["spec"]["nodeAffinity"] = Value::Null)?;
        refused(rights, &claim, |volume| volume["spec"]["csi"]["driver"] = json!("other.example.com"))?;
        refused(rights, &claim, |volume| {
            volume["spec"]["csi"] = Value::Null;
            volume["spec"]["hostPath"] = json!({ "path": "/" });
        })?;
        refused(rights, &claim, |volume| {
            if let Some(expression) = volume.pointer_mut(only) {
                expression["values"] = json!([here, there]);
            }
        })?;
        refused(rights, &claim, |volume| {
            if let Some(expression) = volume.pointer_mut(only) {
                expression["operator"] = json!("NotIn");
            }
        })?;
        refused(rights, &claim, |volume| {
            let terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"].as_array_mut();
            let any = json!({ "matchExpressions": [{ "key": "kubernetes.io/os", "operator": "Exists" }] });
            terms.into_iter().for_each(|terms| terms.push(any.clone()));
        })
    })
}

fn a_volume_is_of_one_claim(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (_, claim) = rights.make_claim(&rights.claim("data", &rights.here))?;
        refused(rights, &claim, |volume| volume["spec"]["claimRef"] = Value::Null)?;
        refused(rights, &claim, |volume| volume["metadata"]["name"] = json!("pvc-another"))?;
        refused(rights, &claim, |volume| volume["spec"]["csi"]["volumeHandle"] = json!("pvc-another"))?;
        refused(rights, &claim, |volume| {
            volume["metadata"]["name"] = json!("pvc-another");
            volume["spec"]["csi"]["volumeHandle"] = json!("pvc-another");
        })
    })
}

fn another_nodes_volume_is_left_alone(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (_, path) = rights.bound("data", &rights.there, &rights.other)?;
        for stranger in [&rights.agent, &rights.unbound] {
            let larger = json!({ "spec": { "capacity": { "storage": "16Mi" } } });
            stranger.patch(&path, Patch::Strategic, &larger).refused_by(POLICY)?;
            let bare = json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": [FINALIZER] } });
            stranger.patch(&path, Patch::Strategic, &bare).refused_by(POLICY)?;
            stranger.delete(&path).refused_by(POLICY)?;
            stranger.delete(VOLUMES).refused_by_role()?;
        }
        Ok(())
    })
}

fn nothing_but_capacity_and_finalizer_is_changed(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (_, path) = rights.bound("data", &rights.here, &rights.agent)?;
        for change in [
            json!({ "spec": { "claimRef": { "name": "another" } } }),
            json!({ "spec": { "claimRef": null } }),
            json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } }),
            json!({ "spec": { "accessModes": ["ReadWriteMany"] } }),
            json!({ "spec": { "mountOptions": ["noexec"] } }),
            json!({ "spec": { "storageClassName": "another" } }),
            json!({ "metadata": { "labels": { "colour": "red" } } }),
            json!({ "metadata": { "labels": { TOPOLOGY_KEY: rights.there } } }),
            json!({ "metadata": { "annotations": { "pv.kubernetes.io/provisioned-by": "other.example.com" } } }),
            json!({ "metadata": { "annotations": { "pv.kubernetes.io/migrated-to": "other.example.com" } } }),
            json!({ "metadata": { "finalizers": [FINALIZER] } }),
            json!({ "metadata": { "finalizers": [FINALIZER, "kubernetes.io/pv-protection", "example.com/mine"] } }),
            json!({ "metadata": { "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "name": rights.here, "uid": "0",
            }] } }),
        ] {
            rights.agent.patch(&path, Patch::Merge, &change).refused_by(POLICY)?;
        }
        let status = json!({ "status": { "phase": "Available" } });
        rights.agent.patch(&format!("{path}/status"), Patch::Merge, &status).refused_by_role()?;
        let whole = rights.administrator.get(&path).granted()?;
        rights.agent.replace(&path, &whole).refused_by_role()
    })
}

fn static_volumes_are_not_taken(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let name = format!("{}-by-hand", rights.cluster.namespace);
        let mut open = volume(&name, "by-hand", &rights.class, "8Mi", &rights.here);
        let affinity = open["spec"]["nodeAffinity"].take();
        let made = rights.administrator.create(VOLUMES, &open).granted()?;
        let path = path_of(VOLUMES, &made);
        let taken = rights.agent.patch(&path, Patch::Merge, &json!({ "spec": { "nodeAffinity": affinity } }));
        let refused = taken.refused_by(POLICY);
        rights.administrator.delete(&path).granted()?;
        refused
    })
}

fn volumes_get_their_nodes_label(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (_, claim) = rights.make_claim(&rights.claim("data", &rights.here))?;
        let mut volume = rights.volume(&claim, &rights.here);
        volume["metadata"]["labels"] = json!({ "colour": "red" });
        let labelled = |volume: &Value| -> Result<Value> {
            Ok(rights.administrator.try_create(VOLUMES, volume).granted()?["metadata"]["labels"].take())
        };
        let labels = labelled(&volume)?;
        ensure!(labels == json!({ "colour": "red", TOPOLOGY_KEY: rights.here }), "an own volume has {labels}");
        volume["spec"]["csi"]["driver"] = json!("other.example.com");
        let labels = labelled(&volume)?;
        ensure!(labels == json!({ "colour": "red" }), "another driver's volume has {labels}");
        Ok(())
    })
}
