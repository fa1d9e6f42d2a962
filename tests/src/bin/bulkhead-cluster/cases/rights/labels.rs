//! Labels: claims and volumes get their node's label in the same write, no matter who writes.

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::SELECTED_NODE;
use bulkhead_tests::kubelet::DRIVER;
use serde_json::{Value, json};

use super::claims::select;
use super::{Patch, VOLUMES, with_rights};

cases! {
    on Cluster;
    claims_are_labelled_in_the_same_write: Bare + Recent,
    bound_claims_without_a_node_get_no_label: Bare + Recent,
    the_label_never_makes_a_write_fail: Bare + Recent,
    volumes_get_their_nodes_label: Bare + Recent,
}

fn label(claim: &Value) -> &Value {
    &claim["metadata"]["labels"][TOPOLOGY_KEY]
}

fn claims_are_labelled_in_the_same_write(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let mut claim = rights.open_claim("data");
        claim["metadata"]["labels"] = json!({ "colour": "red" });
        let (path, made) = rights.make_claim(&claim)?;
        ensure!(*label(&made) == "", "a claim without a node is labelled {}", label(&made));
        ensure!(made["metadata"]["labels"]["colour"] == "red", "its own label was removed");
        let taken = rights.administrator.patch(&path, Patch::Merge, &select(rights.here.as_str())).granted()?;
        ensure!(*label(&taken) == rights.here, "a claim of a node is labelled {}", label(&taken));
        let back = rights.agent.patch(&path, Patch::Merge, &select(Value::Null)).granted()?;
        ensure!(*label(&back) == "", "a claim given back is labelled {}", label(&back));
        // A wrong label is replaced by the right one.
        let wrong = json!({ "metadata": { "labels": { TOPOLOGY_KEY: rights.there } } });
        let mended = rights.administrator.patch(&path, Patch::Merge, &wrong).granted()?;
        ensure!(*label(&mended) == "", "a wrong label stays: {}", label(&mended));
        Ok(())
    })
}

fn bound_claims_without_a_node_get_no_label(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let mut claim = rights.open_claim("data");
        claim["spec"]["volumeName"] = json!("by-hand");
        let (path, made) = rights.make_claim(&claim)?;
        ensure!(label(&made).is_null(), "it is made with the label {}", label(&made));
        let change = json!({ "metadata": { "labels": { "colour": "red" } } });
        let changed = rights.administrator.patch(&path, Patch::Merge, &change).granted()?;
        ensure!(label(&changed).is_null(), "an update gives it the label {}", label(&changed));
        Ok(())
    })
}

fn the_label_never_makes_a_write_fail(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (path, _) = rights.make_claim(&rights.open_claim("data"))?;
        for node in ["n".repeat(64), "n".repeat(253), "no name of a node!".to_owned(), "-n".to_owned()] {
            let written = rights.administrator.patch(&path, Patch::Merge, &select(node.as_str())).granted()?;
            ensure!(written["metadata"]["annotations"][SELECTED_NODE] == node, "the annotation was not written");
        }
        let longest = rights.administrator.patch(&path, Patch::Merge, &select("n".repeat(63))).granted()?;
        ensure!(*label(&longest) == "n".repeat(63), "63 bytes are labelled {}", label(&longest));
        Ok(())
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
        volume["spec"]["csi"]["driver"] = json!(DRIVER);
        let wanted = &mut volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
        wanted["values"] = json!([rights.here, rights.there]);
        let labels = labelled(&volume)?;
        // So that what another driver's volume looks like is none of ours.
        ensure!(labels == json!({ "colour": "red", TOPOLOGY_KEY: "" }), "a volume of two nodes has {labels}");
        Ok(())
    })
}
