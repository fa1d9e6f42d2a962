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
use bulkhead_protocol::{Listed, Reply, Request};
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
    let class = |name: &str, binding: &str| json!({ "metadata": { "name": name }, "provisioner": "bulkhead.csi.local", "volumeBindingMode": binding });
    vec![class("local", "WaitForFirstConsumer"), class("anywhere", "Immediate")]
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

/// Waits while no more memory is needed than what is usual.
async fn until(frontend: &Frontend, what: &str, is_done: impl Fn() -> bool) {
    until_with(MOST, frontend, what, is_done).await;
}

/// Waits while no more memory is needed than `most`.
async fn until_with(most: u64, frontend: &Frontend, what: &str, is_done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_done() {
        assert!(peak(frontend) < most, "it needs {} MiB", peak(frontend) >> 20);
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
    let refused = |name: &str| format!("no VolumeSnapshot can be called \"{name}\": correct the name");
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

/// How many volumes of a node the documentation speaks of.
const VOLUMES: u32 = 20_000;

/// The most that each of them may take, in bytes, also while all are listed.
const EACH: u64 = 4096;

/// The claim, bound, and its PersistentVolume, as a cluster has them.
fn bound(number: u32) -> (Value, Value) {
    let mut claim = claim(number, "bulkhead.csi.local", "node-1");
    let (uid, driver) = (claim["metadata"]["uid"].as_str().unwrap().to_owned(), "bulkhead.csi.local");
    let volume = format!("pvc-{uid}");
    let annotations = &mut claim["metadata"]["annotations"];
    annotations["pv.kubernetes.io/bind-completed"] = json!("yes");
    annotations["pv.kubernetes.io/bound-by-controller"] = json!("yes");
    let managed = json!([{ "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
                           "fieldsType": "FieldsV1", "fieldsV1": { "f:status": { "f:phase": {} } } }]);
    claim["metadata"]["managedFields"] = managed.clone();
    claim["metadata"]["labels"] = json!({ "app": "shop", "bulkhead.csi.local/node": "node-1" });
    claim["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
    claim["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    claim["spec"]["volumeName"] = json!(format!("{volume}.node-1"));
    claim["spec"]["volumeMode"] = json!("Filesystem");
    claim["status"] = json!({ "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" } });
    let node = json!([{ "matchExpressions": [
        { "key": "bulkhead.csi.local/node", "operator": "In", "values": ["node-1"] }] }]);
    let object = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": format!("{volume}.node-1"), "uid": format!("1d6f2a56-8c1e-4a0e-9d7b-{number:012}"),
            "resourceVersion": "10", "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": managed,
            "labels": { "bulkhead.csi.local/node": "node-1" },
            "annotations": { "pv.kubernetes.io/provisioned-by": driver,
                             "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                             "volume.kubernetes.io/provisioner-deletion-secret-namespace": "" },
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection"],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" }, "storageClassName": "local",
            "claimRef": { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "shop",
                          "name": claim["metadata"]["name"], "uid": uid, "resourceVersion": "7" },
            "csi": { "driver": driver, "volumeHandle": volume, "fsType": "xfs",
                     "volumeAttributes": { "storage.kubernetes.io/csiProvisionerIdentity": "bulkhead" } },
            "nodeAffinity": { "required": { "nodeSelectorTerms": node } },
            "persistentVolumeReclaimPolicy": "Delete", "volumeMode": "Filesystem",
        },
        "status": { "phase": "Bound", "lastPhaseTransitionTime": "2026-01-01T00:00:00Z" },
    });
    (claim, object)
}

/// A helper that has the first so many of these volumes.
fn helper_with(volumes: u32) -> FakeHelper {
    let listed = |number| {
        let (claim, _) = bound(number);
        let volume = format!("pvc-{}", claim["metadata"]["uid"].as_str().unwrap()).parse().unwrap();
        let (pool, size) = ("default".parse().unwrap(), (1_u64 << 30).try_into().unwrap());
        Listed { volume, pool, block: false, size, targets: 1 }
    };
    let volumes: Vec<_> = (0..volumes).map(listed).collect();
    FakeHelper::start(move |request| match request {
        Request::List { after, limit } => {
            let first = volumes.partition_point(|listed| after.as_ref().is_some_and(|after| listed.volume <= *after));
            let page: Vec<_> = volumes[first..].iter().take((*limit).into()).cloned().collect();
            Act::Answer(Ok(Reply::Volumes(page.try_into().unwrap())))
        }
        Request::PoolStatus { .. } => roomy(),
        Request::Owner { .. } => Act::Answer(Ok(Reply::Owner { owner: None, used: true })),
        _ => done(),
    })
}

/// The most memory that a program needs beside these objects, of which the helper has `volumes`, in bytes.
async fn needed_beside(volumes: u32, claims: Vec<Value>, objects: &[Value]) -> u64 {
    let (helper, number) = (helper_with(volumes), claims.len());
    let api = MockApi::start(helper.directory(), classes(), |_, _| None).await;
    claims.into_iter().for_each(|claim| api.append(claim));
    objects.iter().for_each(|object| api.put_volume(object));
    let frontend = start(&helper, &api);
    let is_first = |seen: &&Request| matches!(seen, Request::List { after: None, .. });
    let lists = || helper.seen.lock().unwrap().iter().filter(is_first).count();
    let what = format!("comparing volumes three times beside {number} claims");
    until_with(MOST + EACH * number as u64, &frontend, &what, || api.is_watched() && lists() >= 3).await;
    assert!(!frontend.log().contains("does not exist"), "something is missing: {}", frontend.log());
    peak(&frontend)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_volume_needs_little_and_so_does_a_claim_that_waits() {
    let none = needed_beside(0, Vec::new(), &[]).await;
    let each = |all: u64| all.saturating_sub(none) / u64::from(VOLUMES);
    let (claims, objects): (Vec<_>, Vec<_>) = (0..VOLUMES).map(bound).unzip();
    let volume = each(needed_beside(VOLUMES, claims, &objects).await);
    // Any node may take them, and none can.
    let claims = (0..VOLUMES).map(|number| {
        let mut claim = claim(number, "bulkhead.csi.local", "node-1");
        claim["metadata"]["annotations"].as_object_mut().unwrap().remove("volume.kubernetes.io/selected-node");
        claim["spec"]["storageClassName"] = json!("anywhere");
        claim["spec"]["resources"]["requests"]["storage"] = json!("1Pi");
        claim
    });
    let waiting = each(needed_beside(0, claims.collect(), &[]).await);
    println!("{volume} bytes for each of {VOLUMES} volumes, and {waiting} for each of as many claims that wait");
    assert!(volume < EACH && waiting < EACH, "{volume} bytes for each volume, {waiting} for each claim that waits");
}
