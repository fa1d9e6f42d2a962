//! The agent's behaviour when the API server fails in ways that a real one cannot be made to fail.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;
#[allow(dead_code, reason = "each suite uses a part of it")]
mod mock_api;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::Method;
use bulkhead_frontend::kubernetes::{Owner, Ownership, View};
use bulkhead_protocol::{ErrorKind, Listed, Reply, Request, Response, VolumeId, Welcome};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use fake::{Act, FakeHelper, Greeting, PATIENCE};
use mock_api::agent::{run as agent, status, until};
use mock_api::{Fault, MockApi};

const UID: &str = "0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a111";

/// A helper that creates every volume.
fn helper() -> FakeHelper {
    helper_that_creates(Act::Answer)
}

/// A helper that replies in this way when a volume is created.
fn helper_that_creates(answer: impl Fn(Response) -> Act + Send + Sync + 'static) -> FakeHelper {
    FakeHelper::start(move |request| match request {
        Request::Create { spec, .. } => answer(Ok(Reply::Size(spec.size))),
        Request::List { .. } => fake::no_volumes(),
        Request::PoolStatus { .. } => fake::roomy(),
        _ => fake::done(),
    })
}

fn class(binding: &str) -> Value {
    json!({ "metadata": { "name": "local" }, "provisioner": "bulkhead.csi.local", "volumeBindingMode": binding })
}

fn claim(version: u32, node: Option<&str>) -> Value {
    let mut annotations = json!({ "volume.kubernetes.io/storage-provisioner": "bulkhead.csi.local" });
    if let Some(node) = node {
        annotations["volume.kubernetes.io/selected-node"] = json!(node);
    }
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": "data", "namespace": "shop", "uid": UID,
                      "resourceVersion": version.to_string(), "annotations": annotations },
        "spec": { "storageClassName": "local", "accessModes": ["ReadWriteOnce"],
                  "resources": { "requests": { "storage": "1Gi" } } },
    })
}

#[tokio::test]
async fn a_claim_that_another_node_takes_is_given_up() {
    let helper = helper();
    let api = MockApi::start(helper.directory(), vec![class("Immediate")], |method, path| {
        let taking = *method == Method::PATCH && path.ends_with("/persistentvolumeclaims/data");
        taking.then(|| Fault::Refuse(409, status(409, "Conflict", 0)))
    })
    .await;
    api.put(&claim(10, None));
    agent(&helper, &api);
    let taken = until("taking the claim", || api.seen(&Method::PATCH, "/persistentvolumeclaims/data").pop()).await;
    assert_eq!(taken.body["metadata"]["resourceVersion"], "10");
    api.put_and_report(&claim(11, Some("node-2")));
    sleep(Duration::from_secs(1)).await;
    let so_far = api.seen(&Method::PATCH, "/persistentvolumeclaims/data").len();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(api.seen(&Method::PATCH, "/persistentvolumeclaims/data").len(), so_far);
    assert!(!helper.names().contains(&"Create".to_owned()));
}

#[tokio::test]
async fn a_busy_server_is_left_alone_for_as_long_as_it_asks() {
    let helper = helper();
    let mut refusals = 1;
    let api = MockApi::start(helper.directory(), vec![class("WaitForFirstConsumer")], move |method, path| {
        let creating = *method == Method::POST && path.ends_with("/persistentvolumes");
        (creating && std::mem::take(&mut refusals) > 0).then_some(Fault::Busy(3))
    })
    .await;
    api.put(&claim(10, Some("node-1")));
    agent(&helper, &api);
    let creations = until("a second attempt", || {
        Some(api.seen(&Method::POST, "/persistentvolumes")).filter(|seen| seen.len() == 2)
    })
    .await;
    assert!(creations[1].at - creations[0].at >= Duration::from_secs(3));
    assert_eq!(creations[1].body["metadata"]["name"], format!("pvc-{UID}.node-1"));
    assert_eq!(creations[1].body["spec"]["csi"]["volumeHandle"], format!("pvc-{UID}"));
    assert_eq!(creations[0].body, creations[1].body, "the second attempt is for the same volume");
}

#[tokio::test]
async fn a_claim_whose_object_exists_is_not_given_back() {
    let helper = helper_that_creates(|_| fake::failure(ErrorKind::PoolBroken));
    let api = MockApi::start(helper.directory(), vec![class("WaitForFirstConsumer")], |_, _| None).await;
    agent(&helper, &api);
    until("a watch", || api.is_watched().then_some(())).await;
    // The API server has made it, and neither its answer nor the watch has said so.
    api.put_volume(&json!({ "metadata": { "name": format!("pvc-{UID}.node-1"), "resourceVersion": "11" } }));
    api.put_and_report(&claim(10, Some("node-1")));
    until("a question", || api.seen(&Method::GET, &format!("/persistentvolumes/pvc-{UID}.node-1")).pop()).await;
    sleep(Duration::from_secs(1)).await;
    // It may label the claim meanwhile.
    let mut changes = api.seen(&Method::PATCH, "/persistentvolumeclaims/data");
    changes.retain(|change| !change.body["metadata"]["annotations"].is_null());
    assert!(changes.is_empty(), "{changes:?}, after {:?}", api.seen(&Method::GET, "/persistentvolumes/"));
}

#[tokio::test]
async fn an_agent_that_may_not_know_its_cluster_asks_again() {
    let helper = helper();
    let api = MockApi::start(helper.directory(), vec![class("WaitForFirstConsumer")], |_, path| {
        path.ends_with("/kube-system").then(|| Fault::Refuse(403, status(403, "Forbidden", 0)))
    })
    .await;
    agent(&helper, &api);
    let asked =
        until("the second question", || Some(api.seen(&Method::GET, "/kube-system")).filter(|seen| seen.len() == 2))
            .await;
    assert!(asked[1].at - asked[0].at >= Duration::from_secs(10));
}

#[tokio::test]
async fn an_expired_watch_starts_again_with_a_list() {
    let helper = helper();
    let api = MockApi::start(helper.directory(), vec![class("WaitForFirstConsumer")], |_, _| None).await;
    agent(&helper, &api);
    until("a watch", || api.is_watched().then_some(())).await;
    // The watch does not report this.
    api.put(&claim(10, Some("node-1")));
    sleep(Duration::from_millis(500)).await;
    assert!(api.seen(&Method::POST, "/persistentvolumes").is_empty());
    api.expire();
    until("provisioning", || api.seen(&Method::POST, "/persistentvolumes").pop()).await;
}

/// The PersistentVolumes created for a claim of a retaining class when `change` happens to the claim during the
/// creation of its volume.
async fn made_after(change: impl FnOnce(&MockApi)) -> Vec<mock_api::Seen> {
    let may_go_on = Arc::new(Notify::new());
    let waited_for = Arc::clone(&may_go_on);
    let helper = helper_that_creates(move |answer| Act::Later(Arc::clone(&waited_for), answer));
    let mut retaining = class("WaitForFirstConsumer");
    retaining["reclaimPolicy"] = json!("Retain");
    let api = MockApi::start(helper.directory(), vec![retaining], |_, _| None).await;
    api.put(&claim(10, Some("node-1")));
    agent(&helper, &api);
    until("making a volume", || helper.names().contains(&"Create".to_owned()).then_some(())).await;
    // The claim is known from the list before it.
    until("a watch", || (api.watches() == 1).then_some(())).await;
    change(&api);
    api.expire();
    // It follows a new list.
    until("another watch", || (api.watches() == 2).then_some(())).await;
    sleep(Duration::from_millis(200)).await;
    may_go_on.notify_one();
    sleep(Duration::from_secs(2)).await;
    api.seen(&Method::POST, "/persistentvolumes")
}

#[tokio::test]
async fn a_claim_that_only_the_watch_has_lost_keeps_its_policy() {
    let made = made_after(MockApi::unlist).await;
    assert_eq!(made[0].body["spec"]["persistentVolumeReclaimPolicy"], "Retain");
}

#[tokio::test]
async fn the_volume_of_a_deleted_claim_is_deleted_too() {
    let made = made_after(MockApi::clear).await;
    assert_eq!(made[0].body["spec"]["persistentVolumeReclaimPolicy"], "Delete");
}

#[tokio::test]
async fn a_claim_that_was_given_to_another_node_gets_no_volume_of_this_one() {
    let made = made_after(|api| api.put(&claim(11, Some("node-2")))).await;
    assert!(made.is_empty(), "{made:?}");
}

#[tokio::test]
async fn a_server_that_never_answers_is_asked_again() {
    let helper = helper();
    let mut hanging = 1;
    let api = MockApi::start(helper.directory(), vec![class("WaitForFirstConsumer")], move |method, path| {
        let creating = *method == Method::POST && path.ends_with("/persistentvolumes");
        (creating && std::mem::take(&mut hanging) > 0).then_some(Fault::Hang)
    })
    .await;
    api.put(&claim(10, Some("node-1")));
    agent(&helper, &api);
    until("a first attempt", || api.seen(&Method::POST, "/persistentvolumes").pop()).await;
    until("a second one", || (api.seen(&Method::POST, "/persistentvolumes").len() == 2).then_some(())).await;
}

/// The requests by which a claim of this class for `node-1` is given back, once `helper` has refused its volume.
async fn given_back(helper: &FakeHelper, parameters: Value) -> Vec<mock_api::Seen> {
    let mut class = class("WaitForFirstConsumer");
    class["parameters"] = parameters;
    let api = MockApi::start(helper.directory(), vec![class], |_, _| None).await;
    api.put(&claim(10, Some("node-1")));
    agent(helper, &api);
    let is_given_back = |seen: &mock_api::Seen| {
        seen.body["metadata"]["annotations"].get("volume.kubernetes.io/selected-node") == Some(&Value::Null)
    };
    until("the claim to be given back", || {
        api.seen(&Method::PATCH, "/persistentvolumeclaims/data").into_iter().find(is_given_back)
    })
    .await;
    api.seen(&Method::PATCH, "/")
}

#[tokio::test]
async fn a_claim_whose_pool_fails_or_is_not_there_is_given_back_without_capacity() {
    let failing = helper_that_creates(|_| fake::failure(ErrorKind::Io(5)));
    for (helper, parameters) in [(failing, json!({})), (helper(), json!({ "pool": "fast" }))] {
        let patches = given_back(&helper, parameters).await;
        let last = patches.iter().rev().find(|seen| seen.path.contains("/csistoragecapacities/")).unwrap();
        let largest = last.body["maximumVolumeSize"].as_str().unwrap();
        assert!(largest == "0" || largest == "1073741823", "a volume of 1 GiB would be offered: {largest}");
    }
}

#[tokio::test]
async fn another_nodes_claim_costs_nothing() {
    let helper = helper();
    let api = MockApi::start(helper.directory(), vec![class("WaitForFirstConsumer")], |_, _| None).await;
    api.put(&claim(10, Some("node-2")));
    agent(&helper, &api);
    until("a watch", || api.is_watched().then_some(())).await;
    for version in 11..20 {
        api.put_and_report(&claim(version, Some("node-2")));
    }
    sleep(Duration::from_secs(1)).await;
    let writes = |method: Method| api.seen(&method, "").into_iter().filter(|seen| !seen.path.contains("review"));
    let own = ["csistoragecapacities", "leases"];
    let foreign = |seen: &mock_api::Seen| !own.iter().any(|own| seen.path.contains(own));
    assert_eq!(writes(Method::POST).chain(writes(Method::PATCH)).filter(foreign).count(), 0);
    assert!(!helper.names().contains(&"Create".to_owned()));
}

#[tokio::test]
async fn the_sweep_deletes_no_volume_whose_claim_is_back() {
    let volume: VolumeId = format!("pvc-{UID}").parse().unwrap();
    let listed = volume.clone();
    let helper = FakeHelper::start(move |request| match request {
        Request::List { after: None, .. } => {
            let (pool, size) = ("default".parse().unwrap(), (1 << 30).try_into().unwrap());
            let volume = Listed { volume: listed.clone(), pool, size, block: false, targets: 0 };
            Act::Answer(Ok(Reply::Volumes(vec![volume].try_into().unwrap())))
        }
        Request::List { .. } => fake::no_volumes(),
        Request::Create { spec, .. } => Act::Answer(Ok(Reply::Size(spec.size))),
        Request::PoolStatus { .. } => fake::roomy(),
        _ => fake::done(),
    });
    // The first version that can delete orphans.
    helper.greet_with(Greeting::Welcome(Box::new(Welcome { version: 2, ..fake::welcome(&["default"]) })));
    let swept = Arc::new(Notify::new());
    let (late, mut lists) = (Arc::clone(&swept), 0);
    let api = MockApi::start(helper.directory(), vec![class("WaitForFirstConsumer")], move |method, path| {
        // The first is the list that the watch starts with, the second the watch itself.
        let sweeping = *method == Method::GET && path.ends_with("/persistentvolumes") && {
            lists += 1;
            lists == 3
        };
        sweeping.then(|| Fault::Late(Arc::clone(&late)))
    })
    .await;
    agent(&helper, &api);
    until("a watch", || api.is_watched().then_some(())).await;
    // The volume was made here, and then its claim was given to another node.
    api.put(&claim(10, Some("node-2")));
    let lists = || api.seen(&Method::GET, "/persistentvolumes");
    until("the sweep", || (lists().len() == 3).then_some(())).await;
    // While the PersistentVolumes are listed, the claim comes back, and this node's agent may work on it.
    api.put_and_report(&claim(11, Some("node-1")));
    sleep(Duration::from_secs(2)).await;
    swept.notify_one();
    until("provisioning", || api.seen(&Method::POST, "/persistentvolumes").pop()).await;
    sleep(Duration::from_secs(1)).await;
    assert!(!helper.names().contains(&"DeleteUnused".to_owned()), "{:?}", helper.names());
}

/// The PersistentVolume of [`claim`]'s volume, in this phase.
fn persistent_volume(phase: &str) -> Value {
    let here = json!({ "key": "bulkhead.csi.local/node", "operator": "In", "values": ["node-1"] });
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": { "name": format!("pvc-{UID}"), "uid": "pv-uid", "resourceVersion": "20",
                      "labels": { "bulkhead.csi.local/node": "node-1" },
                      "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"] },
        "spec": { "persistentVolumeReclaimPolicy": "Delete",
                  "claimRef": { "namespace": "shop", "name": "data", "uid": UID },
                  "csi": { "driver": "bulkhead.csi.local", "volumeHandle": format!("pvc-{UID}") },
                  "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [here] }] } } },
        "status": { "phase": phase },
    })
}

#[tokio::test]
async fn an_object_of_an_older_release_is_enough_for_a_claim() {
    let helper = helper();
    let api = MockApi::start(helper.directory(), vec![class("WaitForFirstConsumer")], |_, _| None).await;
    // Its name does not say the node. The control plane is about to bind the claim to it.
    api.put_volume(&persistent_volume("Available"));
    api.put(&claim(10, Some("node-1")));
    agent(&helper, &api);
    until("a look at the claims", || api.seen(&Method::GET, "/persistentvolumeclaims").pop()).await;
    sleep(Duration::from_secs(2)).await;
    assert!(!helper.names().contains(&"Create".to_owned()), "{:?}", helper.names());
    assert!(api.seen(&Method::POST, "/persistentvolumes").is_empty(), "two objects would name one volume");
}

#[tokio::test]
async fn a_released_volume_whose_claim_exists_is_not_deleted() {
    let helper = helper();
    let api = MockApi::start(helper.directory(), vec![class("WaitForFirstConsumer")], |_, _| None).await;
    // Anyone who may write the phase of PersistentVolumes may be wrong, or lie.
    api.put_volume(&persistent_volume("Released"));
    api.put(&claim(10, Some("node-2")));
    agent(&helper, &api);
    let event = until("an event", || api.seen(&Method::POST, "/events").pop()).await;
    assert_eq!(event.body["reason"], "VolumeFailedDelete");
    assert!(event.body["note"].as_str().unwrap().contains("shop/data"), "{}", event.body);
    assert!(!helper.names().contains(&"Delete".to_owned()), "{:?}", helper.names());
    assert!(api.seen(&Method::DELETE, "/persistentvolumes").is_empty());
}

#[tokio::test]
async fn a_released_volume_whose_claim_is_gone_is_deleted() {
    let helper = helper();
    let api = MockApi::start(helper.directory(), vec![class("WaitForFirstConsumer")], |_, _| None).await;
    api.put_volume(&persistent_volume("Released"));
    // Another claim of the same name.
    let mut other = claim(10, Some("node-2"));
    other["metadata"]["uid"] = json!("11111111-8c1e-4a0e-9d7b-0f4bb8c6a111");
    api.put(&other);
    agent(&helper, &api);
    until("deleting", || api.seen(&Method::DELETE, "/persistentvolumes").pop()).await;
    assert!(helper.names().contains(&"Delete".to_owned()));
}

#[tokio::test]
async fn a_volume_that_is_not_reserved_any_more_is_not_deleted() {
    let helper = helper();
    let api = MockApi::start(helper.directory(), vec![class("WaitForFirstConsumer")], |_, _| None).await;
    // An administrator has just made it available again, and the control plane has not changed its phase yet.
    let mut volume = persistent_volume("Released");
    volume["spec"]["claimRef"].as_object_mut().unwrap().remove("uid");
    api.put_volume(&volume);
    agent(&helper, &api);
    until("a watch", || (api.seen(&Method::GET, "/persistentvolumes").len() >= 2).then_some(())).await;
    sleep(Duration::from_secs(1)).await;
    assert!(!helper.names().contains(&"Delete".to_owned()), "{:?}", helper.names());
}

#[tokio::test]
async fn a_deleted_object_that_no_claim_uses_is_let_go() {
    for phase in ["Available", "Pending", "Failed"] {
        let helper = helper();
        let api = MockApi::start(helper.directory(), vec![class("WaitForFirstConsumer")], |_, _| None).await;
        let mut volume = persistent_volume(phase);
        volume["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        api.put_volume(&volume);
        agent(&helper, &api);
        let patched = until("the finalizer to go", || api.seen(&Method::PATCH, "/persistentvolumes/").pop()).await;
        let metadata = &patched.body["metadata"];
        assert_eq!(metadata["$deleteFromPrimitiveList/finalizers"].as_array().map(Vec::len), Some(1), "{phase}");
        assert_eq!(metadata["resourceVersion"], "20", "it may be bound meanwhile");
        assert!(!helper.names().contains(&"Delete".to_owned()), "its data stays: {phase}");
    }
}

#[tokio::test]
async fn a_watch_whose_list_or_start_hangs_is_not_deaf() {
    let watched = ["/storageclasses", "/persistentvolumes", "/persistentvolumeclaims"];
    // The first request is the list, the second starts the watch.
    let hanging = watched.into_iter().flat_map(|path| [(path, 1), (path, 2)]);
    join_all(hanging.map(|(path, number)| is_asked_for_again(path, number))).await;
}

/// Checks that what is listed and watched at `path` is requested again after request `number` hangs.
async fn is_asked_for_again(path: &'static str, number: usize) {
    let helper = helper();
    let mut asked = 0;
    let api = MockApi::start(helper.directory(), vec![class("WaitForFirstConsumer")], move |method, seen| {
        let is_watched = *method == Method::GET && seen.ends_with(path);
        asked += usize::from(is_watched);
        (is_watched && asked == number).then_some(Fault::Hang)
    })
    .await;
    agent(&helper, &api);
    let what = format!("request {} for {path}", number + 1);
    until(&what, || (api.seen(&Method::GET, path).len() > number).then_some(())).await;
}

#[tokio::test]
async fn an_agent_whose_policies_are_not_in_force_does_not_start() {
    for (of, missing) in [
        (mock_api::POLICIES, "bulkhead-agent-claims"),
        (mock_api::POLICIES, "bulkhead-agent-bindings"),
        (mock_api::BINDINGS, "bulkhead-agent-events"),
    ] {
        let helper = helper();
        let api = MockApi::start(helper.directory(), vec![class("WaitForFirstConsumer")], move |_, path| {
            let list = path.ends_with(of).then(|| mock_api::policies::confined_without(path, missing)).flatten();
            list.map(|list| Fault::Refuse(200, list))
        })
        .await;
        api.put(&claim(10, Some("node-1")));
        agent(&helper, &api);
        until("a look at the policies", || api.seen(&Method::GET, of).pop()).await;
        sleep(Duration::from_secs(1)).await;
        assert!(api.seen(&Method::GET, "/persistentvolumeclaims").is_empty(), "{missing}");
        assert!(!helper.names().contains(&"Create".to_owned()), "{missing}");
    }
}

#[tokio::test]
async fn an_event_that_hangs_holds_up_no_other() {
    let helper = helper();
    let mut hanging = 1;
    let api = MockApi::start(helper.directory(), vec![class("WaitForFirstConsumer")], move |method, path| {
        let reporting = *method == Method::POST && path.ends_with("/events");
        (reporting && std::mem::take(&mut hanging) > 0).then_some(Fault::Hang)
    })
    .await;
    let mut without_class = claim(10, Some("node-1"));
    without_class["spec"]["storageClassName"] = json!("missing");
    api.put(&without_class);
    agent(&helper, &api);
    let failed = until("the first event", || api.seen(&Method::POST, "/events").pop()).await;
    assert_eq!(failed.body["reason"], "ProvisioningFailed");
    api.put_and_report(&claim(11, Some("node-1")));
    let succeeded = until("the second event", || api.seen(&Method::POST, "/events").into_iter().nth(1)).await;
    assert_eq!(succeeded.body["reason"], "ProvisioningSucceeded");
    // The API server has 15 s to answer.
    assert!(succeeded.at - failed.at < Duration::from_secs(12), "it came {:?} later", succeeded.at - failed.at);
}

/// What `bulkheadctl volume delete` relies on.
#[tokio::test]
async fn a_volume_is_called_nobodys_only_by_an_api_server_that_answers() {
    let helper = helper();
    let hangs = Arc::new(AtomicBool::new(false));
    let hang = Arc::clone(&hangs);
    let api = MockApi::start(helper.directory(), vec![class("WaitForFirstConsumer")], move |method, path| {
        let listing = *method == Method::GET && path.contains("/persistentvolumes");
        (listing && hang.load(Ordering::SeqCst)).then_some(Fault::Hang)
    })
    .await;
    let view = agent(&helper, &api);
    let volume: VolumeId = format!("pvc-{UID}").parse().unwrap();
    let end = Instant::now() + PATIENCE;
    loop {
        match view.ownership(&volume).await {
            Ownership::Known(None) => break,
            Ownership::Unknown(_) if Instant::now() < end => sleep(Duration::from_millis(50)).await,
            other => panic!("{other:?}"),
        }
    }
    // The watch does not report this one.
    api.put_volume(&persistent_volume("Bound"));
    let claim = Some(("shop".to_owned(), "data".to_owned()));
    let owner = Owner { persistent_volume: volume.to_string(), claim };
    assert_eq!(view.ownership(&volume).await, Ownership::Known(Some(owner)));
    hangs.store(true, Ordering::SeqCst);
    let silent = view.ownership(&volume).await;
    assert!(matches!(&silent, Ownership::Unknown(why) if why.contains("5 seconds")), "{silent:?}");
    assert!(matches!(View::elsewhere().ownership(&volume).await, Ownership::Unknown(_)));
    assert_eq!(View::without_agent().ownership(&volume).await, Ownership::NoAgent);
}
