//! `kubectl bulkhead` beside an API server that holds large objects, and peers whose lists do not end: it needs little
//! memory, comes to an end, and says what it could not read.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
#[cfg(unix)]
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Request, StatusCode, header};
use axum::response::Response;
use flate2::read::GzDecoder;
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::net::TcpListener;

const DRIVER: &str = "bulkhead.csi.local";

/// The most that the program may need, in bytes.
const MOST: u64 = 64 << 20;

/// Only guards against hanging, on however slow a machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// How many claims there are, and how large each is: as large as the API server stores.
const CLAIMS: usize = 200;
const CLAIM: usize = 1_400_000;

/// What is not as it should be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// Claims and pods are large.
    Large,
    /// The API server's list of PersistentVolumes leads from each page to the same one.
    Circle,
    /// The agent's lists do not end, in pages as large as are read.
    AgentLarge,
    /// In pages with nothing on them.
    AgentEmpty,
    /// In pages that lead to the first one.
    AgentCircle,
    /// There are secrets where none should be, an agent is down, and a log does not end.
    Secrets,
}

async fn answer(State(flaw): State<Flaw>, request: Request<Body>) -> Response {
    let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
    if let Some(answer) = (flaw == Flaw::Secrets).then(|| planted(&path, &query)).flatten() {
        return answer;
    }
    if let Some((_, path)) = path.split_once("/proxy/") {
        return agent(flaw, path, &query);
    }
    let kinds = path.rsplit('/').next().unwrap_or_default();
    let items = match kinds {
        "persistentvolumeclaims" | "pods" if flaw == Flaw::Large && !query.contains("labelSelector") => {
            return large(kinds);
        }
        "nodes" => vec![json!({ "metadata": { "name": "node-a", "labels": { format!("{DRIVER}/node"): "node-a" } } })],
        "csinodes" => vec![json!({ "metadata": { "name": "node-a" },
                                   "spec": { "drivers": [{ "name": DRIVER, "nodeID": "node-a" }] } })],
        "pods" if path.contains("/namespaces/bulkhead-system/") => vec![json!({
            "metadata": { "name": "agent-a", "namespace": "bulkhead-system" },
            "spec": { "nodeName": "node-a",
                      "containers": [{ "name": "frontend", "ports": [{ "name": "metrics", "containerPort": 9808 }] }] },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        })],
        // On a node that is gone: `doctor` looks for it on others.
        "volumesnapshotcontents" => vec![json!({
            "metadata": { "name": "content", "uid": "1", "labels": { format!("{DRIVER}/node"): "node-b" } },
            "spec": { "driver": DRIVER, "deletionPolicy": "Delete", "source": { "volumeHandle": "x" },
                      "volumeSnapshotRef": { "namespace": "shop", "name": "monday", "uid": "2" } },
        })],
        "persistentvolumes"
        | "persistentvolumeclaims"
        | "leases"
        | "csistoragecapacities"
        | "storageclasses"
        | "daemonsets"
        | "pods"
        | "validatingadmissionpolicies"
        | "validatingadmissionpolicybindings" => Vec::new(),
        _ => {
            let status =
                json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "none" });
            return said(StatusCode::NOT_FOUND, &status);
        }
    };
    let next = if flaw == Flaw::Circle && kinds == "persistentvolumes" { "again" } else { "" };
    said(
        StatusCode::OK,
        &json!({ "kind": "List", "apiVersion": "v1", "metadata": { "continue": next }, "items": items }),
    )
}

/// What must not be in a bundle.
const PLANTED: &str = "hunter2-PLANTED";

/// What is read for a bundle, with secrets in it. The claim is called `ledger`, in the namespace `bank`.
fn planted(path: &str, query: &str) -> Option<Response> {
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
        "log" => {
            assert!(query.contains("sinceSeconds=7200") && query.contains("limitBytes="), "{query}");
            let text = format!("claim bank/ledger is ready\nAuthorization: Bearer {PLANTED}\npassword={PLANTED}\n");
            return Some(Response::new(Body::from(text)));
        }
        "pods" if path.contains("/namespaces/bulkhead-system/") => ["a", "b"]
            .map(|name| {
                json!({
                    "metadata": { "name": format!("agent-{name}"), "namespace": "bulkhead-system" },
                    "spec": { "nodeName": format!("node-{name}"), "containers": [{
                        "name": "frontend", "env": [{ "name": "X", "value": PLANTED }],
                        "ports": [{ "name": "metrics", "containerPort": 9808 }] }] },
                    "status": { "containerStatuses": [{ "name": "frontend", "ready": true, "restartCount": 0, "image": "x",
                                                        "imageID": "x", "state": {} }] },
                })
            })
            .to_vec(),
        "configmaps" => vec![json!({ "metadata": noted, "data": { "a": format!("token: {PLANTED}") } })],
        "daemonsets" => vec![json!({ "metadata": noted, "spec": { "selector": {}, "template": { "spec": { "containers": [{
            "name": "frontend", "args": ["--api-token", PLANTED], "env": [{ "name": "X", "value": PLANTED }] }] } } } })],
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

fn agent(flaw: Flaw, path: &str, query: &str) -> Response {
    let (list, entry) = match path {
        "volumes/owners" => ("volumes", json!({ "volume": "v", "pool": "default", "problem": "x".repeat(1000) })),
        "snapshots" => ("snapshots", json!({ "snapshot": "s".repeat(1000), "pool": "default" })),
        "metrics" => return Response::new(Body::from("")),
        _ => return said(StatusCode::OK, &json!({})),
    };
    let page: u32 = query.trim_start_matches("after=").parse().unwrap_or(1_000_000);
    let (entries, next) = match flaw {
        Flaw::AgentLarge => (900, Some((page + 1).to_string())),
        Flaw::AgentEmpty => (0, Some((page + 1).to_string())),
        Flaw::AgentCircle => (1, Some("1000000".to_owned())),
        _ => (1, None),
    };
    said(StatusCode::OK, &json!({ list: vec![entry; entries], "next": next }))
}

fn said(status: StatusCode, answer: &Value) -> Response {
    let response = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    response.body(Body::from(answer.to_string())).unwrap()
}

/// Claims or pods, in a single page, each filled with annotations.
fn large(kinds: &str) -> Response {
    let filling = Bytes::from("x".repeat(CLAIM));
    let volumes = if kinds == "pods" {
        json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data-0" } }])
    } else {
        json!([])
    };
    let object = move |number: usize| {
        let comma = if number == 0 { "" } else { "," };
        let begin = format!(
            "{comma}{{\"metadata\":{{\"namespace\":\"shop\",\"name\":\"data-{number}\",\"uid\":\"{number}\",\"annotations\":{{\"note\":\""
        );
        let end = format!(
            "\",\"volume.kubernetes.io/storage-provisioner\":\"{DRIVER}\"}}}},\"spec\":{{\"volumes\":{volumes},\"resources\":{{\"requests\":{{\"storage\":\"1Gi\"}}}}}}}}"
        );
        [Bytes::from(begin), filling.clone(), Bytes::from(end)]
    };
    let begin = Bytes::from("{\"kind\":\"List\",\"apiVersion\":\"v1\",\"metadata\":{},\"items\":[");
    let objects = stream::iter((0..CLAIMS).flat_map(object));
    let all = stream::iter([begin]).chain(objects).chain(stream::iter([Bytes::from("]}")]));
    let response = Response::builder().header(header::CONTENT_TYPE, "application/json");
    response.body(Body::from_stream(all.map(Ok::<_, std::io::Error>))).unwrap()
}

/// What a command printed, and the most memory that it needed, in bytes.
struct Ran {
    output: Output,
    peak: u64,
}

impl Ran {
    /// What it said, wherever.
    fn said(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        text(&self.output.stdout) + &text(&self.output.stderr)
    }
}

async fn run(flaw: Flaw, arguments: &[&str]) -> Ran {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        axum::serve(listener, Router::new().fallback(answer).with_state(flaw)).await.unwrap();
    });
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a", "users": [{ "name": "a", "user": {} }],
        "clusters": [{ "name": "a", "cluster": { "server": server } }],
        "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a" } }],
    });
    fs::write(&kubeconfig, config.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-bulkhead"));
    command.args(arguments).env_clear().env("KUBECONFIG", &kubeconfig);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let ran = tokio::task::spawn_blocking(move || wait(child)).await.unwrap();
    serving.abort();
    ran
}

/// Waits until it ends, and watches its memory.
fn wait(mut child: Child) -> Ran {
    let (begun, mut peak) = (Instant::now(), 0);
    let status = format!("/proc/{}/status", child.id());
    while child.try_wait().unwrap().is_none() {
        let status = fs::read_to_string(&status).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or_default() << 10);
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it does not end, and needs {} MiB", peak >> 20);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    println!("{} MiB, after {:?}", peak >> 20, begun.elapsed());
    Ran { output, peak }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_as_large_as_the_api_server_stores_need_no_more_memory_than_others() {
    for arguments in [&["orphans"][..], &["doctor"], &["adopt"], &["volumes", "-o", "wide"]] {
        let ran = run(Flaw::Large, arguments).await;
        assert!(ran.peak < MOST, "{arguments:?} needs {} MiB", ran.peak >> 20);
        assert!(!ran.said().contains("failed at"), "{}", ran.said());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_whose_lists_do_not_end_are_given_up_and_nothing_is_concluded() {
    for (flaw, why) in [
        (Flaw::AgentLarge, "the list has more than 64 MiB"),
        (Flaw::AgentEmpty, "the list has more than 1000 pages"),
        (Flaw::AgentCircle, "the list goes in a circle"),
    ] {
        for arguments in [&["orphans"][..], &["doctor"], &["adopt"]] {
            let ran = run(flaw, arguments).await;
            assert!(ran.peak < 4 * MOST, "{arguments:?} needs {} MiB", ran.peak >> 20);
            assert_eq!(ran.output.status.code(), Some(1), "{arguments:?}: {}", ran.said());
            assert!(ran.said().contains(why), "{arguments:?}: {}", ran.said());
            assert!(ran.said().contains("nothing is concluded from a part of it"), "{arguments:?}: {}", ran.said());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_the_api_server_that_does_not_end_fails() {
    for arguments in [&["orphans"][..], &["doctor"], &["adopt"], &["volumes"], &["nodes"]] {
        let ran = run(Flaw::Circle, arguments).await;
        assert_eq!(ran.output.status.code(), Some(1), "{arguments:?}: {}", ran.said());
        let told = "listing PersistentVolumes failed at";
        assert!(ran.said().contains(told) && ran.said().contains("goes in a circle"), "{}", ran.said());
    }
    let ran = run(Flaw::None, &["orphans"]).await;
    assert!(ran.output.status.success(), "{}", ran.said());
    assert!(ran.said().contains("orphan-snapshot"), "{}", ran.said());
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
