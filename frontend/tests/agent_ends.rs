//! An agent that loses a policy, at any moment of a start, or its token: its work ends within seconds, whoever asks is told at once, and
//! claims are served again once it is back.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;
#[allow(dead_code, reason = "each suite uses a part of it")]
mod mock_api;
#[allow(dead_code, reason = "each suite uses a part of it")]
mod program;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::http::Method;
use bulkhead_model::objects::names::AGENT_POLICIES;
use bulkhead_protocol::{Reply, Request};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::sleep;

use fake::{Act, FakeHelper, done, no_volumes, roomy};
use mock_api::agent::until;
use mock_api::{BINDINGS, Fault, MockApi, POLICIES};
use program::{Frontend, address, get};

/// How long the end may take, and telling of it.
const SOON: Duration = Duration::from_secs(10);

/// How long it may take until claims are served again: an agent that waits for a policy looks every 5 to 10 seconds.
const AGAIN: Duration = Duration::from_secs(20);

/// How long it may take until an exchanged token is noticed: it is looked for every ten seconds.
const EXCHANGED: Duration = Duration::from_secs(60);

/// When the policy is lost.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// Before anything whose label a policy sets is listed.
    BeforeLists,
    /// While the answer to the first request for this list is awaited.
    During(&'static str),
    /// While claims are served.
    AfterLists,
}

impl Moment {
    /// The requests that are held back, by a part of their path.
    fn held(self) -> Option<&'static str> {
        match self {
            Self::BeforeLists => Some("/mutatingadmissionpolicybindings/"),
            Self::During(list) => Some(list),
            Self::AfterLists => None,
        }
    }
}

fn helper() -> FakeHelper {
    helper_that_creates(|request| match request {
        Request::Create { spec, .. } => Act::Answer(Ok(Reply::Size(spec.size))),
        _ => done(),
    })
}

fn helper_that_creates(create: impl Fn(&Request) -> Act + Send + Sync + 'static) -> FakeHelper {
    FakeHelper::start(move |request| match request {
        Request::Create { .. } => create(request),
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

fn claim(number: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": format!("data-{number}"), "namespace": "shop", "resourceVersion": "10",
                      "uid": format!("0d6f2a56-8c1e-4a0e-9d7b-{number:012}"),
                      "annotations": { "volume.kubernetes.io/storage-provisioner": "bulkhead.csi.local",
                                       "volume.kubernetes.io/selected-node": "node-1" } },
        "spec": { "storageClassName": "local", "accessModes": ["ReadWriteOnce"],
                  "resources": { "requests": { "storage": "1Gi" } } },
    })
}

/// Another driver's, so that the kind is known and there is nothing to do.
fn foreign_content() -> Value {
    json!({ "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": { "name": "other", "uid": "0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a999" },
            "spec": { "driver": "other.example.com", "deletionPolicy": "Retain",
                      "source": { "snapshotHandle": "other" },
                      "volumeSnapshotRef": { "name": "other", "namespace": "shop", "uid": "other" } } })
}

/// The agent of a node, in front of an API server.
struct World {
    api: MockApi,
    helper: FakeHelper,
    frontend: Frontend,
    metrics: String,
    /// The file with the agent's token.
    token: PathBuf,
}

impl World {
    async fn start(helper: FakeHelper, rule: impl FnMut(&Method, &str) -> Option<Fault> + Send + 'static) -> Self {
        let api = MockApi::start(helper.directory(), classes(), rule).await;
        api.contents().put(foreign_content());
        let token = api.keep_token_in_file();
        let endpoint = format!("unix://{}", helper.directory().join("csi.sock").display());
        let kubeconfig = api.kubeconfig().display().to_string();
        let options = [
            "--csi-endpoint", &endpoint, "--kubeconfig", &kubeconfig, "--namespace", "storage", "--metrics-address",
            "127.0.0.1:0",
        ];
        let frontend = Frontend::start(&helper, &options);
        let metrics = address(&frontend).await;
        frontend.says(" working for Kubernetes node=").await;
        until("watching the policies", || {
            (api.policies().is_watched(POLICIES) && api.policies().is_watched(BINDINGS)).then_some(())
        })
        .await;
        Self { api, helper, frontend, metrics, token }
    }

    /// Waits until readyz says `part`, and returns how long that takes; at most `limit`.
    async fn answers(&self, part: &str, limit: Duration) -> Duration {
        let begun = Instant::now();
        loop {
            let (_, text) = get(&self.metrics, "/readyz").await;
            if text.contains(part) {
                return begun.elapsed();
            }
            assert!(begun.elapsed() < limit, "after {limit:?}, readyz says: {text}\nlog: {}", self.frontend.log());
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until `is_so`, and returns how long that takes; at most `limit`.
    async fn waits(&self, what: &str, limit: Duration, is_so: impl Fn(&Self) -> bool) -> Duration {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < limit, "{what}: not within {limit:?}; log: {}", self.frontend.log());
            sleep(Duration::from_millis(20)).await;
        }
        begun.elapsed()
    }

    /// How many PersistentVolumes have been made for the claim of that number.
    fn made(&self, number: u32) -> usize {
        let posted = self.api.seen(&Method::POST, "/persistentvolumes");
        let name = format!("data-{number}");
        posted.iter().filter(|seen| seen.body["spec"]["claimRef"]["name"] == name.as_str()).count()
    }
}

/// Loses the object called `name` of the list `of` at `moment`, and puts it back.
async fn lose_and_return(moment: Moment, of: &'static str, name: &'static str) {
    let (is_held, release) = (Arc::new(AtomicBool::new(true)), Arc::new(Notify::new()));
    let (held, released) = (Arc::clone(&is_held), Arc::clone(&release));
    let world = World::start(helper(), move |method, path| {
        let part = moment.held().filter(|_| *method == Method::GET && held.load(Ordering::SeqCst))?;
        (path.ends_with(part) || path.contains(part) && part.ends_with('/')).then(|| Fault::Late(Arc::clone(&released)))
    })
    .await;
    let api = &world.api;
    match moment {
        Moment::AfterLists => {
            world.waits("watching claims", AGAIN, |world| world.api.is_watched()).await;
            api.put_and_report(&claim(1));
            world.waits("serving a claim", AGAIN, |world| world.made(1) > 0).await;
        }
        _ => drop(world.waits("a request that is held", AGAIN, |world| world.api.waiting() > 0).await),
    }

    api.policies().lose(of, name);
    let told = world.answers("[-]agent not ready", SOON).await;
    let kind = if of == POLICIES { "ValidatingAdmissionPolicy" } else { "ValidatingAdmissionPolicyBinding" };
    let reason = format!("not working for Kubernetes any more: {kind} {name} is missing");
    world.waits("logging the reason", SOON, |world| world.frontend.log().contains(&reason)).await;
    let ended =
        world.waits("the end of the watches", SOON, |world| world.api.waiting() == 0 && !world.api.is_watched()).await;

    // What the watches would bring now is none of its business.
    is_held.store(false, Ordering::SeqCst);
    release.notify_waiters();
    api.put_and_report(&claim(2));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.made(2), 0, "{moment:?}, {name}: it works without its policies");
    assert!(get(&world.metrics, "/readyz").await.1.contains("[-]agent not ready"));

    api.policies().put_back(of, name);
    let again = world.waits("serving a claim again", AGAIN, |world| world.made(2) > 0).await;
    world.answers("[+]agent ok", SOON).await;
    println!("{moment:?}, {of} {name}: told after {told:.1?}, ended after {ended:.1?}, served again after {again:.1?}");
}

async fn lose_and_return_each(moment: Moment) {
    let objects = AGENT_POLICIES.into_iter().flat_map(|name| [(POLICIES, name), (BINDINGS, name)]);
    join_all(objects.map(|(of, name)| lose_and_return(moment, of, name))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_the_first_lists() {
    lose_and_return_each(Moment::BeforeLists).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn during_the_first_list_of_claims() {
    lose_and_return_each(Moment::During("/persistentvolumeclaims")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn during_the_first_list_of_classes() {
    lose_and_return_each(Moment::During("/storageclasses")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn during_the_first_list_of_persistent_volumes() {
    lose_and_return_each(Moment::During("/persistentvolumes")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn during_the_first_list_of_snapshots() {
    lose_and_return_each(Moment::During("/volumesnapshotcontents")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_first_lists() {
    lose_and_return_each(Moment::AfterLists).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_in_progress_is_completed_and_one_that_hangs_is_given_up() {
    let (creations, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (number, later) = (Arc::clone(&creations), Arc::clone(&answer));
    let helper = helper_that_creates(move |request| match (request, number.fetch_add(1, Ordering::SeqCst)) {
        (Request::Create { spec, .. }, 0) => Act::Later(Arc::clone(&later), Ok(Reply::Size(spec.size))),
        (Request::Create { .. }, 1) => Act::Hang,
        (Request::Create { spec, .. }, _) => Act::Answer(Ok(Reply::Size(spec.size))),
        _ => done(),
    });
    let world = World::start(helper, |_, _| None).await;
    world.waits("watching claims", AGAIN, |world| world.api.is_watched()).await;
    for number in [1, 2] {
        world.api.put_and_report(&claim(number));
        let begun = |_: &World| creations.load(Ordering::SeqCst) >= number as usize;
        world.waits("making a volume", AGAIN, begun).await;
    }
    let name = AGENT_POLICIES[0];
    world.api.policies().lose(BINDINGS, name);
    world.answers("[-]agent not ready", SOON).await;
    answer.notify_one();
    world.waits("completing the change", SOON, |world| world.made(1) > 0).await;
    let abandoned = |world: &World| world.frontend.log().contains("did not end within 10 seconds and is abandoned");
    world.waits("giving up the one that hangs", Duration::from_secs(15), abandoned).await;
    assert_eq!(world.made(2), 0);
    assert_eq!(world.helper.names().iter().filter(|name| *name == "Create").count(), 2);
    world.api.policies().put_back(BINDINGS, name);
    world.waits("taking it up again", AGAIN, |world| world.made(2) > 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_waits_for_a_late_list_begins_when_it_comes() {
    for list in ["/storageclasses", "/persistentvolumes"] {
        let (is_held, release) = (Arc::new(AtomicBool::new(true)), Arc::new(Notify::new()));
        let (held, released) = (Arc::clone(&is_held), Arc::clone(&release));
        let world = World::start(helper(), move |method, path| {
            let is_late = *method == Method::GET && path.ends_with(list) && held.load(Ordering::SeqCst);
            is_late.then(|| Fault::Late(Arc::clone(&released)))
        })
        .await;
        world.waits("a request that is held", AGAIN, |world| world.api.waiting() > 0 && world.api.is_watched()).await;
        [1, 2, 3].iter().for_each(|number| world.api.put_and_report(&claim(*number)));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(world.made(1), 0, "what is not listed is taken for missing");
        is_held.store(false, Ordering::SeqCst);
        release.notify_waiters();
        world.waits("serving all claims", SOON, |world| (1..4).all(|number| world.made(number) > 0)).await;
        world.waits("the Lease", SOON, |world| !world.api.seen(&Method::PATCH, "/leases").is_empty()).await;
    }
}

/// What the API server says of a token that is bound to no node.
fn of_no_node() -> Value {
    let user = json!({ "username": "system:serviceaccount:storage:bulkhead-agent" });
    json!({ "metadata": {}, "status": { "userInfo": user } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_exchanged_while_it_is_looked_at_is_looked_at_again() {
    let helper = helper();
    let (token, mut is_exchanged) = (helper.directory().join("token"), false);
    let world = World::start(helper, move |method, path| {
        if *method != Method::POST || !path.ends_with("/selfsubjectreviews") {
            return None;
        }
        if is_exchanged {
            return Some(Fault::Refuse(201, of_no_node()));
        }
        is_exchanged = true;
        fs::write(&token, "bound to no node").unwrap();
        None
    })
    .await;
    world.answers("[-]agent not ready: the token is bound to no node", AGAIN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_exchanged_for_one_of_no_node_is_noticed_soon() {
    let is_bound = Arc::new(AtomicBool::new(true));
    let bound = Arc::clone(&is_bound);
    let world = World::start(helper(), move |method, path| {
        let is_review = *method == Method::POST && path.ends_with("/selfsubjectreviews");
        (is_review && !bound.load(Ordering::SeqCst)).then_some(Fault::Refuse(201, of_no_node()))
    })
    .await;
    world.waits("watching claims", AGAIN, |world| world.api.is_watched()).await;
    let exchange = |token: &str, is_bound_now| {
        is_bound.store(is_bound_now, Ordering::SeqCst);
        fs::write(&world.token, token).unwrap();
    };
    exchange("bound, too", true);
    sleep(Duration::from_secs(25)).await;
    let reviews = world.api.seen(&Method::POST, "/selfsubjectreviews").len();
    assert_eq!(reviews, 2, "one for each token");
    assert!(get(&world.metrics, "/readyz").await.1.contains("[+]agent ok"));

    exchange("bound to no node", false);
    let told = world.answers("[-]agent not ready: the token is bound to no node", EXCHANGED).await;
    world.waits("the end of the watches", SOON, |world| !world.api.is_watched()).await;
    world.api.put_and_report(&claim(1));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.made(1), 0, "all that it writes would be refused");

    exchange("bound again", true);
    let again = world.waits("serving a claim again", AGAIN, |world| world.made(1) > 0).await;
    world.answers("[+]agent ok", SOON).await;
    println!("told after {told:.1?}, served again after {again:.1?}");
}
