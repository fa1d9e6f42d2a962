//! What an upgrade could not do, or must not, is refused before it has changed anything.

use std::fs;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::commands::Printed;
use serde_json::{Value, json};

use super::released::Released;
use super::{NAMESPACE, chart, disk, template_with};

cases! {
    on Cluster;
    what_cannot_change_is_refused_before_anything_is: Bare + Long + Alone("it has a control plane of its own"),
}

fn what_cannot_change_is_refused_before_anything_is(_: &mut Cluster) -> Result<()> {
    let released = Released::installed()?;
    a_class_keeps_what_kubernetes_does_not_let_change(&released)?;
    volumes_are_not_looked_for_on_the_root(&released)?;
    what_a_class_may_change_is_changed(&released)?;
    a_class_that_says_nothing_has_the_defaults(&released)?;
    a_driver_with_volumes_keeps_its_name(&released)?;
    a_new_name_that_fails_half_way_is_taken_back(&released)?;
    what_cannot_look_at_the_cluster_renames_no_driver(&released)
}

/// The class `bulkhead` with other fields, and the other class as it is.
fn class(fields: &Value) -> Value {
    let mut class = json!({ "name": "bulkhead" });
    if let (Some(class), Some(fields)) = (class.as_object_mut(), fields.as_object()) {
        class.extend(fields.clone());
    }
    json!([class, { "name": "bulkhead-retain", "reclaimPolicy": "Retain" }])
}

/// Some of what helm could have changed, with the version of each object, and its own records.
fn everything(released: &Released) -> Result<String> {
    let of = |kinds: &str, version: &str| {
        let columns = format!("custom-columns=:kind,:metadata.name,:metadata.{version}");
        released.kubectl.run(&["--namespace", NAMESPACE, "get", kinds, "--output", &columns])
    };
    let versions = of("storageclasses,csidrivers,configmaps,secrets", "resourceVersion")?;
    // These, and a DaemonSet, get another version with each change of their status.
    let policies = of("validatingadmissionpolicies", "generation")?;
    Ok(format!("{versions}{policies}{:#}", released.template()?))
}

/// Checks that an upgrade to these values is refused with these words, and changes nothing.
fn refused(released: &Released, values: &Value, words: &[&str]) -> Result<()> {
    let before = everything(released)?;
    let told = released.upgrade(values)?.failed().with_context(|| values.to_string())?;
    for word in words.iter().chain(&["Nothing has been changed"]) {
        ensure!(told.contains(word), "{values}: no {word:?} in {told}");
    }
    ensure!(everything(released)? == before, "{values}: {before}\nhas become\n{}", everything(released)?);
    Ok(())
}

fn a_class_keeps_what_kubernetes_does_not_let_change(released: &Released) -> Result<()> {
    for (fields, words) in [
        (json!({ "reclaimPolicy": "Retain" }), r#"reclaimPolicy is "Delete" and would become "Retain""#),
        (
            json!({ "volumeBindingMode": "Immediate" }),
            r#"volumeBindingMode is "WaitForFirstConsumer" and would become "Immediate""#,
        ),
        (json!({ "parameters": { "inodes": 5000 } }), r#"parameters is {} and would become {"inodes":"5000"}"#),
    ] {
        let remedy = "kubectl delete storageclass bulkhead";
        refused(released, &json!({ "storageClasses": class(&fields) }), &["StorageClass bulkhead", words, remedy])?;
    }
    let values = json!({ "driverName": "disk.example.com" });
    let words = r#"provisioner is "bulkhead.csi.local" and would become "disk.example.com""#;
    refused(released, &values, &["StorageClass bulkhead", words])?;
    // As the message says.
    released.kubectl.delete(&["storageclass", "bulkhead"])?;
    released.upgrade(&json!({ "storageClasses": class(&json!({ "reclaimPolicy": "Retain" })) }))?.succeeded()?;
    released.check_complete()?;
    // A rollback does not look first.
    let told = released.helm("rollback", &["1"])?.failed()?;
    ensure!(told.contains("StorageClass") && told.contains("reclaimPolicy"), "{told}");
    released.kubectl.delete(&["storageclass", "bulkhead"])?;
    released.helm("rollback", &["1"])?.succeeded()?;
    released.check_complete()
}

/// Without pools, the chart makes one there, also for nodes whose pools were those of another form or group.
fn volumes_are_not_looked_for_on_the_root(released: &Released) -> Result<()> {
    // A class of a new name, so that nothing else would be refused.
    let on_the_root = |mut values: Value| {
        values["pools"] = json!([]);
        values["storageClasses"] = json!([{ "name": "sized" }]);
        values
    };
    released.keep_a_volume()?;
    let instead = "/var/lib/bulkhead/default instead";
    let remedy = "--set 'pools[0].name=default,pools[0].directory=/srv/bulkhead/default'";
    let words = ["1, such as kept", "were default=/srv/bulkhead/default:", instead, remedy];
    refused(released, &on_the_root(json!({})), &words)?;
    let groups = json!([{ "name": "small", "nodeSelector": { "disk": "no" } }]);
    refused(released, &on_the_root(json!({ "nodeGroups": groups })), &words)?;
    // What helm remembers names the pool.
    released.helm("upgrade", &[&chart(), "--reuse-values", "--set", "podLabels.a=b"])?.succeeded()?;
    released.upgrade(&json!({ "form": "host-service" }))?.succeeded()?;
    refused(released, &on_the_root(json!({})), &["were in their own configuration", instead, remedy])?;
    released.upgrade(&json!({}))?.succeeded()?;
    released.kubectl.delete(&["persistentvolume", "kept"])?;
    released.check_complete()
}

fn what_a_class_may_change_is_changed(released: &Released) -> Result<()> {
    let topologies = json!([{ "matchLabelExpressions": [{ "key": "bulkhead.csi.local/node", "values": ["a"] }] }]);
    for fields in [
        json!({ "mountOptions": ["noatime"] }),
        json!({ "allowVolumeExpansion": false }),
        json!({ "allowedTopologies": topologies }),
        json!({ "default": true }),
        json!({ "parameters": {} }),
    ] {
        released
            .upgrade(&json!({ "storageClasses": class(&fields) }))?
            .succeeded()
            .with_context(|| fields.to_string())?;
        released.check_complete()?;
    }
    Ok(())
}

/// One that somebody else has made without most fields, which the API server has filled in.
fn a_class_that_says_nothing_has_the_defaults(released: &Released) -> Result<()> {
    let metadata = json!({
        "name": "plain",
        "labels": { "app.kubernetes.io/managed-by": "Helm" },
        "annotations": { "meta.helm.sh/release-name": "bulkhead", "meta.helm.sh/release-namespace": NAMESPACE },
    });
    let plain = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": metadata,
        "provisioner": "bulkhead.csi.local",
    });
    released.kubectl.apply(&plain.to_string())?;
    let values = |mode: &str| json!({ "storageClasses": [{ "name": "plain", "volumeBindingMode": mode }] });
    let words = r#"volumeBindingMode is "Immediate" and would become "WaitForFirstConsumer""#;
    refused(released, &values("WaitForFirstConsumer"), &[words])?;
    released.upgrade(&values("Immediate"))?.succeeded()?;
    released.check_complete()
}

fn a_driver_with_volumes_keeps_its_name(released: &Released) -> Result<()> {
    released.keep_a_volume()?;
    let values = json!({ "driverName": "disk.example.com", "storageClasses": [{ "name": "disk" }] });
    refused(released, &values, &["driverName", "bulkhead.csi.local", "disk.example.com", "1, such as kept"])?;
    somebody_who_may_not_look_is_refused(released, &values)?;
    released.kubectl.delete(&["persistentvolume", "kept"])?;
    released.upgrade(&values)?.succeeded()?;
    released.check_complete()?;
    released.kubectl.gone(&["csidriver", "bulkhead.csi.local"])
}

/// helm changes the configuration before the pods, of which the API server refuses these.
fn a_new_name_that_fails_half_way_is_taken_back(released: &Released) -> Result<()> {
    let (name, former) = ("half.example.com", "disk.example.com");
    let wrong = json!([{ "operator": "Perhaps" }]);
    released
        .upgrade(&json!({ "driverName": name, "storageClasses": [{ "name": "half" }], "tolerations": wrong }))?
        .failed()?;
    ensure!(released.flags()?.contains(name), "it has not failed half-way: {}", released.flags()?);
    let values = json!({ "driverName": former, "storageClasses": [{ "name": "disk" }], "formerDriverName": name });
    released.upgrade(&values)?.succeeded()?;
    ensure!(released.flags()?.contains(former), "{}", released.flags()?);
    released.check_complete()
}

/// As Argo CD does it: helm renders the chart without looking at the cluster, and something else applies that.
fn what_cannot_look_at_the_cluster_renames_no_driver(released: &Released) -> Result<()> {
    let (name, former) = ("third.example.com", "disk.example.com");
    let scratch = tempfile::tempdir()?;
    let apply = |values: &Value| -> Result<Printed> {
        let file = scratch.path().join("objects.yaml");
        let mut values = values.clone();
        values["pools"] = disk();
        fs::write(&file, template_with(&values)?.succeeded()?)?;
        let arguments = ["apply", "--server-side", "--force-conflicts", "--namespace", NAMESPACE, "--filename"];
        Printed::by(&mut released.kubectl.command(&[&arguments[..], &[&file.to_string_lossy()]].concat()))
    };
    let classes = json!([{ "name": "third" }]);
    let values = json!({ "driverName": name, "storageClasses": classes });
    let before = (released.template()?, released.flags()?);
    let told = apply(&values)?.failed()?;
    for word in ["bulkhead-driver-name", former, "formerDriverName", "kubectl get pv"] {
        ensure!(told.contains(word), "no {word:?} in {told}");
    }
    ensure!(told.matches("the driver is called").count() == 2, "not the DaemonSet and its configuration: {told}");
    ensure!((released.template()?, released.flags()?) == before, "the pods serve another driver");
    // What changes nothing, and what somebody answers for, goes through.
    apply(&json!({ "driverName": former, "storageClasses": [{ "name": "disk" }], "podLabels": { "a": "b" } }))?
        .succeeded()?;
    let wrong = json!({ "driverName": name, "storageClasses": classes, "formerDriverName": "other.example.com" });
    apply(&wrong)?.failed()?;
    apply(&json!({ "driverName": name, "storageClasses": classes, "formerDriverName": former }))?.succeeded()?;
    ensure!(released.flags()?.contains(&format!("--driver-name {name}")), "{}", released.flags()?);
    Ok(())
}

/// Whoever may change everything in the release, but may not list volumes.
fn somebody_who_may_not_look_is_refused(released: &Released, values: &Value) -> Result<()> {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "installer" },
        "rules": [
            { "apiGroups": [""], "resources": ["secrets", "configmaps", "serviceaccounts"], "verbs": ["*"] },
            { "apiGroups": ["apps", "storage.k8s.io", "rbac.authorization.k8s.io", "admissionregistration.k8s.io"],
              "resources": ["*"], "verbs": ["*"] },
        ],
    });
    released.kubectl.apply(&role.to_string())?;
    released
        .kubectl
        .run(&["create", "clusterrolebinding", "installer", "--clusterrole=installer", "--user=installer"])?;
    let before = everything(released)?;
    let told = released.apply("upgrade", &["--kube-as-user", "installer"], values)?.failed()?;
    ensure!(told.contains("cannot list resource \"persistentvolumes\""), "{told}");
    ensure!(everything(released)? == before, "something has been changed");
    Ok(())
}
