//! The chart in deploy/helm, as helm itself renders and installs it. No case starts an agent.

mod refused;
mod released;
mod rendered;
mod takeover;
mod unchangeable;
mod upgrades;
mod values;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::case::Case;
use bulkhead_tests::cluster::{Cluster, manifests};
use bulkhead_tests::commands::Printed;
use serde_json::{Value, json};

/// The namespace passed to helm.
const NAMESPACE: &str = manifests::NAMESPACE;

/// The pool that the manifests have, on a disk of its own. Without pools, the chart makes one on the root.
const DISK: &str = "pools[0].name=default,pools[0].directory=/srv/bulkhead/default";

/// The same among values that are JSON.
fn disk() -> Value {
    json!([{ "name": "default", "directory": "/srv/bulkhead/default" }])
}

/// The newest release that the chart is rendered for, and one without the policies for labels.
const WITH_LABELS: &str = "--kube-version=1.36.0";
const WITHOUT_LABELS: &str = "--kube-version=1.32.0";

/// The tests.
pub fn cases() -> Vec<Case<Cluster>> {
    [upgrades::cases(), unchangeable::cases(), takeover::cases(), rendered::cases(), values::cases(), refused::cases()]
        .concat()
}

/// Objects by kind and name.
type Objects = BTreeMap<(String, String), Value>;

fn helm(arguments: &[&str]) -> Result<Printed> {
    run(helm_command()?.args(arguments))
}

/// Runs helm. What succeeds has nothing to warn of: whoever installs the chart should see only what to do next.
fn run(command: &mut Command) -> Result<Printed> {
    let printed = Printed::by(command)?;
    ensure!(!printed.success || printed.errors.is_empty(), "{command:?} warns: {}", printed.errors);
    Ok(printed)
}

fn helm_command() -> Result<Command> {
    let program = std::env::var_os("BULKHEAD_HELM").context("$BULKHEAD_HELM does not name helm's program")?;
    Ok(Command::new(program))
}

fn chart() -> String {
    format!("{}/../deploy/helm/bulkhead", env!("CARGO_MANIFEST_DIR"))
}

fn template(arguments: &[&str]) -> Result<Printed> {
    let fixed = ["template", "bulkhead", &chart(), "--namespace", NAMESPACE];
    helm(&[fixed.as_slice(), arguments].concat())
}

/// Returns what the chart makes of these values, with the policies for labels.
fn template_with(values: &Value) -> Result<Printed> {
    let scratch = tempfile::tempdir()?;
    let file = scratch.path().join("values.json");
    fs::write(&file, values.to_string())?;
    template(&[WITH_LABELS, "--values", &file.to_string_lossy()])
}

/// The objects of a manifest.
fn objects(cluster: &Cluster, manifest: &str) -> Result<Objects> {
    let scratch = tempfile::tempdir()?;
    let file = scratch.path().join("objects.yaml");
    fs::write(&file, manifest)?;
    let objects = manifests::parse(&cluster.access.kubeconfig(), &file)?;
    Ok(objects.into_iter().map(|object| (key(&object), object)).collect())
}

fn key(object: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// One of the objects.
fn named<'a>(objects: &'a Objects, kind: &str, name: &str) -> Result<&'a Value> {
    let found = objects.get(&(kind.to_owned(), name.to_owned()));
    found.with_context(|| format!("no {kind} {name} in {:?}", objects.keys()))
}

/// Checks that the API server would accept the objects of a manifest.
fn accept(cluster: &Cluster, manifest: &str) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let file = scratch.path().join("objects.yaml");
    fs::write(&file, manifest)?;
    let file = file.to_string_lossy();
    let arguments = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--filename", &file];
    manifests::kubectl(&cluster.access.kubeconfig(), &arguments).map(drop)
}
