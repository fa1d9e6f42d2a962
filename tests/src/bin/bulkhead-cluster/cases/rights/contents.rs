//! Snapshots: an agent may say what has become of those of its own node, and let them go once their owner does; nothing
//! else.

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::snapshots::{BEING_CREATED, CONTENTS, FINALIZER, MANAGED_BY, content};
use serde_json::{Value, json};

use super::{Patch, Rights, UNBOUND, path_of, with_rights};

const POLICY: &str = "bulkhead-agent-contents";
// The messages of the policy's expressions.
const OF_DRIVER: &str = "an agent may modify only its own driver's snapshots";
const OF_NODE: &str = "an agent may modify only its own node's snapshots, or take one that no node has";
const SPECIFICATION: &str = "an agent may not change a snapshot's specification or owners";
const LABEL: &str = "an agent may change no label of a snapshot except the node's";
const ANNOTATION: &str =
    "an agent may change no annotation of a snapshot except the one that says that it is being created";
const NAME: &str = "an agent may give a snapshot no other name than its specification";
const FINALIZERS: &str = "an agent may remove no finalizer of a snapshot except the one that awaits its deletion";

cases! {
    on Cluster;
    a_snapshots_whole_life_is_granted: Bare,
    a_snapshot_that_no_node_has_is_taken: Bare,
    another_nodes_snapshot_is_left_alone: Bare,
    another_drivers_snapshot_is_left_alone: Bare,
    nothing_but_what_became_of_it_is_written: Bare,
    a_snapshot_has_the_name_that_its_specification_gives_it: Bare,
    snapshots_are_neither_made_nor_deleted: Bare,
    snapshots_are_labelled_in_the_same_write: Bare + Recent,
}

/// Runs a test with two nodes, and removes the snapshots that it has made.
fn with_contents(cluster: &mut Cluster, test: impl FnOnce(&Rights<'_>) -> Result<()>) -> Result<()> {
    with_rights(cluster, |rights| {
        let done = test(rights);
        let all = rights.administrator.get(CONTENTS).granted()?;
        for content in all["items"].as_array().into_iter().flatten() {
            if content["spec"]["volumeSnapshotRef"]["namespace"] == rights.cluster.namespace {
                let path = path_of(CONTENTS, content);
                let _ = rights.administrator.delete(&path);
                let _ = rights.administrator.patch(&path, Patch::Merge, &json!({ "metadata": { "finalizers": null } }));
            }
        }
        done
    })
}

/// Creates the object of a snapshot as a snapshot controller would, and returns its path.
fn make(rights: &Rights<'_>, name: &str, labels: Value) -> Result<String> {
    make_with(rights, name, |content| content["metadata"]["labels"] = labels)
}

fn make_with(rights: &Rights<'_>, name: &str, edit: impl FnOnce(&mut Value)) -> Result<String> {
    let mut content = content(&rights.cluster.namespace, name);
    edit(&mut content);
    Ok(path_of(CONTENTS, &rights.administrator.create(CONTENTS, &content).granted()?))
}

fn ready() -> Value {
    json!({ "status": { "readyToUse": true, "snapshotHandle": "snapshot-1", "creationTime": 1, "restoreSize": 1 } })
}

fn annotate(value: Value) -> Value {
    json!({ "metadata": { "annotations": { BEING_CREATED: value } } })
}

fn labels(node: &str) -> Value {
    json!({ "metadata": { "labels": { MANAGED_BY: node, TOPOLOGY_KEY: node } } })
}

fn a_snapshots_whole_life_is_granted(cluster: &mut Cluster) -> Result<()> {
    with_contents(cluster, |rights| {
        let path = make(rights, "data", json!({ MANAGED_BY: rights.here }))?;
        let (agent, status) = (&rights.agent, format!("{path}/status"));
        agent.get(CONTENTS).granted()?;
        agent.get(&path).granted()?;
        agent.patch(&path, Patch::Merge, &labels(&rights.here)).granted()?;
        agent.patch(&path, Patch::Merge, &annotate(json!("yes"))).granted()?;
        let failed = json!({ "status": { "readyToUse": false, "error": { "message": "no room" } } });
        agent.patch(&status, Patch::Merge, &failed).granted()?;
        agent.patch(&status, Patch::Merge, &ready()).granted()?;
        agent.patch(&path, Patch::Merge, &annotate(Value::Null)).granted()?;
        rights.administrator.delete(&path).granted()?;
        let empty = json!({ "status": { "snapshotHandle": null, "readyToUse": null } });
        agent.patch(&status, Patch::Merge, &empty).granted()?;
        agent.patch(&path, Patch::Merge, &json!({ "metadata": { "finalizers": [] } })).granted()?;
        ensure!(rights.administrator.get(&path).object().is_none(), "it is still there");
        Ok(())
    })
}

fn a_snapshot_that_no_node_has_is_taken(cluster: &mut Cluster) -> Result<()> {
    with_contents(cluster, |rights| {
        for (name, unowned) in [("none", Value::Null), ("empty", json!({ TOPOLOGY_KEY: "" }))] {
            let path = make(rights, name, unowned)?;
            // Nothing else with it, or before it, or in another's name.
            rights.agent.patch(&path, Patch::Merge, &annotate(json!("yes"))).refused_by(POLICY, OF_NODE)?;
            let status = format!("{path}/status");
            rights.agent.patch(&status, Patch::Merge, &ready()).refused_by(POLICY, OF_NODE)?;
            rights.agent.patch(&path, Patch::Merge, &labels(&rights.there)).refused_by(POLICY, OF_NODE)?;
            rights.unbound.patch(&path, Patch::Merge, &labels("")).refused_by(POLICY, UNBOUND)?;
            // That no node has it, any node may say.
            let failed = json!({ "status": { "readyToUse": false, "error": { "message": "no node has it" } } });
            rights.agent.patch(&status, Patch::Merge, &failed).granted()?;
            rights.other.patch(&status, Patch::Merge, &failed).granted()?;
            rights.unbound.patch(&status, Patch::Merge, &failed).refused_by(POLICY, UNBOUND)?;
            let with_name = json!({ "status": { "readyToUse": false, "snapshotHandle": "snapshot-1" } });
            rights.agent.patch(&status, Patch::Merge, &with_name).refused_by(POLICY, OF_NODE)?;
            rights.agent.patch(&path, Patch::Merge, &labels(&rights.here)).granted()?;
            rights.other.patch(&path, Patch::Merge, &labels(&rights.there)).refused_by(POLICY, OF_NODE)?;
            rights.agent.patch(&path, Patch::Merge, &labels(&rights.there)).refused_by(POLICY, OF_NODE)?;
            rights.agent.patch(&status, Patch::Merge, &ready()).granted()?;
        }
        Ok(())
    })
}

fn another_nodes_snapshot_is_left_alone(cluster: &mut Cluster) -> Result<()> {
    with_contents(cluster, |rights| {
        // With the label that a snapshot controller gives, and with ours only.
        for (name, owner) in [
            ("theirs", json!({ MANAGED_BY: rights.there })),
            ("both", json!({ MANAGED_BY: rights.there, TOPOLOGY_KEY: rights.here })),
        ] {
            let path = make(rights, name, owner)?;
            let status = format!("{path}/status");
            for (stranger, message) in [(&rights.agent, OF_NODE), (&rights.unbound, UNBOUND)] {
                stranger.patch(&path, Patch::Merge, &annotate(json!("yes"))).refused_by(POLICY, message)?;
                stranger.patch(&path, Patch::Merge, &labels(&rights.here)).refused_by(POLICY, message)?;
                stranger.patch(&status, Patch::Merge, &ready()).refused_by(POLICY, message)?;
            }
            rights.administrator.delete(&path).granted()?;
            let free = json!({ "metadata": { "finalizers": [] } });
            rights.agent.patch(&path, Patch::Merge, &free).refused_by(POLICY, OF_NODE)?;
            rights.other.patch(&path, Patch::Merge, &free).granted()?;
        }
        Ok(())
    })
}

fn another_drivers_snapshot_is_left_alone(cluster: &mut Cluster) -> Result<()> {
    with_contents(cluster, |rights| {
        let path = make_with(rights, "foreign", |content| {
            content["spec"]["driver"] = json!("other.example.com");
            content["metadata"]["labels"] = json!({ MANAGED_BY: rights.here });
        })?;
        let made = rights.administrator.get(&path).granted()?;
        ensure!(made["metadata"]["labels"][TOPOLOGY_KEY].is_null(), "it is labelled: {}", made["metadata"]["labels"]);
        rights.agent.patch(&path, Patch::Merge, &annotate(json!("yes"))).refused_by(POLICY, OF_DRIVER)?;
        rights.agent.patch(&format!("{path}/status"), Patch::Merge, &ready()).refused_by(POLICY, OF_DRIVER)?;
        // Nor by making it one's own.
        let ours = json!({ "spec": { "driver": "bulkhead.csi.local" } });
        rights.agent.patch(&path, Patch::Merge, &ours).refused_by(POLICY, OF_DRIVER)
    })
}

fn nothing_but_what_became_of_it_is_written(cluster: &mut Cluster) -> Result<()> {
    with_contents(cluster, |rights| {
        let path = make_with(rights, "data", |content| {
            content["metadata"]["labels"] = json!({ MANAGED_BY: rights.here, "colour": "red" });
            content["metadata"]["annotations"] = json!({ "colour": "red" });
            content["metadata"]["finalizers"] = json!([FINALIZER, "example.com/mine"]);
        })?;
        let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": rights.here, "uid": "0" });
        for (change, message) in [
            (json!({ "spec": { "deletionPolicy": "Retain" } }), SPECIFICATION),
            (json!({ "spec": { "driver": "other.example.com" } }), SPECIFICATION),
            (json!({ "spec": { "volumeSnapshotRef": { "uid": "2" } } }), SPECIFICATION),
            (json!({ "metadata": { "ownerReferences": [owner] } }), SPECIFICATION),
            (json!({ "metadata": { "labels": { "colour": "blue" } } }), LABEL),
            (json!({ "metadata": { "labels": { "colour": null } } }), LABEL),
            (json!({ "metadata": { "labels": { "size": "large" } } }), LABEL),
            (json!({ "metadata": { "labels": { MANAGED_BY: rights.there } } }), OF_NODE),
            (json!({ "metadata": { "annotations": { "colour": "blue" } } }), ANNOTATION),
            (json!({ "metadata": { "annotations": { "colour": null } } }), ANNOTATION),
            (annotate(json!("no")), ANNOTATION),
            (
                json!({ "metadata": { "annotations": { "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted": "yes" } } }),
                ANNOTATION,
            ),
            (
                json!({ "metadata": { "annotations": { "snapshot.storage.kubernetes.io/allow-volume-mode-change": "true" } } }),
                ANNOTATION,
            ),
            // It is not being deleted.
            (json!({ "metadata": { "finalizers": ["example.com/mine"] } }), FINALIZERS),
            (json!({ "metadata": { "finalizers": [FINALIZER, "example.com/mine", "example.com/more"] } }), FINALIZERS),
        ] {
            rights.agent.patch(&path, Patch::Merge, &change).refused_by(POLICY, message)?;
        }
        rights.administrator.delete(&path).granted()?;
        for rest in [json!([]), json!([FINALIZER])] {
            let change = json!({ "metadata": { "finalizers": rest } });
            rights.agent.patch(&path, Patch::Merge, &change).refused_by(POLICY, FINALIZERS)?;
        }
        let own = json!({ "metadata": { "finalizers": ["example.com/mine"] } });
        rights.agent.patch(&path, Patch::Merge, &own).granted().map(drop)
    })
}

fn a_snapshot_has_the_name_that_its_specification_gives_it(cluster: &mut Cluster) -> Result<()> {
    with_contents(cluster, |rights| {
        let owner = json!({ MANAGED_BY: rights.here });
        let taken = make(rights, "taken", owner.clone())?;
        let named = make_with(rights, "named", |content| {
            content["spec"]["source"] = json!({ "snapshotHandle": "kept" });
            content["metadata"]["labels"] = owner;
        })?;
        let name = |handle: &str| json!({ "status": { "readyToUse": true, "snapshotHandle": handle } });
        for (path, own) in [(&taken, "snapshot-1"), (&named, "kept")] {
            let status = format!("{path}/status");
            rights.agent.patch(&status, Patch::Merge, &name("snapshot-2")).refused_by(POLICY, NAME)?;
            rights.agent.patch(&status, Patch::Merge, &name(own)).granted()?;
            // What somebody else has written does not keep an agent from its work.
            rights.administrator.patch(&status, Patch::Merge, &name("snapshot-2")).granted()?;
            rights.agent.patch(path, Patch::Merge, &annotate(json!("yes"))).granted()?;
            rights.agent.patch(&status, Patch::Merge, &name("snapshot-3")).refused_by(POLICY, NAME)?;
            rights.agent.patch(&status, Patch::Merge, &name(own)).granted()?;
        }
        Ok(())
    })
}

fn snapshots_are_neither_made_nor_deleted(cluster: &mut Cluster) -> Result<()> {
    with_contents(cluster, |rights| {
        let path = make(rights, "data", json!({ MANAGED_BY: rights.here }))?;
        let whole = rights.administrator.get(&path).granted()?;
        rights.agent.delete(&path).refused_by_role()?;
        rights.agent.delete(CONTENTS).refused_by_role()?;
        rights.agent.replace(&path, &whole).refused_by_role()?;
        rights.agent.replace(&format!("{path}/status"), &whole).refused_by_role()?;
        let other = content(&rights.cluster.namespace, "other");
        rights.agent.create(CONTENTS, &other).refused_by_role()?;
        let mut whole = other.clone();
        whole["apiVersion"] = json!("snapshot.storage.k8s.io/v1");
        whole["kind"] = json!("VolumeSnapshotContent");
        rights.agent.patch(&path_of(CONTENTS, &other), Patch::Apply, &whole).refused_by_role()?;
        let snapshots =
            format!("/apis/snapshot.storage.k8s.io/v1/namespaces/{}/volumesnapshots", rights.cluster.namespace);
        rights.agent.get(&snapshots).refused_by_role()?;
        rights.agent.patch(&format!("{snapshots}/data"), Patch::Merge, &json!({})).refused_by_role()?;
        rights.agent.get("/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses").refused_by_role()
    })
}

fn snapshots_are_labelled_in_the_same_write(cluster: &mut Cluster) -> Result<()> {
    with_contents(cluster, |rights| {
        let label = |content: &Value| content["metadata"]["labels"][TOPOLOGY_KEY].clone();
        let free = make(rights, "free", Value::Null)?;
        ensure!(label(&rights.administrator.get(&free).granted()?) == "", "one without a node is not labelled");
        let theirs = make(rights, "theirs", json!({ MANAGED_BY: rights.there, "colour": "red" }))?;
        let made = rights.administrator.get(&theirs).granted()?;
        ensure!(label(&made) == rights.there && made["metadata"]["labels"]["colour"] == "red", "{}", made["metadata"]);
        // Ours follows the snapshot controller's.
        let taken = json!({ "metadata": { "labels": { MANAGED_BY: rights.here } } });
        let taken = rights.administrator.patch(&free, Patch::Merge, &taken).granted()?;
        ensure!(label(&taken) == rights.here, "it is labelled {}", label(&taken));
        let wrong = json!({ "metadata": { "labels": { TOPOLOGY_KEY: rights.there } } });
        let mended = rights.administrator.patch(&free, Patch::Merge, &wrong).granted()?;
        ensure!(label(&mended) == rights.here, "a wrong label stays: {}", label(&mended));
        Ok(())
    })
}
