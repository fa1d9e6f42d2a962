//! Pools and volumes that fail: what the kubelet, the operator and the owner of a claim learn about it, once when it
//! happens and once when it is over.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;
#[allow(dead_code, reason = "each suite uses a part of it")]
mod mock_api;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::http::Method;
use bulkhead_frontend::csi::Plugin;
use bulkhead_frontend::helper::Helper;
use bulkhead_frontend::kubernetes::{Agent, ApiServer, Intervals, Ledger, View};
use bulkhead_frontend::metrics::METRICS;
use bulkhead_frontend::proto::csi::node_server::Node;
use bulkhead_frontend::proto::csi::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse};
use bulkhead_frontend::readiness::Readiness;
use bulkhead_frontend::server::Shutdown;
use bulkhead_frontend::volumes::{NewVolume, Volumes};
use bulkhead_model::findings::Findings;
use bulkhead_model::volumes::{Backing, Mode, Outlook, Parameters, SizeRange};
use bulkhead_protocol::{
    Bytes, Condition, DirectoryMode, Error, ErrorKind, HIGHEST_VERSION, Inodes, Listed, NameHash, Pool, PoolStatus,
    Reply, Request, Text, UpTo, Usage, VolumeKind, VolumeSpec, Welcome,
};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tonic::{Code, Request as Call};

use fake::{Act, FakeHelper, Greeting, PATIENCE, done, failure, no_volumes, welcome};
use mock_api::MockApi;

const VOLUME: &str = "pvc-0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a111";
const MOUNT: &str = "/var/lib/kubelet/pods/0/volumes/kubernetes.io~csi/pvc-0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a111/mount";
const SHUT_DOWN: &str = "the pool's filesystem has shut down after an error, and nothing in it can be read or written; see dmesg, and docs/operate.md for the way out";

const UNSERVED: &str = "volume pvc-0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a111 is not served: it was copied";

/// What the helper currently says.
#[derive(Default)]
struct Said {
    conditions: Vec<Condition>,
    usage: Option<ErrorKind>,
    /// Whether the volume is not served: it is not listed.
    is_unserved: bool,
}

fn helper(said: &Arc<Mutex<Said>>) -> FakeHelper {
    let said = Arc::clone(said);
    let size = Bytes::try_from(1 << 30).unwrap();
    FakeHelper::start(move |request| match request {
        Request::PoolStatus { .. } => {
            let conditions = said.lock().unwrap().conditions.clone().try_into().unwrap();
            let status = PoolStatus { promised: 1 << 30, volumes: 1, conditions, ..fake::status(1 << 40) };
            Act::Answer(Ok(Reply::Pool(status)))
        }
        Request::List { after, .. } => {
            let volume = VOLUME.parse().unwrap();
            let listed = Listed { volume, pool: "default".parse().unwrap(), size, block: false, targets: 1 };
            let is_unserved = said.lock().unwrap().is_unserved;
            let page = if after.is_none() && !is_unserved { vec![listed] } else { Vec::new() };
            Act::Answer(Ok(Reply::Volumes(UpTo::try_from(page).unwrap())))
        }
        Request::Usage { .. } if said.lock().unwrap().is_unserved => {
            Act::Answer(Err(Error::new(ErrorKind::PoolBroken, UNSERVED)))
        }
        Request::Usage { .. } => match said.lock().unwrap().usage {
            Some(kind) => failure(kind),
            None => {
                let kind = VolumeKind::Directory {
                    inodes: Inodes::try_from(1024).unwrap(),
                    mode: DirectoryMode::try_from(0o755).unwrap(),
                };
                Act::Answer(Ok(Reply::Usage(Usage {
                    pool: "default".parse().unwrap(),
                    spec: VolumeSpec { size, kind, name_hash: NameHash([0; 32]) },
                    used_bytes: Some(4096),
                    available_bytes: Some(8192),
                    used_inodes: Some(1),
                    available_inodes: Some(10),
                    targets: 1,
                    condition: None,
                })))
            }
        },
        Request::Create { spec, .. } => Act::Answer(Ok(Reply::Size(spec.size))),
        _ => done(),
    })
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what} did not happen");
        sleep(Duration::from_millis(20)).await;
    }
}

fn persistent_volume() -> Value {
    let here = json!({ "key": "bulkhead.csi.local/node", "operator": "In", "values": ["node-1"] });
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": { "name": VOLUME, "uid": "pv-uid", "resourceVersion": "20",
                      "labels": { "bulkhead.csi.local/node": "node-1" },
                      "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"] },
        "spec": { "persistentVolumeReclaimPolicy": "Delete",
                  "claimRef": { "namespace": "shop", "name": "data", "uid": "claim-uid" },
                  "csi": { "driver": "bulkhead.csi.local", "volumeHandle": VOLUME },
                  "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [here] }] } } },
        "status": { "phase": "Bound" },
    })
}

/// The events with this reason: the kind of the object that each is about, and its note.
fn events(api: &MockApi, reason: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let seen = api.seen(&Method::POST, "/events");
    let of_reason = seen.iter().filter(|seen| seen.body["reason"] == reason);
    of_reason.map(|seen| (text(&seen.body["regarding"]["kind"]), text(&seen.body["note"]))).collect()
}

fn start_agent(api: &MockApi, volumes: &Volumes) {
    let agent = Agent {
        access: ApiServer::kubeconfig(api.kubeconfig(), None),
        namespace: Some("bulkhead-system".to_owned()),
        driver: "bulkhead.csi.local".parse().unwrap(),
        node: "node-1".to_owned(),
        volumes: volumes.clone(),
        ledger: Ledger::default(),
        view: View::of_agent(),
        readiness: Readiness::default(),
        intervals: Intervals {
            census: Duration::from_millis(200),
            capacity: Duration::from_millis(200),
            unservable: Duration::from_millis(200),
            ..Intervals::default()
        },
    };
    tokio::spawn(agent.run(Shutdown::default()));
}

#[tokio::test]
async fn a_pool_that_shuts_down_is_reported_once_and_so_is_its_recovery() {
    let said = Arc::new(Mutex::new(Said::default()));
    let helper = helper(&said);
    let api = MockApi::start(helper.directory(), Vec::new(), |_, _| None).await;
    api.put_volume(&persistent_volume());
    let volumes = Volumes::new(Helper::new(helper.path()));
    start_agent(&api, &volumes);
    let watched = volumes.clone();
    tokio::spawn(async move { watched.watch_health().await });
    until("a look", || METRICS.text().contains("bulkhead_pool_volumes{pool=\"default\"} 1")).await;

    said.lock().unwrap().conditions = vec![Condition::ShutDown];
    // Whoever asks first notices it, or else the next look at the pools does.
    volumes.room(&"default".parse().unwrap(), Backing::Directory).await.unwrap();
    until("an event on the claim", || !events(&api, "VolumeConditionAbnormal").is_empty()).await;
    until("an event on the node", || !events(&api, "PoolConditionAbnormal").is_empty()).await;
    until("the metric", || METRICS.text().contains("bulkhead_pool_abnormal_volumes{pool=\"default\"} 1")).await;
    let condition = "bulkhead_pool_condition{pool=\"default\",condition=\"shut_down\"}";
    assert!(METRICS.text().contains(&format!("{condition} 1")));
    for _ in 0..3 {
        volumes.room(&"default".parse().unwrap(), Backing::Directory).await.unwrap();
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(events(&api, "VolumeConditionAbnormal"), [("PersistentVolumeClaim".to_owned(), SHUT_DOWN.to_owned())]);
    let on_node = events(&api, "PoolConditionAbnormal");
    assert_eq!(on_node, [("Node".to_owned(), format!("pool default: {SHUT_DOWN}"))], "once");

    said.lock().unwrap().conditions.clear();
    volumes.room(&"default".parse().unwrap(), Backing::Directory).await.unwrap();
    until("the volume's recovery", || events(&api, "VolumeConditionNormal").len() == 1).await;
    until("the pool's recovery", || events(&api, "PoolConditionNormal").len() == 1).await;
    let over = "pool default: no longer: its filesystem has shut down after an error";
    assert_eq!(events(&api, "PoolConditionNormal"), [("Node".to_owned(), over.to_owned())]);
    until("the metric", || METRICS.text().contains("bulkhead_pool_abnormal_volumes{pool=\"default\"} 0")).await;
    assert!(METRICS.text().contains(&format!("{condition} 0")));
}

#[tokio::test]
async fn a_volume_that_is_not_served_is_reported_to_who_has_claimed_it() {
    let said = Arc::new(Mutex::new(Said { is_unserved: true, ..Said::default() }));
    let helper = helper(&said);
    let api = MockApi::start(helper.directory(), Vec::new(), |_, _| None).await;
    api.put_volume(&persistent_volume());
    let volumes = Volumes::new(Helper::new(helper.path()));
    start_agent(&api, &volumes);
    until("an event on the claim", || !events(&api, "VolumeConditionAbnormal").is_empty()).await;
    until("the metric", || METRICS.text().contains("bulkhead_unserved_volumes 1")).await;
    assert_eq!(events(&api, "VolumeConditionAbnormal"), [("PersistentVolumeClaim".to_owned(), UNSERVED.to_owned())]);
    let told = Findings::from(&*volumes.health().borrow()).abnormal;
    assert_eq!((told[0].word(), told[0].message.as_str()), ("not-served", UNSERVED));

    said.lock().unwrap().is_unserved = false;
    until("the volume's recovery", || events(&api, "VolumeConditionNormal").len() == 1).await;
    until("the metric", || METRICS.text().contains("bulkhead_unserved_volumes 0")).await;
    assert_eq!(events(&api, "VolumeConditionAbnormal").len(), 1, "once");
}

#[tokio::test]
async fn nothing_new_is_made_in_a_pool_that_is_not_mounted_any_more() {
    let said = Arc::new(Mutex::new(Said { conditions: vec![Condition::Unmounted], ..Said::default() }));
    let helper = helper(&said);
    let volumes = Volumes::new(Helper::new(helper.path()));
    let pool = "default".parse().unwrap();
    let capacity = async || volumes.capacity(&Parameters::default(), None).await.unwrap();
    let new = || NewVolume {
        name: VOLUME.to_owned(),
        mode: Mode::Directory,
        range: SizeRange::ANY,
        parameters: Parameters::default(),
        source: None,
    };
    assert_eq!((capacity().await.available, capacity().await.largest_volume), (0, 0));
    assert!(volumes.health().borrow().is_unmounted(&pool));
    said.lock().unwrap().usage = Some(ErrorKind::NotFound);
    let refused = volumes.provision(new()).await.unwrap_err();
    assert!(refused.is(ErrorKind::PoolBroken) && refused.outlook() == Outlook::NoPool, "{refused}");
    assert!(refused.to_string().contains("mount it there again"), "{refused}");
    assert!(!helper.names().contains(&"Create".to_owned()), "{:?}", helper.names());
    // One that an earlier request has made is found.
    said.lock().unwrap().usage = None;
    volumes.provision(new()).await.unwrap();
    assert!(helper.names().contains(&"Create".to_owned()));

    said.lock().unwrap().usage = Some(ErrorKind::NotFound);
    said.lock().unwrap().conditions.clear();
    assert!(capacity().await.available > 0);
    volumes.provision(new()).await.unwrap();
}

#[tokio::test]
async fn what_an_earlier_agent_has_reported_is_over_for_this_one() {
    let said = Arc::new(Mutex::new(Said { conditions: vec![Condition::QuotasOff], ..Said::default() }));
    let helper = helper(&said);
    let reported = json!({ "default": ["read_only", "quotas_off"], "gone": ["not_served"] }).to_string();
    let annotations = json!({ "bulkhead.csi.local/reported-conditions": reported });
    let lease = json!({ "metadata": { "name": "node-1", "annotations": annotations } });
    let is_its_lease = |method: &Method, path: &str| *method == Method::GET && path.ends_with("/leases/node-1");
    let answers = move |method: &Method, path: &str| {
        is_its_lease(method, path).then(|| mock_api::Fault::Refuse(200, lease.clone()))
    };
    let api = MockApi::start(helper.directory(), Vec::new(), answers).await;
    let volumes = Volumes::new(Helper::new(helper.path()));
    start_agent(&api, &volumes);
    let written = || {
        let leases = api.seen(&Method::PATCH, "/leases/node-1");
        let text = |lease: &mock_api::Seen| {
            lease.body["metadata"]["annotations"]["bulkhead.csi.local/reported-conditions"].as_str().map(str::to_owned)
        };
        leases.iter().filter_map(text).collect::<Vec<_>>()
    };
    until("the Lease", || !written().is_empty()).await;
    assert!(written()[0].contains("read_only"), "before the pools are known: {:?}", written());
    assert!(events(&api, "PoolConditionNormal").is_empty());
    tokio::spawn(async move { volumes.watch_health().await });
    until("the ends", || events(&api, "PoolConditionNormal").len() == 2).await;
    let over = |note: &str| ("Node".to_owned(), note.to_owned());
    assert_eq!(
        events(&api, "PoolConditionNormal"),
        [
            over("pool default: no longer: its filesystem has become read-only"),
            over("pool gone: no longer: the helper does not serve it")
        ]
    );
    until("the Lease", || written().last().is_some_and(|text| text == r#"{"default":["quotas_off"]}"#)).await;
}

#[tokio::test]
async fn an_agent_takes_the_lease_over_at_once_and_notices_one_that_takes_it_back() {
    let said = Arc::new(Mutex::new(Said::default()));
    let helper = helper(&said);
    // What is answered to the writes, in their order: the other agent has written it after the first.
    let written = |version: &str| (200, json!({ "metadata": { "name": "node-1", "resourceVersion": version } }));
    let conflict = (409, mock_api::agent::status(409, "Conflict", 0));
    let mut answers = vec![written("9"), conflict, written("7")];
    let api = MockApi::start(helper.directory(), Vec::new(), move |method: &Method, path: &str| {
        if !path.ends_with("/leases/node-1") {
            return None;
        }
        let now = Timestamp::now().to_string();
        let spec = json!({ "holderIdentity": "node-1_2026-01-01T00:00:00Z", "renewTime": now });
        let lease = (200, json!({ "metadata": { "name": "node-1" }, "spec": spec }));
        let (code, answer) = if *method == Method::GET { lease } else { answers.pop().unwrap_or(written("10")) };
        Some(mock_api::Fault::Refuse(code, answer))
    })
    .await;
    let volumes = Volumes::new(Helper::new(helper.path()));
    start_agent(&api, &volumes);
    let leases = || api.seen(&Method::PATCH, "/leases/node-1");
    let alone = |ready: u8| METRICS.text().contains(&format!("bulkhead_ready{{part=\"only-agent\"}} {ready}"));
    until("the Lease", || !leases().is_empty()).await;
    assert!(!alone(0), "the one before may have ended");
    // Something to write.
    said.lock().unwrap().conditions = vec![Condition::QuotasOff];
    tokio::spawn(async move { volumes.watch_health().await });
    until("the other agent", || alone(0)).await;
    until("the Lease", || leases().len() >= 3).await;
    let versions: Vec<_> = leases().iter().map(|lease| lease.body["metadata"]["resourceVersion"].clone()).collect();
    assert_eq!(versions[..3], [Value::Null, json!("7"), Value::Null]);
    let holders: Vec<_> = leases().iter().map(|lease| lease.body["spec"]["holderIdentity"].clone()).collect();
    assert!(holders[0].as_str().unwrap().starts_with("node-1_") && holders.iter().all(|other| *other == holders[0]));
    // It is said in the Lease as well, in which a write that is no conflict finds nobody else.
    let told =
        |lease: &mock_api::Seen| lease.body["metadata"]["annotations"]["bulkhead.csi.local/not-ready"].to_string();
    until("what the Lease says", || leases().iter().any(|lease| told(lease).contains("works on this node too"))).await;
    until("the end", || alone(1)).await;
}

async fn stats(plugin: &Plugin) -> Result<NodeGetVolumeStatsResponse, Code> {
    let (volume_id, volume_path) = (VOLUME.to_owned(), MOUNT.to_owned());
    let request = NodeGetVolumeStatsRequest { volume_id, volume_path, ..NodeGetVolumeStatsRequest::default() };
    let answer = plugin.node_get_volume_stats(Call::new(request)).await;
    answer.map(tonic::Response::into_inner).map_err(|status| status.code())
}

#[tokio::test]
async fn a_volume_that_cannot_be_measured_any_more_is_abnormal_and_no_error() {
    let said = Arc::new(Mutex::new(Said::default()));
    let helper = helper(&said);
    let volumes = Volumes::new(Helper::new(helper.path()));
    let plugin = Plugin::new("bulkhead.csi.local".parse().unwrap(), "node-1".to_owned(), volumes.clone());
    let before = stats(&plugin).await.unwrap();
    assert!(!before.volume_condition.unwrap().abnormal);
    for kind in [ErrorKind::Io(5), ErrorKind::Io(30), ErrorKind::PoolBroken] {
        said.lock().unwrap().usage = Some(kind);
        let answer = stats(&plugin).await.unwrap();
        let condition = answer.volume_condition.unwrap();
        assert!(condition.abnormal && !condition.message.is_empty(), "{kind:?}");
        // A kubelet ignores an answer without any usage.
        assert_eq!(answer.usage, before.usage);
        assert_eq!(volumes.health().borrow().volumes.len(), 1);
        said.lock().unwrap().usage = None;
        assert!(!stats(&plugin).await.unwrap().volume_condition.unwrap().abnormal);
        assert!(volumes.health().borrow().volumes.is_empty());
    }
    // A problem with the request is not a condition of the volume.
    said.lock().unwrap().usage = Some(ErrorKind::NotFound);
    assert_eq!(stats(&plugin).await.unwrap_err(), Code::NotFound);
    said.lock().unwrap().usage = Some(ErrorKind::Busy);
    assert_eq!(stats(&plugin).await.unwrap_err(), Code::Aborted);
}

#[tokio::test]
async fn a_pool_that_does_not_answer_hides_nothing_of_the_others() {
    let helper = FakeHelper::start(|request| match request {
        Request::PoolStatus { pool } if pool.as_str() == "hanging" => Act::Hang,
        Request::PoolStatus { pool } if pool.as_str() == "busy" => failure(ErrorKind::Busy),
        Request::PoolStatus { .. } => failure(ErrorKind::PoolBroken),
        _ => no_volumes(),
    });
    helper.greet_with(Greeting::Welcome(Box::new(welcome(&["hanging", "busy", "broken"]))));
    let volumes = Volumes::new(Helper::new(helper.path()));
    let (watched, mut health) = (volumes.clone(), volumes.health());
    tokio::spawn(async move { watched.watch_health().await });
    let broken = "broken".parse().unwrap();
    let noticed = health.wait_for(|health| health.pools.contains_key(&broken));
    assert!(timeout(Duration::from_secs(15), noticed).await.is_ok(), "the look waits for the pool that hangs");
}

#[tokio::test]
async fn the_figures_of_a_condition_change_without_news() {
    let said = Arc::new(Mutex::new(Said::default()));
    let helper = helper(&said);
    let volumes = Volumes::new(Helper::new(helper.path()));
    let (mut health, pool) = (volumes.health(), "default".parse().unwrap());
    let promise = |promised, limit| said.lock().unwrap().conditions = vec![Condition::Overpromised { promised, limit }];
    for (limit, is_news, told) in [(8 << 30, true, "may promise 8 GiB"), (7 << 30, false, "may promise 7 GiB")] {
        promise(9 << 30, limit);
        volumes.room(&pool, Backing::Directory).await.unwrap();
        assert_eq!(health.has_changed().unwrap(), is_news);
        let conditions: Vec<_> = health.borrow_and_update().pools[&pool].values().map(ToString::to_string).collect();
        assert!(conditions[0].contains("9 GiB are promised") && conditions[0].contains(told), "{conditions:?}");
    }
}

/// Returns what the agent has last written to its capacity object for the only class: the room, and what is in the way.
fn capacity(api: &MockApi) -> Option<(String, Option<String>)> {
    let written = api.seen(&Method::PATCH, "/csistoragecapacities/").pop()?.body;
    let obstacle = written["metadata"]["annotations"]["bulkhead.csi.local/obstacle"].as_str().map(str::to_owned);
    Some((written["maximumVolumeSize"].as_str()?.to_owned(), obstacle))
}

#[tokio::test]
async fn a_class_that_no_node_can_serve_has_no_room_and_its_claims_are_told() {
    let said = Arc::new(Mutex::new(Said::default()));
    let mut helper = helper(&said);
    let class = json!({ "metadata": { "name": "local" }, "provisioner": "bulkhead.csi.local",
                        "volumeBindingMode": "WaitForFirstConsumer",
                        "parameters": { "csi.storage.k8s.io/fstype": "ext4" } });
    let first = Arc::new(Mutex::new("node-0".to_owned()));
    let others = Arc::new(Mutex::new(vec![Some("ext4"), None]));
    let (lease_of, obstacles) = (Arc::clone(&first), Arc::clone(&others));
    let api = MockApi::start(helper.directory(), vec![class], move |method, path| {
        let items = if path.ends_with("/leases") {
            let lease = |node: &str, renewed: &Timestamp| {
                json!({ "metadata": { "name": node }, "spec": { "renewTime": format!("{renewed:.6}") } })
            };
            vec![lease("dead", &Timestamp::UNIX_EPOCH), lease(&lease_of.lock().unwrap(), &Timestamp::now())]
        } else if path.ends_with("/csistoragecapacities") {
            let object = |(number, obstacle): (usize, &Option<&str>)| {
                let node = json!({ "bulkhead.csi.local/node": format!("node-{number}") });
                let annotations = obstacle.map(|why| json!({ "bulkhead.csi.local/obstacle": why }));
                json!({ "metadata": { "name": number.to_string(), "annotations": annotations },
                        "storageClassName": "local", "nodeTopology": { "matchLabels": node } })
            };
            obstacles.lock().unwrap().iter().enumerate().map(object).collect()
        } else {
            return None;
        };
        let list = json!({ "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items });
        (*method == Method::GET).then_some(mock_api::Fault::Refuse(200, list))
    })
    .await;
    let claim = |name: &str, made: Timestamp| {
        json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": { "name": name, "namespace": "shop", "uid": name, "resourceVersion": "10",
                              "creationTimestamp": made },
                "spec": { "storageClassName": "local", "resources": { "requests": { "storage": "1Gi" } } } })
    };
    api.put(&claim("old", Timestamp::UNIX_EPOCH));
    api.put(&claim("new", Timestamp::now()));
    start_agent(&api, &Volumes::new(Helper::new(helper.path())));
    let why = "filesystem type ext4 is not available: pool default has xfs; leave the type empty, or name another pool";
    until("the capacity", || capacity(&api) == Some(("0".to_owned(), Some(why.to_owned())))).await;
    until("the metric", || METRICS.text().contains("bulkhead_class_obstructed{class=\"local\"} 1")).await;

    let told = || events(&api, "ProvisioningFailed");
    let looks = |part: &str| api.seen(&Method::GET, part).len();
    until("looks of one that is not the first", || looks("/leases") > 3).await;
    // One list was for what an earlier agent may have left.
    assert!(told().is_empty() && looks("/csistoragecapacities") == 1, "another one tells");
    *first.lock().unwrap() = "node-1".to_owned();
    until("looks at the others", || looks("/csistoragecapacities") > 3).await;
    assert!(told().is_empty(), "another node can");
    others.lock().unwrap()[1] = Some("ext4");
    until("an event on the claim", || !told().is_empty()).await;
    let note = format!("no node can make a volume of storage class local: {why}");
    assert!(told().iter().all(|told| *told == ("PersistentVolumeClaim".to_owned(), note.clone())), "{:?}", told());
    let regarding = api.seen(&Method::POST, "/events").pop().unwrap().body["regarding"]["name"].clone();
    assert_eq!(regarding, "old", "the other is new");

    // The pool is made anew on the other filesystem, and the node can.
    let mut now = welcome(&["default"]);
    let pools = now.pools.as_slice().iter().cloned();
    let pools: Vec<_> = pools.map(|pool| Pool { filesystem: Text::new("ext4"), ..pool }).collect();
    now.pools = pools.try_into().unwrap();
    helper.greet_with(Greeting::Welcome(Box::new(now)));
    helper.kill().await;
    helper.run();
    until("the capacity", || capacity(&api).is_some_and(|(room, why)| room != "0" && why.is_none())).await;
}

#[tokio::test]
async fn a_class_of_filesystems_in_images_is_told_from_a_full_one_where_a_pool_has_none() {
    let helper = FakeHelper::start(|request| match request {
        Request::PoolStatus { .. } => Act::Answer(Ok(Reply::Pool(fake::status(1 << 40)))),
        Request::PoolCounts { .. } => fake::counts(0, 0, (0, 0)),
        Request::List { .. } => no_volumes(),
        _ => done(),
    });
    let recent = Welcome { version: HIGHEST_VERSION, ..welcome(&["default"]) };
    helper.greet_with(Greeting::Welcome(Box::new(recent)));
    let class = json!({ "metadata": { "name": "local" }, "provisioner": "bulkhead.csi.local",
                        "volumeBindingMode": "WaitForFirstConsumer", "parameters": { "backing": "image" } });
    let api = MockApi::start(helper.directory(), vec![class], |_, _| None).await;
    start_agent(&api, &Volumes::new(Helper::new(helper.path())));
    let why = "pool default is not configured for filesystems in images (--pool default=DIR,filesystems)";
    until("the capacity", || capacity(&api) == Some(("0".to_owned(), Some(why.to_owned())))).await;
}
