//! Claims: an agent takes them, gives them back and finishes their growth, and leaves everything else as it is.

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::SELECTED_NODE;
use bulkhead_tests::kubelet::DRIVER;
use serde_json::{Value, json};

use super::{EXPANSION_NOT_REQUIRED, OLD_PROVISIONER, PROVISIONER, Patch, Rights, with_rights};

const POLICY: &str = "bulkhead-agent-claims";

cases! {
    on Cluster;
    claims_are_taken_and_given_back: Bare,
    another_nodes_claim_is_left_alone: Bare,
    another_drivers_claim_is_left_alone: Bare,
    nothing_but_the_node_is_changed: Bare,
    a_growth_is_finished: Bare,
    another_nodes_growth_is_left_alone: Bare,
    claims_are_labelled_in_the_same_write: Bare,
    no_label_ever_fails_a_write: Bare,
}

fn select(node: impl Into<Value>) -> Value {
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
        // The annotation as older releases have it.
        let renamed = json!({ "metadata": { "annotations": { PROVISIONER: null, OLD_PROVISIONER: DRIVER } } });
        rights.administrator.patch(&path, Patch::Merge, &renamed).granted()?;
        round()
    })
}

fn another_nodes_claim_is_left_alone(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (open, _) = rights.make_claim(&rights.open_claim("open"))?;
        let (theirs, _) = rights.make_claim(&rights.claim("theirs", &rights.there))?;
        let (own, _) = rights.make_claim(&rights.claim("own", &rights.here))?;
        let label = json!({ "metadata": { "labels": { TOPOLOGY_KEY: rights.here } } });
        // Taken for somebody else, by way of the status, or by a token that says no node.
        rights.agent.patch(&open, Patch::Merge, &select(rights.there.as_str())).refused_by(POLICY)?;
        rights.agent.patch(&open, Patch::Merge, &select("")).refused_by(POLICY)?;
        rights.agent.patch(&open, Patch::Merge, &label).refused_by(POLICY)?;
        rights
            .agent
            .patch(&format!("{open}/status"), Patch::Merge, &select(rights.here.as_str()))
            .refused_by(POLICY)?;
        rights.unbound.patch(&open, Patch::Merge, &select(rights.here.as_str())).refused_by(POLICY)?;
        rights.unbound.patch(&open, Patch::Merge, &select("")).refused_by(POLICY)?;
        // Taken away, given away, and given back for somebody else.
        rights.agent.patch(&theirs, Patch::Merge, &select(rights.here.as_str())).refused_by(POLICY)?;
        rights.agent.patch(&own, Patch::Merge, &select(rights.there.as_str())).refused_by(POLICY)?;
        rights.agent.patch(&theirs, Patch::Merge, &select(Value::Null)).refused_by(POLICY)?;
        rights.agent.patch(&theirs, Patch::Merge, &label).refused_by(POLICY)
    })
}

fn another_drivers_claim_is_left_alone(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let mut claim = rights.claim("data", &rights.here);
        claim["spec"]["storageClassName"] = json!("");
        claim["metadata"]["annotations"][PROVISIONER] = json!("other.example.com");
        // The newer name counts.
        claim["metadata"]["annotations"][OLD_PROVISIONER] = json!(DRIVER);
        let (path, made) = rights.make_claim(&claim)?;
        ensure!(made["metadata"]["labels"].is_null(), "it has labels: {}", made["metadata"]["labels"]);
        rights.agent.patch(&path, Patch::Merge, &select(Value::Null)).refused_by(POLICY)
    })
}

fn nothing_but_the_node_is_changed(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (path, whole) = rights.make_claim(&rights.claim("data", &rights.here))?;
        for change in [
            json!({ "metadata": { "labels": { "colour": "red" } } }),
            json!({ "metadata": { "annotations": { "colour": "red" } } }),
            json!({ "metadata": { "annotations": { PROVISIONER: null } } }),
            json!({ "metadata": { "finalizers": ["example.com/mine"] } }),
            json!({ "metadata": { "finalizers": null } }),
            json!({ "metadata": { "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "name": rights.here, "uid": "0",
            }] } }),
            json!({ "spec": { "volumeName": "another" } }),
        ] {
            rights.agent.patch(&path, Patch::Merge, &change).refused_by(POLICY)?;
        }
        rights.agent.delete(&path).refused_by_role()?;
        rights.agent.replace(&path, &whole).refused_by_role()?;
        rights.agent.create(&rights.claims(), &rights.open_claim("another")).refused_by_role()?;
        let (bound, _) = rights.bound("bound", &rights.here, &rights.agent)?;
        let larger = json!({ "spec": { "resources": { "requests": { "storage": "16Mi" } } } });
        rights.agent.patch(&bound, Patch::Merge, &larger).refused_by(POLICY)?;
        // A bound claim stays where its volume is.
        rights.agent.patch(&bound, Patch::Merge, &select(Value::Null)).refused_by(POLICY)
    })
}

/// Makes a bound claim that wants to grow, and gives the path of its status.
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
        for stranger in [&rights.other, &rights.unbound] {
            stranger.patch(&status, Patch::Strategic, &begun()).refused_by(POLICY)?;
            stranger.patch(&status, Patch::Strategic, &done()).refused_by(POLICY)?;
        }
        for change in [
            json!({ "status": { "phase": "Lost" } }),
            json!({ "status": { "accessModes": ["ReadWriteMany"] } }),
            json!({ "metadata": { "labels": { "colour": "red" } } }),
            json!({ "metadata": { "labels": { TOPOLOGY_KEY: rights.there } } }),
            json!({ "metadata": { "annotations": { "colour": "red" } } }),
            select(Value::Null),
            select(rights.there.as_str()),
        ] {
            rights.agent.patch(&status, Patch::Merge, &change).refused_by(POLICY)?;
        }
        Ok(())
    })
}

fn label(claim: &Value) -> &Value {
    &claim["metadata"]["labels"][TOPOLOGY_KEY]
}

fn claims_are_labelled_in_the_same_write(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let mut claim = rights.open_claim("data");
        claim["metadata"]["labels"] = json!({ "colour": "red" });
        let (path, made) = rights.make_claim(&claim)?;
        ensure!(*label(&made) == "", "a claim that nobody has is labelled {}", label(&made));
        ensure!(made["metadata"]["labels"]["colour"] == "red", "its own label is gone");
        let taken = rights.administrator.patch(&path, Patch::Merge, &select(rights.here.as_str())).granted()?;
        ensure!(*label(&taken) == rights.here, "a claim of a node is labelled {}", label(&taken));
        let back = rights.agent.patch(&path, Patch::Merge, &select(Value::Null)).granted()?;
        ensure!(*label(&back) == "", "a claim given back is labelled {}", label(&back));
        // Whoever writes another label gets the right one.
        let wrong = json!({ "metadata": { "labels": { TOPOLOGY_KEY: rights.there } } });
        let mended = rights.administrator.patch(&path, Patch::Merge, &wrong).granted()?;
        ensure!(*label(&mended) == "", "a wrong label stays: {}", label(&mended));
        Ok(())
    })
}

fn no_label_ever_fails_a_write(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (path, _) = rights.make_claim(&rights.open_claim("data"))?;
        for node in ["n".repeat(64), "n".repeat(253), "no name of a node!".to_owned(), "-n".to_owned()] {
            let written = rights.administrator.patch(&path, Patch::Merge, &select(node.as_str())).granted()?;
            ensure!(written["metadata"]["annotations"][SELECTED_NODE] == node, "it is not written");
        }
        let longest = rights.administrator.patch(&path, Patch::Merge, &select("n".repeat(63))).granted()?;
        ensure!(*label(&longest) == "n".repeat(63), "63 bytes are labelled {}", label(&longest));
        Ok(())
    })
}
