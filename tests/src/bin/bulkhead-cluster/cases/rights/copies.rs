//! Claims that begin as copies: an agent may hand over its own to the node of the source, and take one that waits for a pod.

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{PROVISIONER, SELECTED_NODE, from_claim, from_snapshot};
use serde_json::{Value, json};

use super::claims::{LABEL, OF_DRIVER, POLICY, SELECTED, select};
use super::drawn::TAKEN_CLASS;
use super::{Patch, Rights, UNBOUND, with_rights};

cases! {
    on Cluster;
    a_copy_is_handed_over: Bare,
    nothing_else_is_handed_over: Bare,
    a_copy_is_labelled_before_it_has_a_pod: Bare + Recent,
    no_other_claim_is_labelled_before_it_has_a_pod: Bare + Recent,
    a_copy_that_waits_for_a_pod_is_taken: Bare + Recent,
    no_other_claim_that_waits_for_a_pod_is_taken: Bare,
}

fn label(claim: &Value) -> &Value {
    &claim["metadata"]["labels"][TOPOLOGY_KEY]
}

/// A claim that no driver has been given yet, as a user creates it.
fn waiting(rights: &Rights<'_>, name: &str) -> Value {
    let mut claim = rights.open_claim(name);
    claim["metadata"]["annotations"] = json!({});
    claim
}

/// Claims whose sources only a populator knows, also one that has the name of a kind of the core API.
fn populated(make: impl Fn(&str) -> Value) -> [Value; 2] {
    [("populated", "Hello"), ("populated-claim", "PersistentVolumeClaim")].map(|(name, kind)| {
        let mut claim = make(name);
        claim["spec"]["dataSourceRef"] = json!({ "apiGroup": "hello.example.com", "kind": kind, "name": "world" });
        claim
    })
}

fn a_copy_is_handed_over(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        for (name, copy) in [
            ("of-snapshot", from_snapshot(rights.claim("of-snapshot", &rights.here), "monday")),
            ("of-claim", from_claim(rights.claim("of-claim", &rights.here), "data")),
        ] {
            let (path, _) = rights.make_claim(&copy)?;
            rights.other.patch(&path, Patch::Merge, &select(rights.there.as_str())).refused_by(POLICY, SELECTED)?;
            rights.unbound.patch(&path, Patch::Merge, &select(rights.there.as_str())).refused_by(POLICY, UNBOUND)?;
            let status = format!("{path}/status");
            rights.agent.patch(&status, Patch::Merge, &select(rights.there.as_str())).refused_by(POLICY, SELECTED)?;
            let handed = rights.agent.patch(&path, Patch::Merge, &select(rights.there.as_str())).granted()?;
            ensure!(handed["metadata"]["annotations"][SELECTED_NODE] == rights.there, "{name}: {handed}");
            if rights.cluster.is_recent() {
                ensure!(*label(&handed) == rights.there, "{name} is labelled {}", label(&handed));
            }
            // From then on it is the other node's.
            rights.agent.patch(&path, Patch::Merge, &select(rights.here.as_str())).refused_by(POLICY, SELECTED)?;
            rights.other.patch(&path, Patch::Merge, &select(Value::Null)).granted()?;
        }
        Ok(())
    })
}

fn nothing_else_is_handed_over(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (path, _) = rights.make_claim(&rights.claim("data", &rights.here))?;
        rights.agent.patch(&path, Patch::Merge, &select(rights.there.as_str())).refused_by(POLICY, SELECTED)?;
        for claim in populated(|name| rights.claim(name, &rights.here)) {
            let (path, _) = rights.make_claim(&claim)?;
            rights.agent.patch(&path, Patch::Merge, &select(rights.there.as_str())).refused_by(POLICY, SELECTED)?;
        }
        let (path, _) = rights.make_claim(&from_claim(rights.claim("copy", &rights.here), "data"))?;
        rights.agent.patch(&path, Patch::Merge, &select("")).refused_by(POLICY, SELECTED)?;
        let label_only = json!({ "metadata": { "labels": { TOPOLOGY_KEY: rights.there } } });
        if !rights.cluster.is_recent() {
            rights.agent.patch(&path, Patch::Merge, &label_only).refused_by(POLICY, LABEL)?;
        }
        Ok(())
    })
}

fn a_copy_is_labelled_before_it_has_a_pod(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        for copy in
            [from_snapshot(waiting(rights, "of-snapshot"), "monday"), from_claim(waiting(rights, "of-claim"), "data")]
        {
            let (_, made) = rights.make_claim(&copy)?;
            ensure!(*label(&made) == "", "it is labelled {}", label(&made));
        }
        Ok(())
    })
}

fn no_other_claim_is_labelled_before_it_has_a_pod(cluster: &mut Cluster) -> Result<()> {
    let foreign = cluster.add_class_without_grant(|class| class["provisioner"] = json!("other.example.com"))?;
    let immediate = cluster.add_class(|class| class["volumeBindingMode"] = json!("Immediate"))?;
    with_rights(cluster, |rights| {
        let of_class = |class: &str, name: &str| {
            let mut claim = from_snapshot(waiting(rights, name), "monday");
            claim["spec"]["storageClassName"] = json!(class);
            claim
        };
        let [populated, of_a_claim] = populated(|name| waiting(rights, name));
        for claim in [
            waiting(rights, "empty"),
            populated,
            of_a_claim,
            of_class(&foreign, "foreign"),
            of_class("missing", "missing"),
            of_class("", "none"),
            from_snapshot(rights.claim("selected", &rights.there), "monday"),
        ] {
            let name = claim["metadata"]["name"].clone();
            let (_, made) = rights.make_claim(&claim)?;
            ensure!(*label(&made) != "", "{name} is labelled");
        }
        let (_, made) = rights.make_claim(&of_class(&immediate, "immediate"))?;
        ensure!(label(&made).is_null(), "one that binds at once is labelled {}", label(&made));
        Ok(())
    })
}

fn a_copy_that_waits_for_a_pod_is_taken(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (path, _) = rights.make_claim(&from_snapshot(waiting(rights, "data"), "monday"))?;
        rights.unbound.patch(&path, Patch::Merge, &select("")).refused_by(POLICY, UNBOUND)?;
        rights.agent.patch(&path, Patch::Merge, &select(rights.there.as_str())).refused_by(POLICY, OF_DRIVER)?;
        let growing = json!({ "status": { "capacity": { "storage": "16Mi" } } });
        let status = format!("{path}/status");
        rights.agent.patch(&status, Patch::Merge, &growing).refused_by(POLICY, OF_DRIVER)?;
        rights.agent.patch(&path, Patch::Merge, &select(rights.here.as_str())).granted()?;
        // The controller manager then gives it to our driver.
        rights.cluster.access.wait(rights.cluster.patience(), "the claim to be given to its driver", || {
            let claim = rights.administrator.get(&path).granted()?;
            ensure!(!claim["metadata"]["annotations"][PROVISIONER].is_null(), "{}", claim["metadata"]);
            ensure!(*label(&claim) == rights.here, "it is labelled {}", label(&claim));
            Ok(())
        })
    })
}

fn no_other_claim_that_waits_for_a_pod_is_taken(cluster: &mut Cluster) -> Result<()> {
    let ungranted = cluster.add_class_without_grant(|_| {})?;
    let foreign = cluster.add_class_without_grant(|class| class["provisioner"] = json!("other.example.com"))?;
    with_rights(cluster, |rights| {
        let take = select(rights.here.as_str());
        // Whatever its label says, and whoever has written that.
        let labelled = |mut claim: Value| {
            claim["metadata"]["labels"] = json!({ TOPOLOGY_KEY: "" });
            claim
        };
        let of_class = |class: &str, name: &str| {
            let mut claim = labelled(from_snapshot(waiting(rights, name), "monday"));
            claim["spec"]["storageClassName"] = json!(class);
            claim
        };
        for claim in
            [labelled(waiting(rights, "empty")), of_class(&ungranted, "ungranted"), of_class(&foreign, "foreign")]
        {
            let (path, _) = rights.make_claim(&claim)?;
            rights.agent.patch(&path, Patch::Merge, &take).refused_by(POLICY, OF_DRIVER)?;
        }
        // One that has been given to the driver, and back.
        let mut given = from_snapshot(rights.open_claim("given"), "monday");
        given["spec"]["storageClassName"] = json!(ungranted);
        let (path, _) = rights.make_claim(&given)?;
        rights.agent.patch(&path, Patch::Merge, &take).refused_by(POLICY, TAKEN_CLASS)
    })
}
