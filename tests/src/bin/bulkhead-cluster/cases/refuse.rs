//! Claims that cannot be served are refused with an event, and those of other drivers are left alone.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{PROVISIONER, claim, handle, on};
use serde_json::{Value, json};

cases! {
    on Cluster;
    many_writers_are_refused,
    a_selector_is_refused,
    a_source_that_no_object_can_be_is_refused,
    a_populators_source_is_left_to_it,
    an_unknown_parameter_is_refused,
    an_unknown_parameter_of_the_sidecars_is_refused,
    an_unknown_mount_option_is_refused,
    a_pool_that_does_not_exist_is_refused,
    a_node_that_the_class_does_not_allow_is_refused,
    a_missing_class_is_reported_until_it_exists,
    claims_of_another_provisioner_are_left_alone,
}

/// Creates a claim for the node, changed by `edit`, and waits until it is refused with a note that contains `part`.
fn refused(cluster: &Cluster, class: &str, edit: impl FnOnce(&mut Value), part: &str) -> Result<()> {
    let mut claim = on(claim("data", class, "16Mi"), &cluster.node());
    edit(&mut claim);
    cluster.create_claim(&claim)?;
    let event = cluster.event("data", "ProvisioningFailed", part)?;
    ensure!(event.type_.as_deref() == Some("Warning"), "it is of type {:?}", event.type_);
    // The agent writes the event at the end of its attempt, and retries after a second at the earliest.
    cluster.stays_pending("data", Duration::from_millis(200))?;
    ensure!(cluster.agents[0].volumes()?.is_empty(), "a volume was created all the same");
    Ok(())
}

fn many_writers_are_refused(cluster: &mut Cluster) -> Result<()> {
    let many = |claim: &mut Value| claim["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    refused(cluster, &cluster.class, many, "ReadWriteMany")
}

fn a_selector_is_refused(cluster: &mut Cluster) -> Result<()> {
    let select = |claim: &mut Value| claim["spec"]["selector"] = json!({ "matchLabels": { "a": "b" } });
    refused(cluster, &cluster.class, select, "selector")
}

fn a_source_that_no_object_can_be_is_refused(cluster: &mut Cluster) -> Result<()> {
    let other = json!({ "apiGroup": "example.com", "kind": "VolumeSnapshot", "name": "before" });
    refused(cluster, &cluster.class, |claim| claim["spec"]["dataSourceRef"] = other, "of the API group")?;
    // It would become a part of the path of a request.
    let mut clone = on(claim("clone", &cluster.class, "16Mi"), &cluster.node());
    clone["spec"]["dataSource"] = json!({ "kind": "PersistentVolumeClaim", "name": "../configmaps/data" });
    cluster.create_claim(&clone)?;
    cluster.event("clone", "ProvisioningFailed", "can be called \"../configmaps/data\"")?;
    ensure!(cluster.agents[0].volumes()?.is_empty(), "a volume was created all the same");
    Ok(())
}

fn a_populators_source_is_left_to_it(cluster: &mut Cluster) -> Result<()> {
    let mut claim = on(claim("data", &cluster.class, "16Mi"), &cluster.node());
    claim["spec"]["dataSourceRef"] = json!({ "apiGroup": "example.com", "kind": "Backup", "name": "yesterday" });
    cluster.create_claim(&claim)?;
    let event = cluster.event("data", "Provisioning", "populator")?;
    ensure!(event.type_.as_deref() == Some("Normal"), "it is of type {:?}", event.type_);
    cluster.stays_pending("data", Duration::from_millis(200))?;
    ensure!(cluster.agents[0].volumes()?.is_empty(), "a volume was created all the same");
    Ok(())
}

fn an_unknown_parameter_is_refused(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| class["parameters"] = json!({ "colour": "red" }))?;
    refused(cluster, &class, |_| {}, "colour")
}

fn an_unknown_parameter_of_the_sidecars_is_refused(cluster: &mut Cluster) -> Result<()> {
    let key = "csi.storage.k8s.io/provisioner-secret-name";
    let class = cluster.add_class(|class| class["parameters"] = json!({ key: "secret" }))?;
    refused(cluster, &class, |_| {}, key)
}

fn an_unknown_mount_option_is_refused(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| class["mountOptions"] = json!(["nobarrier"]))?;
    // Options may contain secrets, so they are not repeated.
    refused(cluster, &class, |_| {}, "mount flag")
}

fn a_pool_that_does_not_exist_is_refused(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| class["parameters"] = json!({ "pool": "fast" }))?;
    refused(cluster, &class, |_| {}, "fast")
}

/// Anybody who may change a claim may select its node, in the scheduler's place.
fn a_node_that_the_class_does_not_allow_is_refused(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| {
        let elsewhere = json!({ "key": TOPOLOGY_KEY, "values": ["elsewhere"] });
        class["allowedTopologies"] = json!([{ "matchLabelExpressions": [elsewhere] }]);
    })?;
    refused(cluster, &class, |_| {}, "allows no volumes on node")
}

fn a_missing_class_is_reported_until_it_exists(cluster: &mut Cluster) -> Result<()> {
    let coming = format!("{}-1", cluster.namespace);
    let mut claim = on(claim("data", &coming, "16Mi"), &cluster.node());
    // The controller manager writes this only if the class exists.
    claim["metadata"]["annotations"][PROVISIONER] = json!(bulkhead_tests::kubelet::DRIVER);
    cluster.create_claim(&claim)?;
    cluster.event("data", "ProvisioningFailed", &coming)?;
    let made = cluster.add_class(|_| {})?;
    ensure!(made == coming, "the class is called {made}");
    cluster.bound("data").map(drop)
}

fn claims_of_another_provisioner_are_left_alone(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| class["provisioner"] = json!("other.example.com"))?;
    cluster.create_claim(&on(claim("data", &class, "16Mi"), &cluster.node()))?;
    // A claim for our driver is created later, and bound before this time is over.
    cluster.create_claim(&on(claim("ours", &cluster.class, "16Mi"), &cluster.node()))?;
    let ours = cluster.bound("ours")?.metadata.name.context("a name")?;
    cluster.stays_pending("data", Duration::from_millis(500))?;
    let found = cluster.agents[0].volumes()?;
    ensure!(found == [handle(&ours)], "the pool holds {found:?}, not only {ours:?}");
    Ok(())
}
