//! Groups of snapshots: an agent may say what has become of those of its own node, name their snapshots, and let them go once
//! their owner does; nothing else.

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::groups::{GROUP_BEING_CREATED, GROUP_CONTENTS, GROUP_FINALIZER, group_content};
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::snapshots::MANAGED_BY;
use serde_json::{Value, json};

use super::{Patch, Rights, UNBOUND, path_of, with_rights};

const POLICY: &str = "bulkhead-agent-groups";
// The messages of the policy's expressions.
const OF_DRIVER: &str = "an agent may modify only its own driver's groups of snapshots";
const OF_NODE: &str = "an agent may modify only its own node's groups of snapshots, or take one that no node has";
const SPECIFICATION: &str = "an agent may not change the specification or owners of a group of snapshots";
const LABEL: &str = "an agent may change no label of a group of snapshots except the node's";
const ANNOTATION: &str =
    "an agent may change no annotation of a group of snapshots except the one that says that it is being created";
const NAME: &str = "an agent may give a group of snapshots no other name than its specification";
const MEMBERS: &str = "an agent may name no snapshots of a group but those of its volumes";
const FINALIZERS: &str =
    "an agent may remove no finalizer of a group of snapshots except the one that awaits its deletion";

cases! {
    on Cluster;
    a_groups_whole_life_is_granted: Bare,
    a_group_that_no_node_has_is_taken: Bare,
    another_nodes_group_is_left_alone: Bare,
    another_drivers_group_is_left_alone: Bare,
    nothing_but_what_became_of_a_group_is_written: Bare,
    a_group_names_snapshots_of_its_volumes_and_no_others: Bare,
    groups_are_neither_made_nor_deleted: Bare,
    groups_are_labelled_in_the_same_write: Bare + Recent,
}

/// Runs a test with two nodes, and removes the groups that it has made.
fn with_groups(cluster: &mut Cluster, test: impl FnOnce(&Rights<'_>) -> Result<()>) -> Result<()> {
    with_rights(cluster, |rights| {
        let done = test(rights);
        let all = rights.administrator.get(GROUP_CONTENTS).granted()?;
        for content in all["items"].as_array().into_iter().flatten() {
            if content["spec"]["volumeGroupSnapshotRef"]["namespace"] == rights.cluster.namespace {
                let path = path_of(GROUP_CONTENTS, content);
                let _ = rights.administrator.delete(&path);
                let _ = rights.administrator.patch(&path, Patch::Merge, &json!({ "metadata": { "finalizers": null } }));
            }
        }
        done
    })
}

/// Creates the object of a group as a snapshot controller would, and returns its path.
fn make(rights: &Rights<'_>, name: &str, labels: Value) -> Result<String> {
    make_with(rights, name, |content| content["metadata"]["labels"] = labels)
}

fn make_with(rights: &Rights<'_>, name: &str, edit: impl FnOnce(&mut Value)) -> Result<String> {
    let mut content = group_content(&rights.cluster.namespace, name);
    edit(&mut content);
    Ok(path_of(GROUP_CONTENTS, &rights.administrator.create(GROUP_CONTENTS, &content).granted()?))
}

/// The status of a group of one volume whose snapshot has this id.
fn ready(rights: &Rights<'_>, volume: &str, snapshot: &str) -> Value {
    let volume = format!("pvc-{}-{volume}", rights.cluster.namespace);
    let listed = json!([{ "volumeHandle": volume, "snapshotHandle": snapshot, "readyToUse": true, "creationTime": 1 }]);
    json!({ "status": { "readyToUse": true, "volumeGroupSnapshotHandle": "groupsnapshot-1",
                        "creationTime": "2026-01-01T00:00:00Z", "volumeSnapshotInfoList": listed } })
}

fn annotate(value: Value) -> Value {
    json!({ "metadata": { "annotations": { GROUP_BEING_CREATED: value } } })
}

fn labels(node: &str) -> Value {
    json!({ "metadata": { "labels": { MANAGED_BY: node, TOPOLOGY_KEY: node } } })
}

fn a_groups_whole_life_is_granted(cluster: &mut Cluster) -> Result<()> {
    with_groups(cluster, |rights| {
        let path = make(rights, "evening", json!({ TOPOLOGY_KEY: "" }))?;
        let (agent, status) = (&rights.agent, format!("{path}/status"));
        agent.get(GROUP_CONTENTS).granted()?;
        agent.get(&path).granted()?;
        agent.patch(&path, Patch::Merge, &labels(&rights.here)).granted()?;
        agent.patch(&path, Patch::Merge, &annotate(json!("yes"))).granted()?;
        let failed = json!({ "status": { "readyToUse": false, "error": { "message": "no room" } } });
        agent.patch(&status, Patch::Merge, &failed).granted()?;
        agent.patch(&status, Patch::Merge, &ready(rights, "data", "groupsnapshot-1.of-0")).granted()?;
        agent.patch(&path, Patch::Merge, &annotate(Value::Null)).granted()?;
        rights.administrator.delete(&path).granted()?;
        let empty = json!({ "status": { "volumeGroupSnapshotHandle": null, "readyToUse": null } });
        agent.patch(&status, Patch::Merge, &empty).granted()?;
        agent.patch(&path, Patch::Merge, &json!({ "metadata": { "finalizers": [] } })).granted()?;
        ensure!(rights.administrator.get(&path).object().is_none(), "it is still there");
        Ok(())
    })
}

fn a_group_that_no_node_has_is_taken(cluster: &mut Cluster) -> Result<()> {
    with_groups(cluster, |rights| {
        for (name, unowned) in [("none", Value::Null), ("empty", json!({ TOPOLOGY_KEY: "" }))] {
            let path = make(rights, name, unowned)?;
            // Nothing else with it, or before it, or in another's name.
            rights.agent.patch(&path, Patch::Merge, &annotate(json!("yes"))).refused_by(POLICY, OF_NODE)?;
            let (status, taken) = (format!("{path}/status"), ready(rights, "data", "groupsnapshot-1.of-0"));
            rights.agent.patch(&status, Patch::Merge, &taken).refused_by(POLICY, OF_NODE)?;
            rights.agent.patch(&path, Patch::Merge, &labels(&rights.there)).refused_by(POLICY, OF_NODE)?;
            rights.unbound.patch(&path, Patch::Merge, &labels("")).refused_by(POLICY, UNBOUND)?;
            // That no node has it, any node may say.
            let failed = json!({ "status": { "readyToUse": false, "error": { "message": "no node has it" } } });
            rights.agent.patch(&status, Patch::Merge, &failed).granted()?;
            rights.other.patch(&status, Patch::Merge, &failed).granted()?;
            rights.unbound.patch(&status, Patch::Merge, &failed).refused_by(POLICY, UNBOUND)?;
            let mut listed = taken.clone();
            listed["status"]["readyToUse"] = json!(false);
            listed["status"]["volumeGroupSnapshotHandle"] = Value::Null;
            rights.agent.patch(&status, Patch::Merge, &listed).refused_by(POLICY, OF_NODE)?;
            rights.agent.patch(&path, Patch::Merge, &labels(&rights.here)).granted()?;
            rights.other.patch(&path, Patch::Merge, &labels(&rights.there)).refused_by(POLICY, OF_NODE)?;
            rights.agent.patch(&path, Patch::Merge, &labels(&rights.there)).refused_by(POLICY, OF_NODE)?;
            rights.agent.patch(&status, Patch::Merge, &taken).granted()?;
        }
        Ok(())
    })
}

fn another_nodes_group_is_left_alone(cluster: &mut Cluster) -> Result<()> {
    with_groups(cluster, |rights| {
        let path = make(rights, "theirs", json!({ MANAGED_BY: rights.there, TOPOLOGY_KEY: rights.there }))?;
        let (status, taken) = (format!("{path}/status"), ready(rights, "data", "groupsnapshot-1.of-0"));
        for (stranger, message) in [(&rights.agent, OF_NODE), (&rights.unbound, UNBOUND)] {
            stranger.patch(&path, Patch::Merge, &annotate(json!("yes"))).refused_by(POLICY, message)?;
            stranger.patch(&path, Patch::Merge, &labels(&rights.here)).refused_by(POLICY, message)?;
            stranger.patch(&status, Patch::Merge, &taken).refused_by(POLICY, message)?;
        }
        rights.administrator.delete(&path).granted()?;
        let free = json!({ "metadata": { "finalizers": [] } });
        rights.agent.patch(&path, Patch::Merge, &free).refused_by(POLICY, OF_NODE)?;
        rights.other.patch(&path, Patch::Merge, &free).granted().map(drop)
    })
}

fn another_drivers_group_is_left_alone(cluster: &mut Cluster) -> Result<()> {
    with_groups(cluster, |rights| {
        let path = make_with(rights, "foreign", |content| {
            content["spec"]["driver"] = json!("other.example.com");
            content["metadata"]["labels"] = json!({ MANAGED_BY: rights.here });
        })?;
        let made = rights.administrator.get(&path).granted()?;
        ensure!(made["metadata"]["labels"][TOPOLOGY_KEY].is_null(), "it is labelled: {}", made["metadata"]["labels"]);
        rights.agent.patch(&path, Patch::Merge, &annotate(json!("yes"))).refused_by(POLICY, OF_DRIVER)?;
        let taken = ready(rights, "data", "groupsnapshot-1.of-0");
        rights.agent.patch(&format!("{path}/status"), Patch::Merge, &taken).refused_by(POLICY, OF_DRIVER)
    })
}

fn nothing_but_what_became_of_a_group_is_written(cluster: &mut Cluster) -> Result<()> {
    with_groups(cluster, |rights| {
        let path = make_with(rights, "evening", |content| {
            content["metadata"]["labels"] = json!({ MANAGED_BY: rights.here, "colour": "red" });
            content["metadata"]["annotations"] = json!({ "colour": "red" });
            content["metadata"]["finalizers"] = json!([GROUP_FINALIZER, "example.com/mine"]);
        })?;
        let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": rights.here, "uid": "0" });
        let released = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";
        for (change, message) in [
            (json!({ "spec": { "deletionPolicy": "Retain" } }), SPECIFICATION),
            (json!({ "metadata": { "ownerReferences": [owner] } }), SPECIFICATION),
            (json!({ "metadata": { "labels": { "colour": "blue" } } }), LABEL),
            (json!({ "metadata": { "labels": { "colour": null } } }), LABEL),
            (json!({ "metadata": { "labels": { MANAGED_BY: rights.there } } }), OF_NODE),
            (json!({ "metadata": { "annotations": { "colour": null } } }), ANNOTATION),
            (annotate(json!("no")), ANNOTATION),
            (json!({ "metadata": { "annotations": { released: "yes" } } }), ANNOTATION),
            // It is not being deleted.
            (json!({ "metadata": { "finalizers": ["example.com/mine"] } }), FINALIZERS),
        ] {
            rights.agent.patch(&path, Patch::Merge, &change).refused_by(POLICY, message)?;
        }
        rights.administrator.delete(&path).granted()?;
        for rest in [json!([]), json!([GROUP_FINALIZER])] {
            let change = json!({ "metadata": { "finalizers": rest } });
            rights.agent.patch(&path, Patch::Merge, &change).refused_by(POLICY, FINALIZERS)?;
        }
        let own = json!({ "metadata": { "finalizers": ["example.com/mine"] } });
        rights.agent.patch(&path, Patch::Merge, &own).granted().map(drop)
    })
}

fn a_group_names_snapshots_of_its_volumes_and_no_others(cluster: &mut Cluster) -> Result<()> {
    with_groups(cluster, |rights| {
        let path = make(rights, "evening", json!({ MANAGED_BY: rights.here }))?;
        let status = format!("{path}/status");
        for (taken, message) in [
            (json!({ "status": { "volumeGroupSnapshotHandle": "groupsnapshot-2" } }), NAME),
            (ready(rights, "data", "groupsnapshot-2.of-0"), MEMBERS),
            (ready(rights, "data", "snapshot-1"), MEMBERS),
            // Another claim's.
            (ready(rights, "other", "groupsnapshot-1.of-0"), MEMBERS),
        ] {
            rights.agent.patch(&status, Patch::Merge, &taken).refused_by(POLICY, message)?;
        }
        rights.agent.patch(&status, Patch::Merge, &ready(rights, "data", "groupsnapshot-1.of-0")).granted()?;
        // One that exists already lists none: its snapshots have objects of their own.
        let named = make_with(rights, "named", |content| {
            let handles = json!({ "volumeGroupSnapshotHandle": "kept", "volumeSnapshotHandles": ["kept.of-0"] });
            content["spec"]["source"] = json!({ "groupSnapshotHandles": handles });
            content["metadata"]["labels"] = json!({ MANAGED_BY: rights.here });
        })?;
        let status = format!("{named}/status");
        let listed = ready(rights, "data", "groupsnapshot-1.of-0");
        rights.agent.patch(&status, Patch::Merge, &listed).refused_by(POLICY, NAME)?;
        let mut listed = ready(rights, "data", "kept.of-0");
        listed["status"]["volumeGroupSnapshotHandle"] = json!("kept");
        rights.agent.patch(&status, Patch::Merge, &listed).refused_by(POLICY, MEMBERS)?;
        listed["status"]["volumeSnapshotInfoList"] = Value::Null;
        rights.agent.patch(&status, Patch::Merge, &listed).granted().map(drop)
    })
}

fn groups_are_neither_made_nor_deleted(cluster: &mut Cluster) -> Result<()> {
    with_groups(cluster, |rights| {
        let path = make(rights, "evening", json!({ MANAGED_BY: rights.here }))?;
        let whole = rights.administrator.get(&path).granted()?;
        rights.agent.delete(&path).refused_by_role()?;
        rights.agent.delete(GROUP_CONTENTS).refused_by_role()?;
        rights.agent.replace(&path, &whole).refused_by_role()?;
        rights.agent.replace(&format!("{path}/status"), &whole).refused_by_role()?;
        let other = group_content(&rights.cluster.namespace, "other");
        rights.agent.create(GROUP_CONTENTS, &other).refused_by_role()?;
        rights.agent.patch(&path_of(GROUP_CONTENTS, &other), Patch::Apply, &other).refused_by_role()?;
        rights.agent.get(&rights.cluster.groups()).refused_by_role()?;
        let group = format!("{}/evening", rights.cluster.groups());
        rights.agent.patch(&group, Patch::Merge, &json!({})).refused_by_role()?;
        rights.agent.get("/apis/groupsnapshot.storage.k8s.io/v1/volumegroupsnapshotclasses").refused_by_role()
    })
}

fn groups_are_labelled_in_the_same_write(cluster: &mut Cluster) -> Result<()> {
    with_groups(cluster, |rights| {
        let free = make(rights, "free", Value::Null)?;
        let made = rights.administrator.get(&free).granted()?;
        ensure!(made["metadata"]["labels"][TOPOLOGY_KEY] == "", "one without a node is not labelled");
        let taken = rights.agent.patch(&free, Patch::Merge, &labels(&rights.here)).granted()?;
        ensure!(taken["metadata"]["labels"][TOPOLOGY_KEY] == rights.here, "{}", taken["metadata"]["labels"]);
        Ok(())
    })
}
