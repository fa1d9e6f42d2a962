//! The memory that the program needs, whatever is written into the API: the process that watches claims also serves the
//! node's volumes, and whoever may create a claim decides how large it is.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;
#[allow(dead_code, reason = "each suite uses a part of it")]
mod mock_api;
#[allow(dead_code, reason = "each suite uses a part of it")]
mod program;

use std::fs;
use std::time::{Duration, Instant};

use axum::http::Method;
use bulkhead_protocol::{Reply, Request};
use serde_json::{Value, json};
use tokio::time::sleep;

use fake::{Act, FakeHelper, PATIENCE, done, no_volumes, roomy};
use mock_api::{Fault, MockApi};
use program::Frontend;

/// The most that the program may need, in bytes: a quarter of what its container is given.
const MOST: u64 = 64 << 20;

/// The longest line of the log, in bytes.
const LONGEST_LINE: usize = 4096;

fn helper() -> FakeHelper {
    FakeHelper::start(|request| match request {
        Request::Create { spec, .. } => Act::Answer(Ok(Reply::Size(spec.size))),
        Request::List { .. } => no_volumes(),
        Request::PoolStatus { .. } => roomy(),
        _ => done(),
    })
}

fn classes() -> Vec<Value> {
    let class = json!({ "metadata": { "name": "local" }, "provisioner": "bulkhead.csi.local",
                        "volumeBindingMode": "WaitForFirstConsumer" });
    vec![class]
}

fn start(helper: &FakeHelper, api: &MockApi) -> Frontend {
    let endpoint = format!("unix://{}", helper.directory().join("csi.sock").display());
    let kubeconfig = api.kubeconfig().display().to_string();
    let options = ["--csi-endpoint", &endpoint, "--kubeconfig", &kubeconfig, "--namespace", "storage"];
    Frontend::start(helper, &options)
}

fn claim(number: u32, provisioner: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": format!("data-{number}"), "namespace": "shop", "resourceVersion": "10",
                      "uid": format!("0d6f2a56-8c1e-4a0e-9d7b-{number:012}"),
                      "annotations": { "volume.kubernetes.io/storage-provisioner": provisioner,
                                       "volume.kubernetes.io/selected-node": node } },
        "spec": { "storageClassName": "local", "accessModes": ["ReadWriteOnce"],
                  "resources": { "requests": { "storage": "1Gi" } } },
    })
}

/// The most memory that the program has needed so far, in bytes.
fn peak(frontend: &Frontend) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", frontend.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

async fn until(frontend: &Frontend, what: &str, is_done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_done() {
        assert!(peak(frontend) < MOST, "it needs {} MiB", peak(frontend) >> 20);
        assert!(begun.elapsed() < PATIENCE, "{what} did not happen: {}", frontend.log());
        sleep(Duration::from_millis(50)).await;
    }
    println!("{what}: {} MiB, after {:?}", peak(frontend) >> 20, begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claims_as_large_as_the_api_server_stores_need_no_more_memory_than_others() {
    let helper = helper();
    let api = MockApi::start(helper.directory(), classes(), |_, _| None).await;
    let large = |number| {
        let mut claim = claim(number, "bulkhead.csi.local", "node-1");
        let name = format!("line {}\n", "x".repeat(1000)).repeat(650);
        claim["spec"]["dataSourceRef"] = json!({ "kind": "VolumeSnapshot", "name": name });
        claim["spec"]["dataSource"] = claim["spec"]["dataSourceRef"].clone();
        claim
    };
    (0..200).for_each(|number| api.put(&large(number)));
    let frontend = start(&helper, &api);
    let events = || api.seen(&Method::POST, "/events");
    until(&frontend, "refusing 200 claims of 1.3 MB", || events().len() >= 200).await;
    until(&frontend, "watching claims", || api.is_watched()).await;
    // The same on the watch, and one whose name is short enough to be shown.
    api.put_and_report(&large(200));
    let mut forging = large(201);
    forging["spec"]["dataSourceRef"]["name"] = json!("line\nline");
    api.put_and_report(&forging);
    until(&frontend, "refusing two that the watch reports", || events().len() >= 202).await;
    let refused = |name: &str| format!("no VolumeSnapshot can be called {name}: correct the name");
    for name in ["(longer than 1024 bytes)", "line\\nline"] {
        let is_refused = |seen: &mock_api::Seen| seen.body["note"].as_str().unwrap().contains(&refused(name));
        assert!(events().iter().any(is_refused), "{name}");
    }
    let log = frontend.log();
    assert!(log.contains(&refused("line\\nline")), "{log}");
    assert_eq!(log.lines().filter(|line| line.starts_with("line")).count(), 0);
    assert!(log.matches("not provisioned: ").count() > 200, "{log}");
    assert!(log.lines().all(|line| line.len() < LONGEST_LINE) && log.lines().count() < 1000, "{} bytes", log.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claims_and_volumes_of_others_need_none() {
    let helper = helper();
    let api = MockApi::start(helper.directory(), classes(), |_, path| {
        // Without this policy all claims are watched.
        let status = json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound" });
        path.ends_with("/mutatingadmissionpolicybindings/bulkhead-claims").then_some(Fault::Refuse(404, status))
    })
    .await;
    (0..100_000).for_each(|number| api.append(claim(number, "other.example.com", "node-2")));
    for number in 100_000..100_500 {
        let mut recorded = claim(number, "other.example.com", "node-1");
        recorded["metadata"]["annotations"]["note"] = json!("x".repeat(250_000));
        api.append(recorded);
    }
    for number in 0..100 {
        let attributes = json!({ "a": "x".repeat(1_300_000) });
        api.put_volume(&json!({
            "metadata": { "name": format!("pv-{number}"), "uid": format!("pv-{number}"), "resourceVersion": "10" },
            "spec": { "csi": { "driver": "other.example.com", "volumeHandle": "x", "volumeAttributes": attributes } },
        }));
    }
    api.append(claim(1_000_000, "bulkhead.csi.local", "node-1"));
    let frontend = start(&helper, &api);
    until(&frontend, "provisioning beside 100,500 foreign claims", || {
        !api.seen(&Method::POST, "/persistentvolumes").is_empty()
    })
    .await;
}
