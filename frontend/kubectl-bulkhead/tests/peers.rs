//! `kubectl bulkhead` beside an API server that holds large objects, and peers whose lists do not end: it needs little
//! memory, comes to an end, and says what it could not read.

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Request, StatusCode, header};
use axum::response::Response;
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
}

async fn answer(State(flaw): State<Flaw>, request: Request<Body>) -> Response {
    let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
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
