//! The chart in deploy/helm, as rendered by helm itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::{Cluster, manifests};
use bulkhead_tests::commands::Printed;
use serde_json::Value;

cases! {
    on Cluster;
    helm_finds_no_fault_with_the_chart: Bare + Long,
    its_defaults_make_the_objects_of_kustomize: Bare + Long,
    the_api_server_accepts_both_forms: Bare + Long,
    its_values_take_effect: Bare + Long,
    a_value_that_is_wrong_is_refused: Bare + Long,
}

/// The namespace passed to helm.
const NAMESPACE: &str = manifests::NAMESPACE;

/// The newest release that the chart is rendered for, and one without the policies for labels.
const WITH_LABELS: &str = "--kube-version=1.36.0";
const WITHOUT_LABELS: &str = "--kube-version=1.32.0";

type Objects = BTreeMap<(String, String), Value>;

fn helm(arguments: &[&str]) -> Result<Printed> {
    let program = std::env::var_os("BULKHEAD_HELM").context("$BULKHEAD_HELM does not name helm's program")?;
    Printed::by(Command::new(program).args(arguments))
}

fn chart() -> String {
    format!("{}/../deploy/helm/bulkhead", env!("CARGO_MANIFEST_DIR"))
}

fn template(arguments: &[&str]) -> Result<Printed> {
    let fixed = ["template", "bulkhead", &chart(), "--namespace", NAMESPACE];
    helm(&[fixed.as_slice(), arguments].concat())
}

/// The objects of a manifest by kind and name.
fn objects(cluster: &Cluster, manifest: &str) -> Result<Objects> {
    let scratch = tempfile::tempdir()?;
    let file: PathBuf = scratch.path().join("objects.yaml");
    fs::write(&file, manifest)?;
    let objects = manifests::parse(&cluster.access.kubeconfig(), &file)?;
    Ok(objects.into_iter().map(|object| (key(&object), object)).collect())
}

fn key(object: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// Makes everything the same whose order, spelling or name does not matter.
fn comparable(objects: Objects) -> Objects {
    let hash = objects.keys().find(|(kind, _)| kind == "ConfigMap").map(|(_, name)| name.clone());
    let mut comparable = Objects::new();
    for (_, mut object) in objects {
        normalize(&mut object, hash.as_deref());
        // kustomize assumes that kinds it does not know are namespaced.
        if object["kind"].as_str().is_some_and(|kind| kind.contains("Admission")) {
            object["metadata"].as_object_mut().map(|metadata| metadata.remove("namespace"));
        }
        comparable.insert(key(&object), object);
    }
    comparable
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

fn helm_finds_no_fault_with_the_chart(_: &mut Cluster) -> Result<()> {
    helm(&["lint", "--strict", &chart()])?.succeeded().map(drop)
}

fn its_defaults_make_the_objects_of_kustomize(cluster: &mut Cluster) -> Result<()> {
    let kubeconfig = cluster.access.kubeconfig();
    for form in ["container", "host-service"] {
        let overlay = manifests::build(&kubeconfig, &format!("overlays/{form}"))?;
        let labels = manifests::build(&kubeconfig, "labels")?;
        let mut expected = comparable(objects(cluster, &format!("{overlay}\n---\n{labels}"))?);
        // helm creates the release's namespace itself.
        expected.retain(|(kind, _), _| kind != "Namespace");
        let made = template(&[WITH_LABELS, "--set", &format!("form={form}")])?.succeeded()?;
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

fn the_api_server_accepts_both_forms(cluster: &mut Cluster) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    for form in ["container", "host-service"] {
        let file = scratch.path().join(form);
        fs::write(&file, template(&[WITH_LABELS, "--set", &format!("form={form}")])?.succeeded()?)?;
        accept(cluster, &file).with_context(|| form)?;
    }
    Ok(())
}

fn accept(cluster: &Cluster, file: &Path) -> Result<()> {
    let file = file.to_string_lossy();
    let arguments = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--filename", &file];
    manifests::kubectl(&cluster.access.kubeconfig(), &arguments).map(drop)
}

fn its_values_take_effect(cluster: &mut Cluster) -> Result<()> {
    let values = r#"{
        "namespace": "storage", "driverName": "disk.example.com", "kubeletDirectory": "/var/lib/k0s/kubelet",
        "poolsDirectory": "/pools",
        "pools": [{ "name": "default", "directory": "/pools/a" },
                  { "name": "fast", "directory": "/pools/b", "quota": "none", "overcommit": 1.5, "reserve": 1048576 }],
        "storageClasses": [{ "name": "fast", "default": true, "parameters": { "pool": "fast", "blockSize": 4096 } }],
        "privhelper": { "flags": ["--max-volumes 10"] }, "nodeSelector": { "disk": "yes" }, "labels": "never",
        "tolerations": []
    }"#;
    let scratch = tempfile::tempdir()?;
    let file = scratch.path().join("values.json");
    fs::write(&file, values)?;
    let made = template(&[WITH_LABELS, "--values", &file.to_string_lossy()])?.succeeded()?;
    ensure!(!made.contains("bulkhead.csi.local"), "the driver's name is not everywhere");
    let objects = objects(cluster, &made)?;
    ensure!(objects.contains_key(&("CSIDriver".to_owned(), "disk.example.com".to_owned())), "{made}");
    ensure!(!objects.keys().any(|(kind, _)| kind.starts_with("Mutating")), "labels were not wanted");
    let of_kind = |kind: &str| objects.iter().find(|(key, _)| key.0 == kind).map(|(_, object)| object).context("none");
    for kind in ["DaemonSet", "ServiceAccount", "Role", "RoleBinding", "ConfigMap"] {
        ensure!(of_kind(kind)?["metadata"]["namespace"] == "storage", "{kind}");
    }
    ensure!(of_kind("ClusterRoleBinding")?["subjects"][0]["namespace"] == "storage", "the account's namespace");
    let flags = of_kind("ConfigMap")?["data"]["privhelper.conf"].as_str().context("no flags")?;
    let expected = [
        "--pool default=/pools/a",
        "--pool fast=/pools/b,quota=none,overcommit=1.5,reserve=1048576",
        "--driver-name disk.example.com",
        "--kubelet-dir /var/lib/k0s/kubelet",
        "--socket /run/bulkhead/privhelper.sock",
        "--allow-uid 10001",
        "--max-volumes 10",
    ];
    ensure!(flags.lines().collect::<Vec<_>>() == expected, "{flags}");
    let class = of_kind("StorageClass")?;
    ensure!(class["parameters"]["blockSize"] == "4096", "{class}");
    ensure!(class["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true", "{class}");
    let pod = &of_kind("DaemonSet")?["spec"]["template"]["spec"];
    ensure!(pod["nodeSelector"]["disk"] == "yes" && pod["tolerations"].is_null(), "{pod}");
    ensure!(pod.to_string().contains("/var/lib/k0s/kubelet/pods"), "{pod}");

    let digest = format!("sha256:{}", "a".repeat(64));
    let pinned = template(&[WITH_LABELS, "--set", &format!("frontend.image.digest={digest}")])?.succeeded()?;
    let reference = format!("image: bulkhead-frontend:{}@{digest}\n", env!("CARGO_PKG_VERSION"));
    ensure!(pinned.contains(&reference), "no {reference} in {pinned}");
    let values = format!("frontend.image.digest={digest},frontend.image.tag=mine");
    let own = template(&[WITH_LABELS, "--set", &values])?.succeeded()?;
    ensure!(own.contains("image: bulkhead-frontend:mine\n"), "a tag that was given counts: {own}");

    let older = template(&[WITHOUT_LABELS])?.succeeded()?;
    ensure!(!older.contains("MutatingAdmissionPolicy"), "an older server does not know these");
    let forced = template(&[WITHOUT_LABELS, "--set", "labels=always"])?.succeeded()?;
    ensure!(forced.contains("kind: MutatingAdmissionPolicy"), "they were wanted");
    ensure!(!forced.contains("kind: PodMonitor"), "not every cluster knows this kind");
    let monitored = template(&[WITH_LABELS, "--set", "podMonitor.enabled=true"])?.succeeded()?;
    ensure!(monitored.contains("kind: PodMonitor"), "it was wanted");
    Ok(())
}

fn a_value_that_is_wrong_is_refused(_: &mut Cluster) -> Result<()> {
    for (value, named) in [
        ("form=both", "form"),
        ("kubeletDirectory=relative", "kubeletDirectory"),
        ("kubletDirectory=/var/lib/kubelet", "kubletDirectory"),
        ("pools=null", "pools"),
        ("pools[0].name=default", "directory"),
        ("pools[0].name=a,pools[0].directory=/elsewhere/a", "poolsDirectory"),
        ("storageClasses[0].name=a,storageClasses[0].parameters.poool=a", "poool"),
        ("storageClasses[0].name=a,storageClasses[0].mountOptions[0]=suid", "mountOptions"),
        ("labels=perhaps", "labels"),
        ("frontend.image.digest=sha256:1", "digest"),
        ("frontend.logLevel=loud", "logLevel"),
    ] {
        let told = template(&[WITH_LABELS, "--set", value])?.failed().with_context(|| value)?;
        ensure!(told.contains(named), "{value}: {told}");
    }
    Ok(())
}
