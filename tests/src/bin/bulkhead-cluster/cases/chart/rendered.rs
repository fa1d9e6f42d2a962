//! What the chart is made of: the same objects as the manifests, in a package as well as in its directory.

use std::fs;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::{Cluster, manifests};
use bulkhead_tests::documented::{BACKUPS, blocks, section};
use serde_json::{Value, json};

use super::{DISK, Objects, WITH_LABELS, accept, chart, disk, helm, key, objects, template, template_with};

cases! {
    on Cluster;
    helm_finds_no_fault_with_the_chart: Bare + Long,
    with_their_pool_it_makes_the_objects_of_kustomize: Bare + Long,
    with_changed_blocks_it_makes_the_objects_of_the_component: Bare + Long,
    its_objects_have_the_usual_labels: Bare + Long,
    its_package_makes_the_same_objects: Bare + Long,
    the_api_server_accepts_both_forms: Bare + Long,
}

const FORMS: [&str; 2] = ["container", "host-service"];

/// The overlays of kustomize, with the values that make the same objects.
const OVERLAYS: [(&str, &str); 3] = [
    ("container", "form=container"),
    ("host-service", "form=host-service"),
    ("selinux", "form=container,selinux.enabled=true"),
];

fn helm_finds_no_fault_with_the_chart(_: &mut Cluster) -> Result<()> {
    helm(&["lint", "--strict", &chart()])?.succeeded().map(drop)
}

fn with_their_pool_it_makes_the_objects_of_kustomize(cluster: &mut Cluster) -> Result<()> {
    for (form, values) in OVERLAYS {
        let overlay = manifests::build(&cluster.access.kubeconfig(), &format!("overlays/{form}"))?;
        let made = template(&[WITH_LABELS, "--set", &format!("{values},{DISK}")])?.succeeded()?;
        are_the_same(cluster, &made, &overlay).with_context(|| form)?;
    }
    Ok(())
}

/// As the page says to do it without the chart.
fn with_changed_blocks_it_makes_the_objects_of_the_component(cluster: &mut Cluster) -> Result<()> {
    let [component, service] = blocks(section(BACKUPS, "Changed blocks for backup programs")?, "yaml")
        .try_into()
        .ok()
        .context("two blocks")?;
    let scratch = tempfile::tempdir()?;
    let overlay = manifests::copy(scratch.path())?;
    let customization = overlay.join("kustomization.yaml");
    fs::write(&customization, fs::read_to_string(&customization)? + &component)?;
    let overlay = manifests::build(&cluster.access.kubeconfig(), &overlay.to_string_lossy())?;
    accept(cluster, &overlay)?;
    let wanted = json!({ "enabled": true, "caCert": "-----BEGIN CERTIFICATE-----" });
    let made = template_with(&json!({ "snapshotMetadata": wanted, "pools": disk() }))?.succeeded()?;
    // Without tests of it, no API server knows that object.
    let is_service = |object: &&str| object.contains("kind: SnapshotMetadataService");
    let (found, others): (Vec<_>, Vec<_>) = made.split("\n---\n").partition(is_service);
    let lines: Vec<_> = found.first().context("no SnapshotMetadataService")?.lines().collect();
    for line in service.lines().filter(|line| !line.contains("caCert")) {
        ensure!(lines.contains(&line), "the chart's has no line {line:?}: {lines:#?}");
    }
    are_the_same(cluster, &others.join("\n---\n"), &overlay)
}

/// Checks that the chart has made the objects of an overlay, and those for labels.
fn are_the_same(cluster: &Cluster, made: &str, overlay: &str) -> Result<()> {
    let labels = manifests::build(&cluster.access.kubeconfig(), "labels")?;
    let mut expected = comparable(objects(cluster, &format!("{overlay}\n---\n{labels}"))?);
    // helm creates the release's namespace itself.
    expected.retain(|(kind, _), _| kind != "Namespace");
    let made = comparable(objects(cluster, made)?);
    let names = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
    ensure!(names(&expected) == names(&made), "{:?} instead of {:?}", names(&made), names(&expected));
    for (name, expected) in &expected {
        let made = &made[name];
        ensure!(made == expected, "{name:?} is\n{made:#}\ninstead of\n{expected:#}");
    }
    Ok(())
}

/// Makes everything the same whose order, spelling or name does not matter, and removes what only helm sets.
fn comparable(objects: Objects) -> Objects {
    let hash = objects.keys().find(|(kind, _)| kind == "ConfigMap").map(|(_, name)| name.clone());
    let mut comparable = Objects::new();
    for (_, mut object) in objects {
        normalize(&mut object, hash.as_deref());
        remove(&mut object["metadata"], "labels");
        // kustomize assumes that kinds it does not know are namespaced.
        if object["kind"].as_str().is_some_and(|kind| kind.contains("Admission")) {
            remove(&mut object["metadata"], "namespace");
        }
        if object["kind"] == "DaemonSet" {
            let pod = &mut object["spec"]["template"]["metadata"];
            remove(&mut pod["labels"], "app.kubernetes.io/instance");
            remove(&mut pod["annotations"], "checksum/privhelper.conf");
        }
        comparable.insert(key(&object), object);
    }
    comparable
}

fn remove(fields: &mut Value, name: &str) {
    fields.as_object_mut().map(|fields| fields.remove(name));
}

fn normalize(value: &mut Value, hash: Option<&str>) {
    match value {
        Value::String(text) => {
            // Flags without comments, and expressions without line breaks.
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let words = lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
            *text = if Some(words.as_str()) == hash { "bulkhead-privhelper".to_owned() } else { words };
        }
        Value::Array(items) => {
            items.iter_mut().for_each(|item| normalize(item, hash));
            // Containers and volumes are identified by their names.
            if items.iter().all(|item| item["name"].is_string()) {
                items.sort_by_key(|item| item["name"].as_str().map(str::to_owned));
            }
        }
        Value::Object(fields) => fields.values_mut().for_each(|field| normalize(field, hash)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn its_objects_have_the_usual_labels(cluster: &mut Cluster) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let chart = format!("bulkhead-{version}");
    for form in FORMS {
        let made =
            template(&[WITH_LABELS, "--set", &format!("form={form},networkPolicy.enabled=true")])?.succeeded()?;
        for (name, object) in objects(cluster, &made)? {
            for (label, value) in [
                ("app.kubernetes.io/name", "bulkhead"),
                ("app.kubernetes.io/instance", "bulkhead"),
                ("app.kubernetes.io/version", version),
                ("app.kubernetes.io/managed-by", "Helm"),
                ("helm.sh/chart", &chart),
            ] {
                ensure!(object["metadata"]["labels"][label] == value, "{name:?}: {label} in {:#}", object["metadata"]);
            }
        }
    }
    Ok(())
}

fn its_package_makes_the_same_objects(_: &mut Cluster) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let directory = scratch.path().to_string_lossy();
    helm(&["package", &chart(), "--destination", &directory])?.succeeded()?;
    let package = format!("{directory}/bulkhead-{}.tgz", env!("CARGO_PKG_VERSION"));
    let values = [WITH_LABELS, "--set", "podMonitor.enabled=true,prometheusRule.enabled=true"];
    let packed = helm(&[["template", "bulkhead", &package].as_slice(), &values].concat())?.succeeded()?;
    let chart = chart();
    let unpacked = helm(&[["template", "bulkhead", &chart].as_slice(), &values].concat())?.succeeded()?;
    ensure!(packed == unpacked, "{packed}\ninstead of\n{unpacked}");
    Ok(())
}

fn the_api_server_accepts_both_forms(cluster: &mut Cluster) -> Result<()> {
    for form in FORMS {
        let made = template(&[WITH_LABELS, "--set", &format!("form={form},{DISK}")])?.succeeded()?;
        accept(cluster, &made).with_context(|| form)?;
    }
    Ok(())
}
