//! Claims that cannot be served are refused aloud, and those of others are left alone.

use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::objects::{PROVISIONER, claim, on};
use serde_json::{Value, json};

cases! {
    on Cluster;
    many_writers,
    a_selector,
    sources_that_are_not_served,
    a_populators_source_is_left_to_it,
    a_class_of_volume_attributes,
    an_unknown_parameter,
    an_unknown_parameter_of_the_sidecars,
    an_unknown_mount_option,
    a_pool_that_is_not_there,
    a_missing_class_until_it_is_there,
    another_provisioner,
}

/// Makes a claim for the node, changed by `edit`, and waits until it is refused with a note that holds `part`.
fn refused(cluster: &Cluster, class: &str, edit: impl FnOnce(&mut Value), part: &str) -> Result<()> {
    let mut claim = on(claim("data", class, "16Mi"), &cluster.node());
    edit(&mut claim);
    cluster.create_claim(&claim)?;
    let event = cluster.event("data", "ProvisioningFailed", part)?;
    ensure!(event.type_.as_deref() == Some("Warning"), "it is of type {:?}", event.type_);
    cluster.stays_pending("data", Duration::from_millis(200))?;
    ensure!(cluster.agents[0].volumes()?.is_empty(), "a volume was made all the same");
    Ok(())
}

fn many_writers(cluster: &mut Cluster) -> Result<()> {
    let many = |claim: &mut Value| claim["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    refused(cluster, &cluster.class, many, "ReadWriteMany")
}

fn a_selector(cluster: &mut Cluster) -> Result<()> {
    let select = |claim: &mut Value| claim["spec"]["selector"] = json!({ "matchLabels": { "a": "b" } });
    refused(cluster, &cluster.class, select, "selector")
}

fn sources_that_are_not_served(cluster: &mut Cluster) -> Result<()> {
    let snapshot = json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "before" });
    refused(cluster, &cluster.class, |claim| claim["spec"]["dataSource"] = snapshot, "VolumeSnapshot")?;
    let mut clone = on(claim("clone", &cluster.class, "16Mi"), &cluster.node());
    clone["spec"]["dataSource"] = json!({ "kind": "PersistentVolumeClaim", "name": "data" });
    cluster.create_claim(&clone)?;
    cluster.event("clone", "ProvisioningFailed", "PersistentVolumeClaim")?;
    Ok(())
}

fn a_populators_source_is_left_to_it(cluster: &mut Cluster) -> Result<()> {
    let mut claim = on(claim("data", &cluster.class, "16Mi"), &cluster.node());
    claim["spec"]["dataSourceRef"] = json!({ "apiGroup": "example.com", "kind": "Backup", "name": "yesterday" });
    cluster.create_claim(&claim)?;
    let event = cluster.event("data", "Provisioning", "populator")?;
    ensure!(event.type_.as_deref() == Some("Normal"), "it is of type {:?}", event.type_);
    cluster.stays_pending("data", Duration::from_secs(1))?;
    ensure!(cluster.agents[0].volumes()?.is_empty(), "a volume was made all the same");
    Ok(())
}

fn a_class_of_volume_attributes(cluster: &mut Cluster) -> Result<()> {
    let fast = |claim: &mut Value| claim["spec"]["volumeAttributesClassName"] = json!("fast");
    refused(cluster, &cluster.class, fast, "volumeAttributesClassName")
}

fn an_unknown_parameter(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| class["parameters"] = json!({ "colour": "red" }))?;
    refused(cluster, &class, |_| {}, "colour")
}

fn an_unknown_parameter_of_the_sidecars(cluster: &mut Cluster) -> Result<()> {
    let key = "csi.storage.k8s.io/provisioner-secret-name";
    let class = cluster.add_class(|class| class["parameters"] = json!({ key: "secret" }))?;
    refused(cluster, &class, |_| {}, key)
}

fn an_unknown_mount_option(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| class["mountOptions"] = json!(["nobarrier"]))?;
    // Options may hold secrets, and are not repeated.
    refused(cluster, &class, |_| {}, "mount flag")
}

fn a_pool_that_is_not_there(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| class["parameters"] = json!({ "pool": "fast" }))?;
    refused(cluster, &class, |_| {}, "fast")
}

fn a_missing_class_until_it_is_there(cluster: &mut Cluster) -> Result<()> {
    let coming = format!("{}-1", cluster.namespace);
    let mut claim = on(claim("data", &coming, "16Mi"), &cluster.node());
    // The controller manager writes this only for classes that are there.
    claim["metadata"]["annotations"][PROVISIONER] = json!(bulkhead_tests::kubelet::DRIVER);
    cluster.create_claim(&claim)?;
    cluster.event("data", "ProvisioningFailed", &coming)?;
    let made = cluster.add_class(|_| {})?;
    ensure!(made == coming, "the class is called {made}");
    cluster.bound("data").map(drop)
}

fn another_provisioner(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| class["provisioner"] = json!("other.example.com"))?;
    cluster.create_claim(&on(claim("data", &class, "16Mi"), &cluster.node()))?;
    cluster.stays_pending("data", Duration::from_secs(2))?;
    ensure!(cluster.agents[0].volumes()?.is_empty(), "a volume was made");
    Ok(())
}
