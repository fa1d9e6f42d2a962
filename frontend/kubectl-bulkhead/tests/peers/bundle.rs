//! `kubectl bulkhead bundle`: no secrets, no tenants' names, and an end whatever its peers do.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
#[cfg(unix)]
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::Response;
use flate2::read::GzDecoder;
use futures::stream;
use serde_json::{Value, json};

use super::api_server::{DRIVER, Flaw, running, said};
use super::{MOST, Server, run, wait};

/// As much of a log as is asked for.
const LOG: usize = 1 << 20;

/// What must not be in a bundle.
const PLANTED: &str = "hunter2-PLANTED";

/// What is read for a bundle, with secrets in it. The claim is called `ledger`, in the namespace `bank`.
pub fn planted(path: &str, query: &str) -> Option<Response> {
    if path.contains("/secrets") {
        panic!("it reads Secrets");
    }
    let noted = json!({ "name": "settings", "namespace": "bulkhead-system",
                        "annotations": { "kubectl.kubernetes.io/last-applied-configuration": PLANTED } });
    let items = match path.rsplit('/').next().unwrap_or_default() {
        "metrics" if path.contains("agent-b") => {
            let status = json!({ "kind": "Status", "message": "error trying to reach service: timed out" });
            return Some(said(StatusCode::SERVICE_UNAVAILABLE, &status));
        }
        "metrics" => {
            let text = "bulkhead_build_info{version=\"0.1.0\"} 1\nbulkhead_namespace_volumes{pool=\"default\",namespace=\"bank\"} 1\n";
            return Some(Response::new(Body::from(text)));
        }
        "log" if path.contains("agent-b") => {
            let endless = stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from("x".repeat(1 << 16))));
            return Some(Response::new(Body::from_stream(endless)));
        }
        "log" if path.contains("agent-c") => return Some(Response::new(Body::from("x".repeat(LOG)))),
        "log" => {
            assert!(query.contains("sinceSeconds=7200") && query.contains("limitBytes="), "{query}");
            let text = format!("claim bank/ledger is ready\nAuthorization: Bearer {PLANTED}\npassword={PLANTED}\n");
            return Some(Response::new(Body::from(text)));
        }
        "pods" if path.contains("/namespaces/bulkhead-system/") => ["a", "b", "c"]
            .map(|name| {
                let mut pod = running(name);
                pod["spec"]["containers"][0]["env"] = json!([{ "name": "X", "value": PLANTED }]);
                pod
            })
            .to_vec(),
        "configmaps" => vec![json!({ "metadata": noted, "data": { "a": format!("token: {PLANTED}") } })],
        "daemonsets" => {
            vec![json!({ "metadata": noted, "spec": { "selector": {}, "template": { "spec": { "containers": [{
            "name": "frontend", "args": ["--api-token", PLANTED], "env": [{ "name": "X", "value": PLANTED }] }] } } } })]
        }
        "events" => vec![json!({
            "metadata": { "name": "e", "namespace": "bank" }, "message": format!("bank/ledger: secret={PLANTED}"),
            "involvedObject": { "kind": "PersistentVolumeClaim", "namespace": "bank", "name": "ledger" } })],
        "persistentvolumeclaims" => vec![json!({
            "metadata": { "name": "ledger", "namespace": "bank", "uid": "1", "annotations": {
                "volume.kubernetes.io/storage-provisioner": DRIVER, "note": PLANTED } }, "spec": {} })],
        _ => return None,
    };
    Some(said(StatusCode::OK, &json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items })))
}

/// The entries of a bundle.
fn entries(file: &Path) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(GzDecoder::new(fs::File::open(file).unwrap()));
    let entry = |entry: std::io::Result<tar::Entry<'_, GzDecoder<fs::File>>>| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_str().unwrap().trim_start_matches("bulkhead-bundle/").to_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (path, text)
    };
    archive.entries().unwrap().map(entry).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_has_no_secret_and_no_tenants_name_and_says_what_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bundle.tar.gz");
    let arguments = ["bundle", "--since", "2h", "--file", file.to_str().unwrap()];
    let ran = run(Flaw::Secrets, &arguments).await;
    assert!(ran.output.status.success(), "{}", ran.said());
    assert!(ran.peak < MOST, "it needs {} MiB", ran.peak >> 20);
    #[cfg(unix)]
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    let found = entries(&file);
    for (path, text) in &found {
        for name in [PLANTED, "ledger", "bank"] {
            assert!(!path.contains(name) && !text.contains(name), "{name} is in {path}:\n{text}");
        }
    }
    let log = &found["nodes/node-a/agent-a/frontend.log"];
    assert!(log.starts_with("claim namespace-1/claim-1 is ready\n"), "{log}");
    assert!(found["objects/persistentvolumeclaims.jsonl"].contains("\"claim-1\""), "it can be matched");
    assert!(found["nodes/node-a/agent-a/metrics.txt"].contains("namespace=\"namespace-1\""));
    let manifest: Value = serde_json::from_str(&found["MANIFEST.json"]).unwrap();
    let listed = |path: &str| {
        let all = manifest["entries"].as_array().unwrap();
        all.iter().find(|entry| entry["entry"] == path).unwrap_or_else(|| panic!("no {path} in {manifest:#}")).clone()
    };
    assert_eq!(listed("nodes/node-a/agent-a/metrics.txt")["whole"], true);
    for missing in ["nodes/node-b/agent-b/metrics.txt", "nodes/node-b/agent-b/frontend.log"] {
        assert!(listed(missing)["whole"] == false && listed(missing)["why"].is_string(), "{manifest:#}");
        assert!(!found.contains_key(missing));
    }
    let cut = listed("nodes/node-c/agent-c/frontend.log");
    assert!(cut["whole"] == false && cut["why"].as_str().unwrap().starts_with("cut: "), "{cut}");
    assert!(found["nodes/node-c/agent-c/frontend.log"].ends_with("it has what comes next)\n"));
    assert!(found["LEFT-OUT.txt"].contains("last-applied-configuration"));

    let again = run(Flaw::Secrets, &arguments).await;
    assert!(!again.output.status.success() && again.said().contains("--file names another"), "{}", again.said());
    let named = directory.path().join("named.tar.gz");
    let ran = run(Flaw::Secrets, &["bundle", "--names", "--since", "2h", "--file", named.to_str().unwrap()]).await;
    assert!(ran.output.status.success(), "{}", ran.said());
    let found = entries(&named);
    assert!(found["nodes/node-a/agent-a/frontend.log"].starts_with("claim bank/ledger is ready\n"));
    assert!(!found.values().any(|text| text.contains(PLANTED)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_beside_large_objects_and_peers_without_end_is_made_all_the_same() {
    for flaw in [Flaw::Large, Flaw::Circle, Flaw::AgentEmpty] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bundle.tar.gz");
        let ran = run(flaw, &["bundle", "--file", file.to_str().unwrap()]).await;
        assert!(ran.output.status.success(), "{}", ran.said());
        assert!(ran.peak < MOST, "it needs {} MiB", ran.peak >> 20);
        let found = entries(&file);
        assert!(found.contains_key("MANIFEST.json") && found.contains_key("versions.json"), "{:?}", found.keys());
        let told = found["MANIFEST.json"].contains("goes in a circle");
        assert_eq!(told, flaw == Flaw::Circle, "{}", found["MANIFEST.json"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_of_nodes_that_hang_is_made_in_its_time_and_says_what_it_lacks() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bundle.tar.gz");
    let ran = run(Flaw::Hanging, &["bundle", "--within", "20s", "--file", file.to_str().unwrap()]).await;
    assert!(ran.output.status.success() && ran.said().contains("--within gives it more"), "{}", ran.said());
    let manifest: Value = serde_json::from_str(&entries(&file)["MANIFEST.json"]).unwrap();
    let all = manifest["entries"].as_array().unwrap();
    let is_unasked = |entry: &Value| entry["why"].as_str().is_some_and(|why| why.contains("--within was over"));
    assert!(all.iter().any(|entry| is_unasked(entry) && entry["whole"] == false), "{manifest:#}");
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_that_is_interrupted_leaves_no_file() {
    for signal in ["INT", "TERM"] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bundle.tar.gz");
        let server = Server::start(Flaw::Hanging).await;
        let child = server.begin(&["bundle", "--file", file.to_str().unwrap()]);
        let kill = format!("kill -{signal} {}", child.id());
        let waiting = tokio::task::spawn_blocking(move || wait(child));
        while !file.exists() {
            assert!(!waiting.is_finished(), "it has ended");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        let ran = waiting.await.unwrap();
        assert!(!ran.output.status.success() && ran.said().contains("interrupted: "), "{}", ran.said());
        assert!(fs::read_dir(directory.path()).unwrap().next().is_none(), "a file is left");
    }
}
