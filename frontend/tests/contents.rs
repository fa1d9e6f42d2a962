//! What the agent does about the objects of snapshots when the API server or the helper fails, or dies, in between.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;
#[allow(dead_code, reason = "each suite uses a part of it")]
mod mock_api;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::Method;
use bulkhead_protocol::{Bytes, ErrorKind, HIGHEST_VERSION, Origin, Reply, Request, Response, Snapshot, Welcome};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::sleep;

use fake::{Act, FakeHelper, Greeting};
use mock_api::agent::run as agent;
use mock_api::{Fault, MockApi};

const FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
const CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
const DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";

/// A helper that takes every snapshot, unless `answer` says otherwise.
fn helper(answer: impl Fn(Response) -> Act + Send + Sync + 'static) -> FakeHelper {
    let helper = FakeHelper::start(move |request| match request {
        Request::CreateSnapshot { volume, snapshot, .. } => answer(Ok(Reply::Snapshot(Snapshot {
            snapshot: snapshot.clone(),
            pool: "default".parse().unwrap(),
            size: Bytes::try_from(8 << 20).unwrap(),
            block: true,
            allocated: 0,
            origin: Origin { source: volume.clone(), family: volume.clone(), copied: 1_700_000_000_000_000_000 },
        }))),
        Request::List { .. } => fake::no_volumes(),
        Request::PoolStatus { .. } => fake::roomy(),
        _ => fake::done(),
    });
    let welcome = Welcome { version: HIGHEST_VERSION, ..fake::welcome(&["default"]) };
    helper.greet_with(Greeting::Welcome(Box::new(welcome)));
    helper
}

fn content() -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": { "name": "snapcontent-1", "uid": "c-1", "finalizers": [FINALIZER],
                      "labels": { "bulkhead.csi.local/node": "node-1" } },
        "spec": { "driver": "bulkhead.csi.local", "deletionPolicy": "Delete", "source": { "volumeHandle": "pvc-1" },
                  "volumeSnapshotClassName": "daily",
                  "volumeSnapshotRef": { "namespace": "shop", "name": "monday", "uid": "1" } },
    })
}

/// Its VolumeSnapshot is being deleted.
fn released(mut content: Value) -> Value {
    content["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    content["metadata"]["annotations"][DELETED] = json!("yes");
    content
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    mock_api::agent::until(what, || is_so().then_some(())).await;
}

/// An API server that fails the request with this number, among those about a snapshot once it is watched.
async fn failing_at(helper: &FakeHelper, failing: usize) -> (MockApi, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    let api = MockApi::start(helper.directory(), Vec::new(), move |method, path| {
        let is_about_one = path.contains("/volumesnapshotclasses/") || path.contains("/volumesnapshotcontents/");
        let number = if is_about_one { seen.fetch_add(1, Ordering::Relaxed) } else { usize::MAX };
        let status =
            json!({ "kind": "Status", "code": 503, "reason": "ServiceUnavailable", "message": method.as_str() });
        (number == failing).then_some(Fault::Refuse(503, status))
    })
    .await;
    (api, count)
}

fn is_ready(api: &MockApi) -> bool {
    api.contents().get("snapcontent-1").is_some_and(|content| {
        content["status"]["readyToUse"] == true && content["metadata"]["annotations"][CREATED].is_null()
    })
}

fn asked(helper: &FakeHelper, name: &str) -> usize {
    helper.names().iter().filter(|seen| *seen == name).count()
}

/// How many requests it takes to take a snapshot: for the class, for the annotation, for the status, and for the annotation.
const TO_TAKE: usize = 4;

/// How many it takes to let an object go whose snapshot was taken: for the status, and for the finalizer.
const TO_RELEASE: usize = 2;

#[tokio::test]
async fn a_failure_of_any_request_delays_a_snapshot_and_no_more() {
    join_all((0..=TO_TAKE).map(|failing| async move {
        let helper = helper(Act::Answer);
        let (api, count) = failing_at(&helper, failing).await;
        api.contents().put(content());
        agent(&helper, &api);
        until(&format!("taking it, with failure {failing}"), || is_ready(&api)).await;
        let content = api.contents().get("snapcontent-1").unwrap();
        assert_eq!(content["status"]["snapshotHandle"], "snapshot-1", "{content}");
        let taken = asked(&helper, "CreateSnapshot");
        assert!((1..=2).contains(&taken), "{taken}");
        // Nothing is done about it any more.
        let so_far = count.load(Ordering::Relaxed);
        assert!(so_far >= TO_TAKE && (failing < TO_TAKE || so_far == TO_TAKE), "{so_far} requests");
        sleep(Duration::from_secs(2)).await;
        assert_eq!(count.load(Ordering::Relaxed), so_far);
    }))
    .await;
}

#[tokio::test]
async fn a_failure_of_any_request_delays_a_deletion_and_no_more() {
    join_all((0..=TO_RELEASE).map(|failing| async move {
        let helper = helper(Act::Answer);
        let (api, count) = failing_at(&helper, failing).await;
        let mut content = released(content());
        content["status"] = json!({ "readyToUse": true, "snapshotHandle": "snapshot-1" });
        api.contents().put(content);
        agent(&helper, &api);
        until(&format!("letting it go, with failure {failing}"), || api.contents().get("snapcontent-1").is_none())
            .await;
        assert!(asked(&helper, "DeleteSnapshot") >= 1);
        assert!(count.load(Ordering::Relaxed) >= TO_RELEASE);
    }))
    .await;
}

#[tokio::test]
async fn a_snapshot_is_taken_once_its_object_can_be_held() {
    let helper = helper(Act::Answer);
    let (api, _) = failing_at(&helper, usize::MAX - 1).await;
    let mut early = content();
    early["metadata"]["finalizers"] = json!([]);
    api.contents().put(early);
    agent(&helper, &api);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(asked(&helper, "CreateSnapshot"), 0, "it could vanish meanwhile");
    api.contents().put(content());
    until("taking it", || is_ready(&api)).await;
}

#[tokio::test]
async fn what_was_never_said_is_deleted_and_not_taken() {
    for begun in [false, true] {
        let helper = helper(Act::Answer);
        let (api, _) = failing_at(&helper, usize::MAX - 1).await;
        let mut content = released(content());
        if begun {
            content["metadata"]["annotations"][CREATED] = json!("yes");
        }
        api.contents().put(content);
        agent(&helper, &api);
        until("letting it go", || api.contents().get("snapcontent-1").is_none()).await;
        // It may be asked for once more while the watch does not tell yet that the object is let go.
        let deleted = asked(&helper, "DeleteSnapshot");
        assert!(asked(&helper, "CreateSnapshot") == 0 && (1..=2).contains(&deleted), "deleted {deleted} times");
    }
}

#[tokio::test]
async fn a_refusal_is_said_once_and_not_repeated_at_once() {
    let helper = helper(|_| fake::failure(ErrorKind::NoSpace));
    let (api, _) = failing_at(&helper, usize::MAX - 1).await;
    api.contents().put(content());
    agent(&helper, &api);
    let failed = || {
        let content = api.contents().get("snapcontent-1").unwrap();
        content["status"]["readyToUse"] == false && content["metadata"]["annotations"][CREATED].is_null()
    };
    until("saying why", failed).await;
    sleep(Duration::from_secs(4)).await;
    let asked = asked(&helper, "CreateSnapshot");
    assert!((2..=4).contains(&asked), "{asked} attempts");
    let said = api.seen(&Method::PATCH, "/volumesnapshotcontents/snapcontent-1/status").len();
    assert_eq!(said, 1, "the same is said again and again");
    let events = api.seen(&Method::POST, "/events");
    assert!(events.iter().any(|event| event.body["reason"] == "SnapshotCreationFailed"), "{events:?}");
    // Its owner gives up.
    api.contents().put(released(api.contents().get("snapcontent-1").unwrap()));
    until("letting it go", || api.contents().get("snapcontent-1").is_none()).await;
}

#[tokio::test]
async fn another_object_that_needs_the_snapshot_keeps_it() {
    let helper = helper(Act::Answer);
    let (api, _) = failing_at(&helper, usize::MAX - 1).await;
    let mut going = released(content());
    going["status"] = json!({ "readyToUse": true, "snapshotHandle": "snapshot-1" });
    let mut other = content();
    other["metadata"]["name"] = json!("by-hand");
    other["metadata"]["uid"] = json!("c-2");
    other["spec"]["source"] = json!({ "snapshotHandle": "snapshot-1" });
    other["status"] = json!({ "readyToUse": true, "snapshotHandle": "snapshot-1" });
    api.contents().put(other.clone());
    api.contents().put(going);
    agent(&helper, &api);
    let told =
        || api.seen(&Method::POST, "/events").into_iter().any(|event| event.body["reason"] == "SnapshotDeleteError");
    until("saying why", told).await;
    assert_eq!(asked(&helper, "DeleteSnapshot"), 0);
    api.contents().put(released(other));
    until("letting both go", || ["snapcontent-1", "by-hand"].iter().all(|name| api.contents().get(name).is_none()))
        .await;
}

#[tokio::test]
async fn what_a_status_says_deletes_nothing_else() {
    let helper = helper(Act::Answer);
    let (api, _) = failing_at(&helper, usize::MAX - 1).await;
    let mut forged = released(content());
    forged["status"] = json!({ "readyToUse": true, "snapshotHandle": "snapshot-2" });
    api.contents().put(forged);
    agent(&helper, &api);
    until("letting it go", || api.contents().get("snapcontent-1").is_none()).await;
    let deleted = |request: &Request| match request {
        Request::DeleteSnapshot { snapshot } => Some(snapshot.to_string()),
        _ => None,
    };
    // It may be asked for once more while the watch does not tell yet that the object is let go.
    let mut deleted: Vec<_> = helper.seen.lock().unwrap().iter().filter_map(deleted).collect();
    deleted.dedup();
    assert_eq!(deleted, ["snapshot-1"], "the other is another object's");
}

#[tokio::test]
async fn without_the_kind_nothing_is_said() {
    let helper = helper(Act::Answer);
    let api = MockApi::start(helper.directory(), Vec::new(), |_, _| None).await;
    agent(&helper, &api);
    until("asking for it", || !api.seen(&Method::GET, "/apis/snapshot.storage.k8s.io/v1").is_empty()).await;
    sleep(Duration::from_secs(2)).await;
    assert!(api.seen(&Method::GET, "/volumesnapshotcontents").is_empty());
    assert_eq!(api.seen(&Method::GET, "/apis/snapshot.storage.k8s.io/v1").len(), 1, "it is asked again and again");
}
