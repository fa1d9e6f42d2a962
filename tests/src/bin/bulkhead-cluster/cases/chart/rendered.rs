//! What the chart is made of: the same objects as the manifests, in a package as well as in its directory.

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::{Cluster, manifests};
use serde_json::Value;

use super::{DISK, Objects, WITH_LABELS, accept, chart, helm, key, objects, template};

cases! {
    on Cluster;
    helm_finds_no_fault_with_the_chart: Bare + Long,
    with_their_pool_it_makes_the_objects_of_kustomize: Bare + Long,
    its_objects_have_the_usual_labels: Bare + Long,
    its_package_makes_the_same_objects: Bare + Long,
    the_api_server_accepts_both_forms: Bare + Long,
}

const FORMS: [&str; 2] = ["container", "host-service"];

fn helm_finds_no_fault_with_the_chart(_: &mut Cluster) -> Result<()> {
    helm(&["lint", "--strict", &chart()])?.succeeded().map(drop)
}

fn with_their_pool_it_makes_the_objects_of_kustomize(cluster: &mut Cluster) -> Result<()> {
    let kubeconfig = cluster.access.kubeconfig();
    for form in FORMS {
        let overlay = manifests::build(&kubeconfig, &format!("overlays/{form}"))?;
        let labels = manifests::build(&kubeconfig, "labels")?;
        let mut expected = comparable(objects(cluster, &format!("{overlay}\n---\n{labels}"))?);
        // helm creates the release's namespace itself.
        expected.retain(|(kind, _), _| kind != "Namespace");
        let made = template(&[WITH_LABELS, "--set", &format!("form={form},{DISK}")])?.succeeded()?;
        let made = comparable(objects(cluster, &made)?);
        let names = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
        ensure!(names(&expected) == names(&made), "{form}: {:?} instead of {:?}", names(&made), names(&expected));
        for (name, expected) in &expected {
            let made = &made[name];
            ensure!(made == expected, "{form}: {name:?} is\n{made:#}\ninstead of\n{expected:#}");
        }
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
