//! Claims: an agent may take them, give them back and finish their expansion, and nothing else.

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{PROVISIONER, SELECTED_NODE};
use bulkhead_tests::kubelet::DRIVER;
use serde_json::{Value, json};

use super::{EXPANSION_NOT_REQUIRED, OLD_PROVISIONER, Patch, Rights, UNBOUND, path_of, with_rights};

pub const POLICY: &str = "bulkhead-agent-claims";
// The messages of the policy's expressions.
pub const OF_DRIVER: &str = "an agent may modify only its own driver's claims";
pub const SELECTED: &str =
    "an agent may modify only claims for which its own node is selected, or take one for which no node is selected";
const SPECIFICATION: &str = "an agent may not change a claim's specification, finalizers or owners";
const STATUS: &str = "an agent may change a claim's status only to report a resize or a modification";
const ATTRIBUTES: &str = "an agent may report no attributes of a claim's volume except those that the claim asks for";
const ANNOTATION: &str =
    "an agent may change no annotation of a claim except selected-node and node-expansion-not-required";
pub const LABEL: &str = "an agent may change no label of a claim except the node's";

cases! {
    on Cluster;
    claims_are_taken_and_given_back: Bare,
    another_nodes_claim_is_left_alone: Bare,
    another_drivers_claim_is_left_alone: Bare,
    nothing_but_the_node_is_changed: Bare,
    no_claims_are_made: Bare,
    a_growth_is_finished: Bare,
    another_nodes_growth_is_left_alone: Bare,
    nothing_but_the_growth_is_written_to_the_status: Bare,
    a_claim_that_others_have_bound_is_served_by_the_node_of_its_volume: Bare,
}

/// Selects a node, or none.
pub fn select(node: impl Into<Value>) -> Value {
    json!({ "metadata": { "annotations": { SELECTED_NODE: node.into() } } })
}

fn claims_are_taken_and_given_back(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (path, _) = rights.make_claim(&rights.open_claim("data"))?;
        let round = || -> Result<()> {
            rights.agent.patch(&path, Patch::Merge, &select(rights.here.as_str())).granted()?;
            let label = json!({ "metadata": { "labels": { TOPOLOGY_KEY: rights.here } } });
            rights.agent.patch(&path, Patch::Merge, &label).granted()?;
            rights.agent.patch(&path, Patch::Merge, &select(Value::Null)).granted()?;
            Ok(())
        };
        round()?;
        // The annotation as older releases write it.
        let renamed = json!({ "metadata": { "annotations": { PROVISIONER: null, OLD_PROVISIONER: DRIVER } } });
        rights.administrator.patch(&path, Patch::Merge, &renamed).granted()?;
        round()?;
        // An empty name selects no node.
        rights.administrator.patch(&path, Patch::Merge, &select("")).granted()?;
        round()
    })
}

fn another_nodes_claim_is_left_alone(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (open, _) = rights.make_claim(&rights.open_claim("open"))?;
        let (theirs, _) = rights.make_claim(&rights.claim("theirs", &rights.there))?;
        let (own, _) = rights.make_claim(&rights.claim("own", &rights.here))?;
        let label = json!({ "metadata": { "labels": { TOPOLOGY_KEY: rights.here } } });
        // Taken for another node, through the status, or with a token that is not bound to a node.
        rights.agent.patch(&open, Patch::Merge, &select(rights.there.as_str())).refused_by(POLICY, SELECTED)?;
        rights.agent.patch(&open, Patch::Merge, &select("")).refused_by(POLICY, SELECTED)?;
        rights.agent.patch(&open, Patch::Merge, &label).refused_by(POLICY, SELECTED)?;
        rights
            .agent
            .patch(&format!("{open}/status"), Patch::Merge, &select(rights.here.as_str()))
            .refused_by(POLICY, SELECTED)?;
        rights.unbound.patch(&open, Patch::Merge, &select(rights.here.as_str())).refused_by(POLICY, UNBOUND)?;
        rights.unbound.patch(&open, Patch::Merge, &select("")).refused_by(POLICY, UNBOUND)?;
        // Taken from another node, given to another node, given back in its name, and given back with an empty name.
        rights.agent.patch(&theirs, Patch::Merge, &select(rights.here.as_str())).refused_by(POLICY, SELECTED)?;
        rights.agent.patch(&own, Patch::Merge, &select(rights.there.as_str())).refused_by(POLICY, SELECTED)?;
        rights.agent.patch(&own, Patch::Merge, &select("")).refused_by(POLICY, SELECTED)?;
        rights.agent.patch(&theirs, Patch::Merge, &select(Value::Null)).refused_by(POLICY, SELECTED)?;
        rights.agent.patch(&theirs, Patch::Merge, &label).refused_by(POLICY, SELECTED)
    })
}

fn another_drivers_claim_is_left_alone(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let mut claim = rights.claim("data", &rights.here);
        claim["spec"]["storageClassName"] = json!("");
        claim["metadata"]["annotations"][PROVISIONER] = json!("other.example.com");
        // The newer of the two annotations counts.
        claim["metadata"]["annotations"][OLD_PROVISIONER] = json!(DRIVER);
        let (path, made) = rights.make_claim(&claim)?;
        ensure!(made["metadata"]["labels"].is_null(), "it has labels: {}", made["metadata"]["labels"]);
        rights.agent.patch(&path, Patch::Merge, &select(Value::Null)).refused_by(POLICY, OF_DRIVER)
    })
}

fn nothing_but_the_node_is_changed(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let mut claim = rights.claim("data", &rights.here);
        claim["metadata"]["labels"] = json!({ "colour": "red" });
        let (path, whole) = rights.make_claim(&claim)?;
        let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": rights.here, "uid": "0" });
        for (change, message) in [
            (json!({ "metadata": { "labels": { "size": "large" } } }), LABEL),
            (json!({ "metadata": { "labels": { "colour": "blue" } } }), LABEL),
            (json!({ "metadata": { "labels": { "colour": null } } }), LABEL),
            (json!({ "metadata": { "annotations": { "colour": "red" } } }), ANNOTATION),
            (json!({ "metadata": { "annotations": { PROVISIONER: null } } }), ANNOTATION),
            (json!({ "metadata": { "finalizers": ["example.com/mine"] } }), SPECIFICATION),
            (json!({ "metadata": { "finalizers": null } }), SPECIFICATION),
            (json!({ "metadata": { "ownerReferences": [owner] } }), SPECIFICATION),
            (json!({ "spec": { "volumeName": "another" } }), SPECIFICATION),
        ] {
            rights.agent.patch(&path, Patch::Merge, &change).refused_by(POLICY, message)?;
        }
        let (bound, _) = rights.bound("bound", &rights.here, &rights.agent)?;
        let larger = json!({ "spec": { "resources": { "requests": { "storage": "16Mi" } } } });
        rights.agent.patch(&bound, Patch::Merge, &larger).refused_by(POLICY, SPECIFICATION)?;
        // A bound claim stays where its volume is.
        rights.agent.patch(&bound, Patch::Merge, &select(Value::Null)).refused_by(POLICY, SELECTED)?;
        rights.agent.delete(&path).refused_by_role()?;
        rights.agent.replace(&path, &whole).refused_by_role()?;
        rights.agent.replace(&format!("{path}/status"), &whole).refused_by_role()
    })
}

fn no_claims_are_made(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let mut claim = rights.open_claim("data");
        rights.agent.create(&rights.claims(), &claim).refused_by_role()?;
        // A patch like this one creates an object that does not exist.
        claim["apiVersion"] = json!("v1");
        claim["kind"] = json!("PersistentVolumeClaim");
        rights.agent.patch(&path_of(&rights.claims(), &claim), Patch::Apply, &claim).refused_by_role()
    })
}

/// Creates a bound claim that asks for more space, and returns the path of its status.
fn growing(rights: &Rights<'_>) -> Result<String> {
    let (claim, _) = rights.bound("data", &rights.here, &rights.agent)?;
    let larger = json!({ "spec": { "resources": { "requests": { "storage": "16Mi" } } } });
    rights.administrator.patch(&claim, Patch::Merge, &larger).granted()?;
    Ok(format!("{claim}/status"))
}

fn begun() -> Value {
    json!({
        "metadata": { "annotations": { EXPANSION_NOT_REQUIRED: null } },
        "status": {
            "allocatedResources": { "storage": "16Mi" },
            "allocatedResourceStatuses": { "storage": "ControllerResizeInProgress" },
            "conditions": [{ "type": "Resizing", "status": "True" }],
        },
    })
}

fn done() -> Value {
    json!({
        "metadata": { "annotations": { EXPANSION_NOT_REQUIRED: "true" } },
        "status": { "capacity": { "storage": "16Mi" }, "allocatedResourceStatuses": null, "conditions": null },
    })
}

fn a_growth_is_finished(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let status = growing(rights)?;
        rights.agent.patch(&status, Patch::Strategic, &begun()).granted()?;
        let claim = rights.agent.patch(&status, Patch::Strategic, &done()).granted()?;
        ensure!(claim["status"]["capacity"]["storage"] == "16Mi", "its status is {}", claim["status"]);
        Ok(())
    })
}

fn another_nodes_growth_is_left_alone(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let status = growing(rights)?;
        for (stranger, message) in [(&rights.other, SELECTED), (&rights.unbound, UNBOUND)] {
            stranger.patch(&status, Patch::Strategic, &begun()).refused_by(POLICY, message)?;
            stranger.patch(&status, Patch::Strategic, &done()).refused_by(POLICY, message)?;
        }
        Ok(())
    })
}

fn nothing_but_the_growth_is_written_to_the_status(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let status = growing(rights)?;
        for (change, message) in [
            (json!({ "status": { "phase": "Lost" } }), STATUS),
            (json!({ "status": { "accessModes": ["ReadWriteMany"] } }), STATUS),
            (json!({ "status": { "currentVolumeAttributesClassName": "gold" } }), ATTRIBUTES),
            (json!({ "metadata": { "labels": { "colour": "red" } } }), LABEL),
            (json!({ "metadata": { "labels": { TOPOLOGY_KEY: rights.there } } }), LABEL),
            (json!({ "metadata": { "labels": { TOPOLOGY_KEY: null } } }), LABEL),
            (json!({ "metadata": { "annotations": { "colour": "red" } } }), ANNOTATION),
            (json!({ "metadata": { "finalizers": null } }), SPECIFICATION),
            (select(Value::Null), SELECTED),
            (select(rights.there.as_str()), SELECTED),
        ] {
            rights.refuses(&status, &change, POLICY, message)?;
        }
        Ok(())
    })
}

fn a_claim_that_others_have_bound_is_served_by_the_node_of_its_volume(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let label = |node: &str| json!({ "metadata": { "labels": { TOPOLOGY_KEY: node } } });
        let bound_to = |name: &str, volume: &str| {
            let mut claim = rights.open_claim(name);
            claim["metadata"]["annotations"] = json!({});
            claim["spec"]["volumeName"] = json!(volume);
            rights.make_claim(&claim)
        };
        let made_by_agent = |node: &str| format!("pvc-0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a111.{node}");
        let (path, _) = bound_to("data", &made_by_agent(&rights.here))?;
        for (stranger, message) in [(&rights.other, OF_DRIVER), (&rights.unbound, UNBOUND)] {
            stranger.patch(&path, Patch::Merge, &label(&rights.here)).refused_by(POLICY, message)?;
        }
        rights.agent.patch(&path, Patch::Merge, &label(&rights.there)).refused_by(POLICY, LABEL)?;
        rights.agent.patch(&path, Patch::Merge, &select(rights.here.as_str())).refused_by(POLICY, SELECTED)?;
        rights.agent.patch(&path, Patch::Merge, &label(&rights.here)).granted()?;
        // The second is of a node whose name ends with this one's.
        for (name, volume) in
            [("foreign", "by-hand".to_owned()), ("theirs", made_by_agent(&format!("a.{}", rights.here)))]
        {
            let (path, _) = bound_to(name, &volume)?;
            rights.agent.patch(&path, Patch::Merge, &label(&rights.here)).refused_by(POLICY, OF_DRIVER)?;
        }
        Ok(())
    })
}
