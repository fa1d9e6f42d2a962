//! What the agent does about the attributes of a volume when the API server fails in between.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;
#[allow(dead_code, reason = "each suite uses a part of it")]
mod mock_api;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::http::Method;
use bulkhead_protocol::{
    Bytes, DirectoryMode, HIGHEST_VERSION, Inodes, NameHash, Reply, Request, Usage, VolumeKind, VolumeSpec, Welcome,
};
use serde_json::{Value, json};

use fake::{Act, FakeHelper, Greeting};
use mock_api::agent::{run, status, until};
use mock_api::{Fault, MockApi, Seen};

const UID: &str = "0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a111";

/// A helper with a directory volume of 1 GiB, which grants everything.
fn helper() -> FakeHelper {
    let helper = FakeHelper::start(|request| match request {
        Request::Usage { .. } => Act::Answer(Ok(Reply::Usage(Usage {
            pool: "default".parse().unwrap(),
            spec: VolumeSpec {
                size: Bytes::try_from(1 << 30).unwrap(),
                kind: VolumeKind::Directory {
                    inodes: Inodes::try_from(65_536).unwrap(),
                    mode: DirectoryMode::try_from(0o755).unwrap(),
                },
                name_hash: NameHash([7; 32]),
            },
            used_bytes: None,
            available_bytes: None,
            used_inodes: None,
            available_inodes: None,
            targets: 1,
            condition: None,
        }))),
        Request::SetQuota { size, .. } => fake::size(size.get()),
        Request::SetInodes { .. } => fake::size(1 << 30),
        Request::List { .. } => fake::no_volumes(),
        Request::PoolStatus { .. } => fake::roomy(),
        _ => fake::no_copies(request).unwrap_or_else(fake::done),
    });
    let welcome = Welcome { version: HIGHEST_VERSION, ..fake::welcome(&["default"]) };
    helper.greet_with(Greeting::Welcome(Box::new(welcome)));
    helper
}

/// A bound claim for `requested` that names the class `gold`.
fn claim(version: usize, requested: &str, attempt: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data", "namespace": "shop", "uid": UID, "resourceVersion": version.to_string(),
            "annotations": { "volume.kubernetes.io/storage-provisioner": "bulkhead.csi.local",
                             "volume.kubernetes.io/selected-node": "node-1" },
        },
        "spec": { "storageClassName": "local", "accessModes": ["ReadWriteOnce"], "volumeName": format!("pvc-{UID}.node-1"),
                  "volumeAttributesClassName": "gold", "resources": { "requests": { "storage": requested } } },
        "status": { "phase": "Bound", "capacity": { "storage": "1Gi" }, "modifyVolumeStatus": attempt },
    })
}

fn persistent_volume() -> Value {
    let here = json!({ "key": "bulkhead.csi.local/node", "operator": "In", "values": ["node-1"] });
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": { "name": format!("pvc-{UID}.node-1"), "uid": "pv-uid", "resourceVersion": "20",
                      "labels": { "bulkhead.csi.local/node": "node-1" } },
        "spec": { "persistentVolumeReclaimPolicy": "Delete", "capacity": { "storage": "1Gi" },
                  "claimRef": { "namespace": "shop", "name": "data", "uid": UID },
                  "csi": { "driver": "bulkhead.csi.local", "volumeHandle": format!("pvc-{UID}") },
                  "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [here] }] } } },
        "status": { "phase": "Bound" },
    })
}

fn gold() -> Value {
    json!({ "metadata": { "name": "gold" }, "driverName": "bulkhead.csi.local", "parameters": { "inodes": "5000" } })
}

/// Returns whether a request is one of those by which a claim's volume is modified.
fn is_step(method: &Method, path: &str) -> bool {
    let is_patch = *method == Method::PATCH && (path.ends_with("/data/status") || path.contains("/persistentvolumes/"));
    is_patch || path.contains("/volumeattributesclasses/")
}

/// The patches that say that the claim's volume has the attributes.
fn done(api: &MockApi) -> Vec<Seen> {
    let patches = api.seen(&Method::PATCH, "/data/status").into_iter();
    patches.filter(|seen| seen.body["status"]["currentVolumeAttributesClassName"] == "gold").collect()
}

#[tokio::test]
async fn each_step_may_fail_once() {
    modified_although(|| Fault::Refuse(500, status(500, "InternalError", 0)), |_, _| {}).await;
}

#[tokio::test]
async fn an_agent_may_be_killed_in_each_step() {
    // The agent that waits for ever does nothing more; the next one finds what it left.
    modified_although(
        || Fault::Hang,
        |helper, api| {
            run(helper, api);
        },
    )
    .await;
}

/// Has a volume modified while one request fails so, and then this is done: for each request.
async fn modified_although(fault: fn() -> Fault, then: impl Fn(&FakeHelper, &MockApi)) {
    // Reading the class, what has begun, the object, what is done.
    for failing in 0..4 {
        let (helper, count) = (helper(), Arc::new(AtomicUsize::new(0)));
        let seen = Arc::clone(&count);
        let api = MockApi::start(helper.directory(), Vec::new(), move |method, path| {
            let fails = is_step(method, path) && seen.fetch_add(1, Ordering::Relaxed) == failing;
            let is_class = path.contains("/volumeattributesclasses/");
            if fails { Some(fault()) } else { is_class.then(|| Fault::Refuse(200, gold())) }
        })
        .await;
        api.put_volume(&persistent_volume());
        api.put(&claim(10, "1Gi", Value::Null));
        run(&helper, &api);
        until("watching", || api.is_watched().then_some(())).await;
        until("failing", || (count.load(Ordering::Relaxed) > failing).then_some(())).await;
        // What was written is reported, as far as the agent came.
        let begun = json!({ "targetVolumeAttributesClassName": "gold", "status": "InProgress" });
        let attempt = if failing > 1 { begun } else { Value::Null };
        api.put_and_report(&claim(2000, "1Gi", attempt));
        then(&helper, &api);
        let done = until("modifying", || done(&api).pop()).await;
        let objects = api.seen(&Method::PATCH, "/persistentvolumes/");
        let named = |seen: &Seen| seen.body["spec"]["volumeAttributesClassName"] == "gold" && seen.at <= done.at;
        assert!(objects.iter().any(named), "failure {failing}: the claim says more than its object");
        assert!(helper.names().contains(&"SetInodes".to_owned()), "{:?}", helper.names());
    }
}

#[tokio::test]
async fn a_growth_does_not_wait_for_a_class_that_may_not_be_read() {
    let (helper, is_allowed) = (helper(), Arc::new(AtomicBool::new(false)));
    let allowed = Arc::clone(&is_allowed);
    let api = MockApi::start(helper.directory(), Vec::new(), move |_, path| {
        path.contains("/volumeattributesclasses/").then(|| match allowed.load(Ordering::Relaxed) {
            true => Fault::Refuse(200, gold()),
            false => Fault::Refuse(403, status(403, "Forbidden", 0)),
        })
    })
    .await;
    api.put_volume(&persistent_volume());
    api.put(&claim(10, "2Gi", Value::Null));
    run(&helper, &api);
    until("growing", || helper.names().contains(&"SetQuota".to_owned()).then_some(())).await;
    assert!(done(&api).is_empty());
    // It heals when the right is granted.
    is_allowed.store(true, Ordering::Relaxed);
    api.put_and_report(&claim(2000, "1Gi", Value::Null));
    until("modifying", || done(&api).pop()).await;
}
