//! Volumes: an agent may create, grow and delete those of its own node, each for one claim.

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::volume;
use serde_json::{Value, json};

use super::{FINALIZER, Patch, Rights, UNBOUND, VOLUMES, path_of, with_rights};

pub const POLICY: &str = "bulkhead-agent-volumes";
// The messages of the policy's expressions.
pub const OWN: &str = "an agent may modify only its own driver's volumes on its own node";
const RELEASED: &str = "an agent may delete a volume only when it is released and its reclaim policy is Delete";
const NAMED: &str = "an agent may create only volumes named after their claim and its own node";
const SECRET: &str = "an agent may not create a volume that names a secret";
const LABEL: &str = "an agent may give a new volume its node's label, but none of the control plane's labels";
const PLAIN: &str = "an agent may give a new volume only the control plane's annotations and finalizers that its driver uses, and no owner";
const SPECIFICATION: &str =
    "an agent may change only the capacity and the class of attributes in a volume's specification";
const METADATA: &str = "an agent may change no annotation, owner or label of a volume except the node's label";
const FINALIZERS: &str = "an agent may change no finalizer of a volume except its own";

cases! {
    on Cluster;
    a_volumes_whole_life_is_granted: Bare,
    only_volumes_of_the_own_node_are_created: Bare,
    only_released_volumes_are_deleted: Bare,
    a_volume_is_named_after_its_claim: Bare,
    a_new_volume_names_no_secret: Bare,
    a_new_volume_has_only_the_drivers_metadata: Bare,
    another_nodes_volume_is_left_alone: Bare,
    another_drivers_volume_is_left_alone: Bare,
    nothing_but_capacity_and_finalizer_is_changed: Bare,
    static_volumes_are_not_taken: Bare,
    a_volume_stays_where_it_is: Bare,
}

fn larger() -> Value {
    json!({ "spec": { "capacity": { "storage": "16Mi" } } })
}

fn without_finalizer() -> Value {
    json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": [FINALIZER] } })
}

fn a_volumes_whole_life_is_granted(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let agent = &rights.agent;
        let (claim, path) = rights.bound("data", &rights.here, agent)?;
        agent.get(VOLUMES).granted()?;
        agent.get(&path).granted()?;
        agent.patch(&path, Patch::Strategic, &larger()).granted()?;
        agent.patch(&path, Patch::Strategic, &without_finalizer()).granted()?;
        agent.patch(&path, Patch::Strategic, &json!({ "metadata": { "finalizers": [FINALIZER] } })).granted()?;
        rights.administrator.delete(&claim).granted()?;
        rights.cluster.access.wait(rights.cluster.patience(), "the volume to be released", || {
            let volume = rights.administrator.get(&path).granted()?;
            ensure!(volume["status"]["phase"] == "Released", "its status is {}", volume["status"]);
            Ok(())
        })?;
        agent.delete(&path).granted()?;
        agent.patch(&path, Patch::Strategic, &without_finalizer()).granted()?;
        Ok(())
    })
}

fn only_released_volumes_are_deleted(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (agent, administrator) = (&rights.agent, &rights.administrator);
        let policy = |policy: &str| json!({ "spec": { "persistentVolumeReclaimPolicy": policy } });
        let (claim, path) = rights.bound("data", &rights.here, agent)?;
        agent.delete(&path).refused_by(POLICY, RELEASED)?;
        administrator.patch(&path, Patch::Merge, &policy("Retain")).granted()?;
        administrator.delete(&claim).granted()?;
        rights.cluster.access.wait(rights.cluster.patience(), "the volume to be released", || {
            let volume = administrator.get(&path).granted()?;
            ensure!(volume["status"]["phase"] == "Released", "its status is {}", volume["status"]);
            Ok(())
        })?;
        agent.delete(&path).refused_by(POLICY, RELEASED)?;
        administrator.patch(&path, Patch::Merge, &policy("Delete")).granted()?;
        agent.delete(&path).granted()?;
        // The control plane calls it bound before the policy for bindings refuses that.
        let (_, claim) = rights.make_claim(&rights.claim("elsewhere", &rights.there))?;
        let made = agent.create(VOLUMES, &rights.volume(&claim, &rights.here)).granted()?;
        agent.delete(&path_of(VOLUMES, &made)).refused_by(POLICY, RELEASED)
    })
}

/// Checks that a volume for a claim of this node, changed by `edit`, is refused by the expression whose message is
/// `message`.
fn refused(rights: &Rights<'_>, claim: &Value, message: &str, edit: impl FnOnce(&mut Value)) -> Result<()> {
    let mut volume = rights.volume(claim, &rights.here);
    edit(&mut volume);
    rights.agent.create(VOLUMES, &volume).refused_by(POLICY, message)
}

/// The terms of its node affinity.
fn terms(volume: &mut Value) -> &mut Value {
    &mut volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
}

fn only_volumes_of_the_own_node_are_created(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (_, claim) = rights.make_claim(&rights.claim("data", &rights.here))?;
        let (here, there) = (&rights.here, &rights.there);
        rights.agent.create(VOLUMES, &rights.volume(&claim, there)).refused_by(POLICY, OWN)?;
        rights.other.create(VOLUMES, &rights.volume(&claim, here)).refused_by(POLICY, OWN)?;
        rights.unbound.create(VOLUMES, &rights.volume(&claim, here)).refused_by(POLICY, UNBOUND)?;
        let mut nowhere = rights.volume(&claim, "");
        nowhere["metadata"]["name"] = nowhere["spec"]["csi"]["volumeHandle"].clone();
        rights.unbound.create(VOLUMES, &nowhere).refused_by(POLICY, UNBOUND)?;
        refused(rights, &claim, OWN, |volume| volume["spec"]["nodeAffinity"] = Value::Null)?;
        refused(rights, &claim, OWN, |volume| volume["spec"]["csi"]["driver"] = json!("other.example.com"))?;
        refused(rights, &claim, OWN, |volume| {
            volume["spec"]["csi"] = Value::Null;
            volume["spec"]["hostPath"] = json!({ "path": "/" });
        })?;
        for (key, change) in
            [("key", json!("kubernetes.io/hostname")), ("values", json!([here, there])), ("operator", json!("NotIn"))]
        {
            refused(rights, &claim, OWN, |volume| terms(volume)[0]["matchExpressions"][0][key] = change)?;
        }
        refused(rights, &claim, OWN, |volume| {
            let any = json!({ "matchExpressions": [{ "key": "kubernetes.io/os", "operator": "Exists" }] });
            let terms = terms(volume);
            *terms = json!([terms[0], any]);
        })
    })
}

fn a_volume_is_named_after_its_claim(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (_, claim) = rights.make_claim(&rights.claim("data", &rights.here))?;
        refused(rights, &claim, NAMED, |volume| volume["spec"]["claimRef"] = Value::Null)?;
        refused(rights, &claim, NAMED, |volume| volume["metadata"]["name"] = json!("pvc-another"))?;
        refused(rights, &claim, NAMED, |volume| volume["spec"]["csi"]["volumeHandle"] = json!("pvc-another"))?;
        refused(rights, &claim, NAMED, |volume| {
            volume["metadata"]["name"] = json!("pvc-another");
            volume["spec"]["csi"]["volumeHandle"] = json!("pvc-another");
        })
    })
}

fn a_new_volume_names_no_secret(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (_, claim) = rights.make_claim(&rights.claim("data", &rights.here))?;
        for reference in [
            "controllerPublishSecretRef", "controllerExpandSecretRef", "nodeStageSecretRef", "nodePublishSecretRef",
            "nodeExpandSecretRef",
        ] {
            refused(rights, &claim, SECRET, |volume| volume["spec"]["csi"][reference] = secret())?;
        }
        Ok(())
    })
}

fn secret() -> Value {
    json!({ "namespace": "kube-system", "name": "secret" })
}

fn a_new_volume_has_only_the_drivers_metadata(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (_, claim) = rights.make_claim(&rights.claim("data", &rights.here))?;
        for (label, value) in [
            (TOPOLOGY_KEY, rights.there.as_str()),
            ("topology.kubernetes.io/zone", "elsewhere"),
            ("node.k8s.io/instance", "large"),
        ] {
            refused(rights, &claim, LABEL, |volume| volume["metadata"]["labels"][label] = json!(value))?;
        }
        for (annotation, value) in [
            ("pv.kubernetes.io/migrated-to", "other.example.com"),
            ("pv.kubernetes.io/provisioned-by", "other.example.com"),
            ("volume.kubernetes.io/provisioner-deletion-secret-name", "secret"),
        ] {
            refused(rights, &claim, PLAIN, |volume| volume["metadata"]["annotations"][annotation] = json!(value))?;
        }
        refused(rights, &claim, PLAIN, |volume| {
            volume["metadata"]["finalizers"] = json!([FINALIZER, "example.com/mine"]);
        })?;
        refused(rights, &claim, PLAIN, |volume| volume["metadata"]["ownerReferences"] = owners(rights))?;
        // Webhooks in a cluster may add other labels and annotations.
        let mut volume = rights.volume(&claim, &rights.here);
        volume["metadata"]["labels"]["example.com/team"] = json!("red");
        volume["metadata"]["annotations"]["example.com/team"] = json!("red");
        rights.agent.create(VOLUMES, &volume).granted().map(drop)
    })
}

fn owners(rights: &Rights<'_>) -> Value {
    json!([{ "apiVersion": "v1", "kind": "Node", "name": rights.here, "uid": "0" }])
}

fn another_nodes_volume_is_left_alone(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (_, path) = rights.bound("data", &rights.there, &rights.other)?;
        for (stranger, message) in [(&rights.agent, OWN), (&rights.unbound, UNBOUND)] {
            stranger.patch(&path, Patch::Strategic, &larger()).refused_by(POLICY, message)?;
            stranger.patch(&path, Patch::Strategic, &without_finalizer()).refused_by(POLICY, message)?;
            stranger.delete(&path).refused_by(POLICY, message)?;
            stranger.delete(VOLUMES).refused_by_role()?;
        }
        Ok(())
    })
}

fn another_drivers_volume_is_left_alone(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let path = by_hand(rights, |volume| volume["spec"]["csi"]["driver"] = json!("other.example.com"))?;
        rights.agent.patch(&path, Patch::Strategic, &larger()).refused_by(POLICY, OWN)?;
        rights.agent.delete(&path).refused_by(POLICY, OWN)
    })
}

fn nothing_but_capacity_and_finalizer_is_changed(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (_, path) = rights.bound("data", &rights.here, &rights.agent)?;
        let labelled = json!({ "metadata": { "labels": { "colour": "red" } } });
        rights.administrator.patch(&path, Patch::Merge, &labelled).granted()?;
        for (change, message) in [
            (json!({ "spec": { "csi": { "controllerExpandSecretRef": secret() } } }), SPECIFICATION),
            (json!({ "spec": { "claimRef": { "name": "another" } } }), SPECIFICATION),
            (json!({ "spec": { "claimRef": null } }), SPECIFICATION),
            (json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } }), SPECIFICATION),
            (json!({ "spec": { "accessModes": ["ReadWriteMany"] } }), SPECIFICATION),
            (json!({ "spec": { "mountOptions": ["noexec"] } }), SPECIFICATION),
            (json!({ "spec": { "storageClassName": "another" } }), SPECIFICATION),
            (json!({ "metadata": { "labels": { "size": "large" } } }), METADATA),
            (json!({ "metadata": { "labels": { "colour": null } } }), METADATA),
            (json!({ "metadata": { "labels": { TOPOLOGY_KEY: rights.there } } }), METADATA),
            (
                json!({ "metadata": { "annotations": { "pv.kubernetes.io/provisioned-by": "other.example.com" } } }),
                METADATA,
            ),
            (
                json!({ "metadata": { "annotations": { "pv.kubernetes.io/migrated-to": "other.example.com" } } }),
                METADATA,
            ),
            (json!({ "metadata": { "ownerReferences": owners(rights) } }), METADATA),
            (json!({ "metadata": { "finalizers": [FINALIZER] } }), FINALIZERS),
            (
                json!({ "metadata": { "finalizers": [FINALIZER, "kubernetes.io/pv-protection", "example.com/mine"] } }),
                FINALIZERS,
            ),
        ] {
            rights.refuses(&path, &change, POLICY, message)?;
        }
        let status = json!({ "status": { "phase": "Available" } });
        rights.agent.patch(&format!("{path}/status"), Patch::Merge, &status).refused_by_role()?;
        let whole = rights.administrator.get(&path).granted()?;
        rights.agent.replace(&path, &whole).refused_by_role()
    })
}

fn static_volumes_are_not_taken(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let mut affinity = Value::Null;
        let path = by_hand(rights, |volume| affinity = volume["spec"]["nodeAffinity"].take())?;
        let taken = json!({ "spec": { "nodeAffinity": affinity } });
        rights.agent.patch(&path, Patch::Merge, &taken).refused_by(POLICY, OWN)
    })
}

fn a_volume_stays_where_it_is(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let mut affinity = Value::Null;
        let zone = json!({ "key": "failure-domain.beta.kubernetes.io/zone", "operator": "In", "values": ["z"] });
        let path = by_hand(rights, |volume| {
            let wanted = &mut terms(volume)[0]["matchExpressions"];
            *wanted = json!([wanted[0], zone]);
            affinity = volume["spec"]["nodeAffinity"].clone();
        })?;
        // The only change of an affinity that the API server allows.
        affinity["required"]["nodeSelectorTerms"][0]["matchExpressions"][1]["key"] =
            json!("topology.kubernetes.io/zone");
        let change = json!({ "spec": { "nodeAffinity": affinity } });
        rights.agent.patch(&path, Patch::Merge, &change).refused_by(POLICY, SPECIFICATION)?;
        rights.administrator.patch(&path, Patch::Merge, &change).granted()?;
        Ok(())
    })
}

/// Creates a volume on this node as an administrator would, changed by `edit`, and returns its path.
fn by_hand(rights: &Rights<'_>, edit: impl FnOnce(&mut Value)) -> Result<String> {
    let name = format!("{}-by-hand", rights.cluster.namespace);
    let mut object = volume(&name, "by-hand", &rights.class, "8Mi", &rights.here);
    edit(&mut object);
    let made = rights.administrator.create(VOLUMES, &object).granted()?;
    Ok(path_of(VOLUMES, &made))
}
