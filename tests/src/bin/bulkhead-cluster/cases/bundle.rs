//! `kubectl bulkhead bundle`: everything that helps, nothing that is secret.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::manifests::NAMESPACE;
use bulkhead_tests::pool::output;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{from_value, json};

use super::plugin::{plugin, tell_of_a_volume};

cases! {
    on Cluster;
    a_bundle_has_what_helps_and_nothing_secret: Bare,
}

/// What stands wherever a secret may stand.
const PLANTED: &str = "hunter2-of-the-bundle";

/// Nearly as much as the annotations of an object may hold.
const LONG: usize = 200_000;

/// What is in an archive, in one text.
fn unpacked(archive: &Path) -> Result<String> {
    output(Command::new("tar").args(["--extract", "--gzip", "--to-stdout", "--file"]).arg(archive))
}

fn a_bundle_has_what_helps_and_nothing_secret(cluster: &mut Cluster) -> Result<()> {
    tell_of_a_volume(cluster)?;
    plant(cluster)?;
    let (directory, node) = (tempfile::tempdir()?, cluster.node());
    let data = format!("{}/data", cluster.namespace);
    for (name, options, is_named) in [("pseudonyms", &[][..], false), ("names", &["--names"][..], true)] {
        let file = directory.path().join(name);
        let arguments = ["bundle", "--file", file.to_str().context("a path")?];
        let printed = plugin(cluster, &[&arguments[..], options].concat())?.succeeded()?;
        ensure!(fs::metadata(&file)?.permissions().mode() & 0o777 == 0o600, "others may read it");
        let text = unpacked(&file)?;
        ensure!(!text.contains(PLANTED), "a secret is in it");
        for wanted in ["bulkhead_pool_size_bytes", &node, "daemonset"] {
            ensure!(text.contains(wanted), "no {wanted} in it: {printed}");
        }
        ensure!(text.contains(&data) == is_named, "{data} is to be in it: {is_named}");
        // Nobody's file is replaced.
        plugin(cluster, &arguments)?.failed()?;
        ensure!(unpacked(&file)? == text, "it was changed");
    }
    remove(cluster)
}

/// Puts a secret wherever users put one.
fn plant(cluster: &Cluster) -> Result<()> {
    let access = &cluster.access;
    let secret = json!({ "metadata": { "name": "planted" }, "stringData": { "password": PLANTED } });
    let secrets: Api<Secret> = Api::namespaced(access.client(), NAMESPACE);
    access.run(secrets.create(&PostParams::default(), &from_value(secret)?))?;
    let labels = json!({ "app": "planted" });
    let set = json!({
        "metadata": { "name": "planted", "annotations": { "example.com/password": PLANTED } },
        "spec": { "selector": { "matchLabels": labels }, "template": {
            "metadata": { "labels": labels, "annotations": { "example.com/password": PLANTED } },
            "spec": { "nodeSelector": { "none": "none" }, "containers": [{
                "name": "frontend", "image": "none", "env": [{ "name": "HTTPS_PROXY", "value": PLANTED }],
            }] },
        } },
    });
    let sets: Api<DaemonSet> = Api::namespaced(access.client(), NAMESPACE);
    access.run(sets.create(&PostParams::default(), &from_value(set)?))?;
    let long = format!("{PLANTED}{}", "x".repeat(LONG));
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { "example.com/password": long } } }));
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(access.client(), &cluster.namespace);
    access.run(claims.patch("data", &PatchParams::default(), &patch))?;
    Ok(())
}

fn remove(cluster: &Cluster) -> Result<()> {
    let access = &cluster.access;
    let secrets: Api<Secret> = Api::namespaced(access.client(), NAMESPACE);
    access.run(secrets.delete("planted", &DeleteParams::default()))?;
    let sets: Api<DaemonSet> = Api::namespaced(access.client(), NAMESPACE);
    access.run(sets.delete("planted", &DeleteParams::default()))?;
    Ok(())
}
