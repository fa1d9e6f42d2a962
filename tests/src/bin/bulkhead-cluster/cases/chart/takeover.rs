//! Where a release begins and ends: what kustomize has installed is taken over, and what is left is known.

use std::fs;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::{Cluster, PATIENCE, manifests};
use bulkhead_tests::documented::{KUBERNETES, blocks, run_all, section};
use serde_json::{Value, json};

use super::NAMESPACE;
use super::released::Released;

cases! {
    on Cluster;
    an_installation_by_kustomize_is_taken_over: Bare + Long + Alone("it has a control plane of its own"),
    volumes_and_capacities_are_left_by_an_uninstallation: Bare + Long + Alone("it has a control plane of its own"),
}

/// What an operator has added to the overlay.
const OWN: &str = "- patch: '{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: bulkhead},
    spec: {template: {spec: {nodeSelector: {example.com/bulkhead: \"true\"}}}}}'
";

/// With the commands on the page.
fn an_installation_by_kustomize_is_taken_over(_: &mut Cluster) -> Result<()> {
    let released = Released::nowhere()?;
    let scratch = tempfile::tempdir()?;
    let overlay = manifests::copy(scratch.path())?;
    let customization = overlay.join("kustomization.yaml");
    fs::write(&customization, fs::read_to_string(&customization)? + OWN)?;
    manifests::apply(&released.kubectl.kubeconfig, &overlay.to_string_lossy())?;
    manifests::apply(&released.kubectl.kubeconfig, "labels")?;
    let told = released.apply("install", &[], &json!({}))?.failed()?;
    ensure!(told.contains("cannot be imported into the current release"), "{told}");
    released.keep_a_volume()?;
    let told = released.apply("install", &[], &json!({ "pools": [] }))?.failed()?;
    ensure!(told.contains("the nodes' pools were default=/srv/bulkhead/default"), "{told}");

    let identity =
        |kind: &str, name: &str| -> Result<Value> { Ok(released.get(kind, name)?["metadata"]["uid"].take()) };
    let objects = [
        ("daemonset", "bulkhead"),
        ("storageclass", "bulkhead"),
        ("csidriver", "bulkhead.csi.local"),
        ("validatingadmissionpolicy", "bulkhead-agent-volumes"),
        ("mutatingadmissionpolicy", "bulkhead-claims"),
    ];
    let identities = || objects.iter().map(|(kind, name)| identity(kind, name)).collect::<Result<Vec<_>>>();
    let before = identities()?;
    let [commands] =
        blocks(section(KUBERNETES, "From kustomize to Helm")?, "sh").try_into().ok().context("no block")?;
    run_all(&released.kubectl, &commands)?;
    ensure!(identities()? == before, "an object was made anew");
    // What only the overlay said is still there, until the values say it, too.
    let selector = || -> Result<Value> { Ok(released.template()?["spec"]["nodeSelector"].take()) };
    ensure!(selector()?["example.com/bulkhead"] == "true", "{}", selector()?);
    let told = format!("{:#}", released.check_complete().err().context("helm does not miss it")?);
    ensure!(told.contains("example.com/bulkhead"), "{told}");
    released.upgrade(&json!({ "nodeSelector": { "example.com/bulkhead": "true" } }))?.succeeded()?;
    released.check_complete()?;
    let left = released.kubectl.run(&["--namespace", NAMESPACE, "get", "configmaps", "--output", "name"])?;
    ensure!(left.lines().eq(["configmap/bulkhead-privhelper", "configmap/kube-root-ca.crt"]), "{left}");
    Ok(())
}

fn volumes_and_capacities_are_left_by_an_uninstallation(_: &mut Cluster) -> Result<()> {
    let released = Released::installed()?;
    released.keep_a_volume()?;
    let capacity = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity", "storageClassName": "bulkhead",
        "capacity": "1Gi", "metadata": { "name": "left", "namespace": NAMESPACE,
            "labels": { "csi.storage.k8s.io/managed-by": "bulkhead" } },
    });
    released.kubectl.apply(&capacity.to_string())?;
    let notes = released.helm("get notes", &[])?.succeeded()?;
    released.helm("uninstall", &["--wait", "--timeout", "60s"])?.succeeded()?;

    let gone = "daemonsets,storageclasses,csidrivers,validatingadmissionpolicies,mutatingadmissionpolicies";
    released.kubectl.gone(&["--namespace", NAMESPACE, gone])?;
    released.get("persistentvolume", "kept")?;
    released.get("csistoragecapacity", "left")?;
    // The notes lead to the page, and that says how to remove them.
    ensure!(notes.contains("docs/kubernetes.md#uninstall"), "{notes}");
    let begins = format!("kubectl --namespace {NAMESPACE} delete csistoragecapacities,leases --selector ");
    let mut lines = section(KUBERNETES, "Uninstall")?.lines().map(str::trim);
    let command = lines.find(|line| line.starts_with(&begins)).context("the page does not say it")?;
    run_all(&released.kubectl, command)?;
    released.access.wait(PATIENCE, "the capacities to be gone", || {
        released.kubectl.gone(&["--namespace", NAMESPACE, "csistoragecapacities"])
    })
}
