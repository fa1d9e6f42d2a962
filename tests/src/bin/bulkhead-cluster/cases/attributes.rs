//! Claims that name a class of volume attributes: their volumes have them from the beginning, or get them while they are in
//! use.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{Reply, Request, VolumeKind};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::control_plane::assets;
use bulkhead_tests::cluster::objects::{block, claim, conditions, handle, on};
use bulkhead_tests::cluster::{Cluster, manifests};
use bulkhead_tests::documented::{KUBERNETES, blocks, run_all, section, subsection};
use bulkhead_tests::expect::same;
use bulkhead_tests::node::Kubectl;
use serde_json::{Value, json, to_value};

use super::resize::ask_for;

const CLASSES: &str = "/apis/storage.k8s.io/v1/volumeattributesclasses";
const DRIVER: &str = "bulkhead.csi.local";

cases! {
    on Cluster;
    a_volume_begins_with_the_attributes: Recent,
    attributes_are_changed_while_the_volume_is_there: Recent,
    what_cannot_be_done_is_infeasible_until_something_else_is_asked_for: Recent,
    an_infeasible_change_is_withdrawn: Recent,
    a_class_that_does_not_exist_is_waited_for: Recent,
    a_volume_is_not_made_without_its_class: Recent,
    a_device_has_no_inodes: Recent,
    what_was_begun_is_finished_first: Recent,
    an_agent_that_was_dead_modifies_when_it_is_back: Recent,
    a_change_of_attributes_does_not_hold_up_a_growth: Recent,
    what_is_documented_works: Recent,
}

/// A class of attributes. It is removed when the test ends.
struct Class<'a> {
    cluster: &'a Cluster,
    name: String,
}

impl Class<'_> {
    /// Leaves its removal to the test.
    fn keep(self) -> String {
        std::mem::ManuallyDrop::new(self).name.clone()
    }
}

impl Drop for Class<'_> {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = self.cluster.ask("DELETE", &format!("{CLASSES}/{}", self.name), None);
    }
}

fn class_of<'a>(cluster: &'a Cluster, suffix: &str, driver: &str, parameters: Value) -> Result<Class<'a>> {
    let name = format!("{}-{suffix}", cluster.namespace);
    let body = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
        "metadata": { "name": name }, "driverName": driver, "parameters": parameters,
    });
    cluster.ask("POST", CLASSES, Some(&body))?;
    Ok(Class { cluster, name })
}

fn class<'a>(cluster: &'a Cluster, suffix: &str, inodes: &str) -> Result<Class<'a>> {
    class_of(cluster, suffix, DRIVER, json!({ "inodes": inodes }))
}

fn named(mut claim: Value, class: &str) -> Value {
    claim["spec"]["volumeAttributesClassName"] = json!(class);
    claim
}

/// Makes a claim without a class, and returns its PersistentVolume's name.
fn made(cluster: &Cluster, name: &str) -> Result<String> {
    cluster.create_claim(&on(claim(name, &cluster.class, "16Mi"), &cluster.node()))?;
    cluster.bound(name)?.metadata.name.context("a name")
}

fn change(cluster: &Cluster, name: &str, class: Option<&str>) -> Result<()> {
    cluster.patch_claim(name, &json!({ "spec": { "volumeAttributesClassName": class } }))
}

/// Checks how many inodes a volume may use, by its PersistentVolume's name.
fn has_inodes(cluster: &Cluster, object: &str, number: u64) -> Result<()> {
    let usage = Request::Usage { volume: handle(object).parse()?, target: None };
    let Reply::Usage(usage) = cluster.agents[0].rig.helper()?.ask(&usage)? else { bail!("no usage") };
    match usage.spec.kind {
        VolumeKind::Directory { inodes, .. } if inodes.get() == number => Ok(()),
        kind => bail!("it is a {kind:?}, and not one with {number} inodes"),
    }
}

/// Waits until the claim and its PersistentVolume say that the volume has the attributes of `class`, and checks that nothing
/// else is left to say.
fn has(cluster: &Cluster, name: &str, class: &str) -> Result<()> {
    let claim = cluster.access.wait_for(&cluster.claims(), name, cluster.patience(), "to be modified", |claim| {
        let status = to_value(&claim.status)?;
        ensure!(status["currentVolumeAttributesClassName"] == class, "its status is {status}");
        ensure!(status["modifyVolumeStatus"].is_null(), "an attempt is under way: {status}");
        Ok(())
    });
    let claim = to_value(claim.with_context(|| format!("events: {:?}", cluster.notes(name).unwrap_or_default()))?)?;
    let conditions = conditions(&claim["status"]);
    ensure!(conditions.is_empty(), "conditions are left over: {conditions:?}");
    let object = claim["spec"]["volumeName"].as_str().context("a volume")?;
    let volume = to_value(cluster.access.run(cluster.volumes().get(object))?)?;
    same("the object's class of attributes", &volume["spec"]["volumeAttributesClassName"], json!(class))
}

/// Waits until the claim says that it is in this state on the way to `class`, and returns its status.
fn is(cluster: &Cluster, name: &str, state: &str, class: &str) -> Result<Value> {
    let wanted = json!({ "targetVolumeAttributesClassName": class, "status": state });
    let what = format!("to be {state}");
    let claim = cluster.access.wait_for(&cluster.claims(), name, cluster.patience(), &what, |claim| {
        let status = to_value(&claim.status)?;
        ensure!(status["modifyVolumeStatus"] == wanted, "its status is {status}");
        Ok(())
    })?;
    Ok(to_value(claim.status)?)
}

/// The type and the reason of each condition, in order.
fn reasons(status: &Value) -> Value {
    let conditions = conditions(status);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found: Vec<_> = conditions.iter().map(|found| (text(&found["type"]), text(&found["reason"]))).collect();
    found.sort_unstable();
    json!(found)
}

fn a_volume_begins_with_the_attributes(cluster: &mut Cluster) -> Result<()> {
    let gold = class(cluster, "gold", "5000")?;
    cluster.create_claim(&named(on(claim("data", &cluster.class, "16Mi"), &cluster.node()), &gold.name))?;
    let object = cluster.bound("data")?.metadata.name.context("a name")?;
    has(cluster, "data", &gold.name)?;
    has_inodes(cluster, &object, 5000)
}

fn attributes_are_changed_while_the_volume_is_there(cluster: &mut Cluster) -> Result<()> {
    let (gold, silver) = (class(cluster, "gold", "5000")?, class(cluster, "silver", "700")?);
    let object = made(cluster, "data")?;
    for (class, number) in [(&gold, 5000), (&silver, 700), (&gold, 5000)] {
        change(cluster, "data", Some(&class.name))?;
        has(cluster, "data", &class.name)?;
        has_inodes(cluster, &object, number)?;
        cluster.event("data", "VolumeModify", &class.name)?;
        cluster.event("data", "VolumeModifySuccessful", handle(&object))?;
    }
    Ok(())
}

fn what_cannot_be_done_is_infeasible_until_something_else_is_asked_for(cluster: &mut Cluster) -> Result<()> {
    let gold = class(cluster, "gold", "5000")?;
    let object = made(cluster, "data")?;
    change(cluster, "data", Some(&gold.name))?;
    has(cluster, "data", &gold.name)?;
    let unknown = class_of(cluster, "unknown", DRIVER, json!({ "iops": "5" }))?;
    let wrong = class(cluster, "wrong", "many")?;
    let foreign = class_of(cluster, "foreign", "other.example.com", json!({ "inodes": "7" }))?;
    for (class, part) in [(&unknown, "\"iops\""), (&wrong, "\"many\""), (&foreign, "other.example.com")] {
        change(cluster, "data", Some(&class.name))?;
        let status = is(cluster, "data", "Infeasible", &class.name)?;
        let wanted = json!([["ModifyVolumeError", "InvalidArgument"], ["ModifyingVolume", ""]]);
        same("the conditions", &reasons(&status), wanted)?;
        same("the class that it has", &status["currentVolumeAttributesClassName"], json!(gold.name))?;
        let event = cluster.event("data", "VolumeModifyFailed", part)?;
        ensure!(event.type_.as_deref() == Some("Warning"), "it is of type {:?}", event.type_);
        has_inodes(cluster, &object, 5000)?;
    }
    change(cluster, "data", Some(&gold.name))?;
    has(cluster, "data", &gold.name)
}

fn an_infeasible_change_is_withdrawn(cluster: &mut Cluster) -> Result<()> {
    let wrong = class(cluster, "wrong", "0")?;
    made(cluster, "data")?;
    change(cluster, "data", Some(&wrong.name))?;
    is(cluster, "data", "Infeasible", &wrong.name)?;
    change(cluster, "data", None)?;
    cluster.event("data", "VolumeModifyCanceled", "withdrawn")?;
    // What is said of the last attempt stays.
    let status = is(cluster, "data", "Infeasible", &wrong.name)?;
    same("the conditions", &reasons(&status), json!([["ModifyVolumeError", "InvalidArgument"]]))
}

fn a_class_that_does_not_exist_is_waited_for(cluster: &mut Cluster) -> Result<()> {
    let name = format!("{}-late", cluster.namespace);
    let object = made(cluster, "data")?;
    change(cluster, "data", Some(&name))?;
    is(cluster, "data", "Pending", &name)?;
    cluster.event("data", "VolumeModifyFailed", "does not exist")?;
    let late = class(cluster, "late", "5000")?;
    has(cluster, "data", &late.name)?;
    has_inodes(cluster, &object, 5000)
}

fn a_volume_is_not_made_without_its_class(cluster: &mut Cluster) -> Result<()> {
    let name = format!("{}-late", cluster.namespace);
    cluster.create_claim(&named(on(claim("data", &cluster.class, "16Mi"), &cluster.node()), &name))?;
    cluster.event("data", "ProvisioningFailed", "does not exist")?;
    ensure!(cluster.agents[0].volumes()?.is_empty(), "a volume was created all the same");
    let late = class(cluster, "late", "5000")?;
    let object = cluster.bound("data")?.metadata.name.context("a name")?;
    has(cluster, "data", &late.name)?;
    has_inodes(cluster, &object, 5000)
}

fn a_device_has_no_inodes(cluster: &mut Cluster) -> Result<()> {
    let gold = class(cluster, "gold", "5000")?;
    let device = |name: &str| block(on(claim(name, &cluster.class, "16Mi"), &cluster.node()));
    cluster.create_claim(&named(device("new"), &gold.name))?;
    cluster.event("new", "ProvisioningFailed", "a block volume has no inodes")?;
    cluster.create_claim(&device("disk"))?;
    cluster.bound("disk")?;
    change(cluster, "disk", Some(&gold.name))?;
    is(cluster, "disk", "Infeasible", &gold.name)?;
    cluster.event("disk", "VolumeModifyFailed", "a block volume has no inodes").map(drop)
}

/// Nobody knows whether what was begun was done, so that it comes before what is asked for now.
fn what_was_begun_is_finished_first(cluster: &mut Cluster) -> Result<()> {
    let (gold, silver) = (class(cluster, "gold", "5000")?.keep(), class(cluster, "silver", "700")?.keep());
    let object = made(cluster, "data")?;
    cluster.agent().rig.kill_frontend()?;
    let path = format!("/api/v1/namespaces/{}/persistentvolumeclaims/data/status", cluster.namespace);
    let begun = json!({ "targetVolumeAttributesClassName": gold, "status": "InProgress" });
    cluster.ask("PATCH", &path, Some(&json!({ "status": { "modifyVolumeStatus": begun } })))?;
    change(cluster, "data", Some(&silver))?;
    cluster.agent().rig.start_frontend()?;
    has(cluster, "data", &silver)?;
    has_inodes(cluster, &object, 700)?;
    cluster.event("data", "VolumeModifySuccessful", &gold)?;
    cluster.event("data", "VolumeModifySuccessful", &silver)?;
    for class in [gold, silver] {
        cluster.ask("DELETE", &format!("{CLASSES}/{class}"), None)?;
    }
    Ok(())
}

fn an_agent_that_was_dead_modifies_when_it_is_back(cluster: &mut Cluster) -> Result<()> {
    let gold = class(cluster, "gold", "5000")?.keep();
    let object = made(cluster, "data")?;
    cluster.agent().rig.kill_frontend()?;
    change(cluster, "data", Some(&gold))?;
    cluster.agent().rig.start_frontend()?;
    has(cluster, "data", &gold)?;
    has_inodes(cluster, &object, 5000)?;
    cluster.ask("DELETE", &format!("{CLASSES}/{gold}"), None).map(drop)
}

fn a_change_of_attributes_does_not_hold_up_a_growth(cluster: &mut Cluster) -> Result<()> {
    let name = format!("{}-never", cluster.namespace);
    made(cluster, "data")?;
    change(cluster, "data", Some(&name))?;
    is(cluster, "data", "Pending", &name)?;
    ask_for(cluster, "data", "32Mi")?;
    super::resize::has(cluster, "data", "32Mi")?;
    is(cluster, "data", "Pending", &name).map(drop)
}

fn what_is_documented_works(cluster: &mut Cluster) -> Result<()> {
    let page = subsection(section(KUBERNETES, "Use")?, "Change attributes of a volume")?;
    let class = Class { cluster, name: format!("{}-documented", cluster.namespace) };
    let object = made(cluster, "first")?;
    let written = |text: &str| text.replace("bulkhead-many-files", &class.name);
    let file = cluster.agents[0].rig.work().join("documented.yaml");
    for manifest in blocks(page, "yaml") {
        fs::write(&file, written(&manifest))?;
        manifests::kubectl(&cluster.access.kubeconfig(), &["apply", "--filename", &file.to_string_lossy()])?;
    }
    let kubectl = Kubectl { program: assets()?.join("kubectl"), kubeconfig: cluster.access.kubeconfig() };
    let commands: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("    kubectl ")).collect();
    ensure!(commands.len() == 2, "{commands:?}");
    for command in commands {
        run_all(&kubectl, &format!("kubectl --namespace {} {}", cluster.namespace, written(command)))?;
    }
    has(cluster, "first", &class.name)?;
    has_inodes(cluster, &object, 500_000)
}
