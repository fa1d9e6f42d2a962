//! Noticing that the API server has gone back in time, as it does when etcd is restored from a backup.
//!
//! A watch that resumes from a revision of the lost future is accepted, and then hears nothing: neither an error nor an
//! event; and once new revisions have the numbers of those that are lost, it hears of some changes and not of others.
//! Therefore the agent's Lease, which it writes every minute, tells the current revision for all watches. Before a watch
//! resumes that has been disturbed, a list of one object does; and while no Lease is written, watches end and resume, so
//! that it does for them. If a newer revision has been seen before, each watch, open or about to resume, is told once that
//! its own has expired, upon which the watcher lists everything anew.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt, stream};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt, BodyStream, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::{Body, DynBody};
use kube::core::Status;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tower::{BoxError, ServiceExt};

use super::between::{Answer, Between, Server};
use super::instrument::resource;
use super::watch::OPEN;

/// How long what a Lease has told counts.
const FRESH: Duration = Duration::from_secs(120);

/// How long a watch goes on that is told nothing at all, as by a server that has seen no change of that kind since its
/// start. The others are told every minute that there are none.
const QUIET: Duration = Duration::from_secs(240);

/// Asks for no more of an object than its metadata.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// The reason in a status that says so.
const REASON: &str = "Rewound";

/// Returns whether `status`, with which a watch has failed, means that the API server has gone back in time.
pub fn is_rewound(status: &Status) -> bool {
    status.reason == REASON
}

/// Compares revisions before a client's watches resume.
#[derive(Clone, Debug, Default)]
pub struct Rewound(Arc<Shared>);

/// What a client's watches share.
#[derive(Debug)]
struct Shared {
    seen: Mutex<Seen>,
    /// How many losses there were, and of those the last: the newest revision that is lost, and the current one then.
    lost: watch::Sender<(u64, u64, u64)>,
    quiet: Duration,
    fresh: Duration,
}

impl Default for Shared {
    fn default() -> Self {
        Self { seen: Mutex::default(), lost: watch::Sender::default(), quiet: QUIET, fresh: FRESH }
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the Lease has lately told whether anything is lost.
    fn is_told(&self) -> bool {
        self.seen().lease.is_some_and(|(_, at)| at.elapsed() < self.fresh)
    }

    /// Takes in that the Lease was written as this revision, after `before` was the latest.
    fn written(&self, before: Known, current: u64) {
        let mut seen = self.seen();
        if let Some(lost) = seen.written(before, current) {
            self.lost.send_replace((seen.losses.0, lost, current));
        }
    }
}

/// What all watches of a client have seen.
#[derive(Debug, Default)]
struct Seen {
    /// The newest revision.
    newest: u64,
    /// How often it turned out to be lost, and which it was the last time.
    losses: (u64, u64),
    /// How many losses each watch has made good, by [what it selects](selected).
    made_good: HashMap<String, u64>,
    /// What those watches select that have ended as they were to, and not been begun anew since.
    undisturbed: HashSet<String>,
    /// The revision of the Lease, and when it was written. It may be kept in another etcd than all else.
    lease: Option<(u64, Instant)>,
}

/// What was known when the current revision was asked for. Other watches ask at the same time, and answers overtake each
/// other: what only became known meanwhile may well be newer.
#[derive(Clone, Copy, Debug)]
struct Known {
    newest: u64,
    losses: u64,
    lease: u64,
}

impl Seen {
    fn known(&self) -> Known {
        let lease = self.lease.map(|(revision, _)| revision).unwrap_or_default();
        Known { newest: self.newest, losses: self.losses.0, lease }
    }

    /// Judges the Lease, which was written as the `current` revision. Returns the newest revision that is lost, if that is
    /// news.
    fn written(&mut self, before: Known, current: u64) -> Option<u64> {
        self.lease = Some((current, Instant::now()));
        if current >= before.lease {
            return None;
        }
        // Otherwise a watch that was begun meanwhile has noticed it, and told nobody.
        if before.losses == self.losses.0 {
            self.losses = (self.losses.0 + 1, self.newest.max(before.lease));
            self.newest = current;
        }
        Some(self.losses.1)
    }

    /// Judges the watch of what is `selected` that resumes from a revision while the server has the `current` one. Returns
    /// the newest revision that is lost, if the watch has yet to make that good.
    fn judge(&mut self, selected: &str, resumed: u64, known: Known, current: u64) -> Option<u64> {
        let newest = known.newest.max(resumed);
        let has_made_good = self.made_good.get(selected).is_none_or(|made_good| *made_good == self.losses.0);
        // Otherwise it is the loss that another watch has noticed.
        let is_news = known.losses == self.losses.0 && has_made_good;
        if current < newest && is_news {
            self.losses = (self.losses.0 + 1, newest);
            self.newest = current;
        }
        self.newest = self.newest.max(current);
        let before = self.made_good.insert(selected.to_owned(), self.losses.0).unwrap_or_default();
        (before < self.losses.0).then_some(self.losses.1)
    }
}

impl Between for Rewound {
    async fn answer<S: Server>(self, mut server: S, request: Request<Body>) -> Answer {
        let Self(shared) = self;
        if *request.method() == Method::PATCH && resource(request.uri().path()) == "leases" {
            let before = shared.seen().known();
            let (head, body) = server.call(request).await?.into_parts();
            let text = body.collect().await?.to_bytes();
            if let (true, Ok(Some(current))) = (head.status.is_success(), revision(&text)) {
                shared.written(before, current);
            }
            let body: Box<DynBody> = Box::new(Full::from(text).map_err(|never| match never {}));
            return Ok(Response::from_parts(head, body));
        }
        let Some(resumed) = resumed_from(request.uri()) else { return server.call(request).await };
        let selected = selected(request.uri());
        let losses = shared.lost.subscribe();
        let known = shared.seen().known();
        let is_made_good = shared.seen().made_good.get(&selected).copied().unwrap_or_default() == known.losses;
        let is_undisturbed = shared.seen().undisturbed.remove(&selected);
        if !(is_undisturbed && is_made_good && shared.is_told()) {
            let list = Request::get(format!("{selected}limit=1")).header(ACCEPT, METADATA).body(Body::empty())?;
            let answer = server.call(list).await?;
            if !answer.status().is_success() {
                // The watch would fail as well.
                return Ok(answer);
            }
            if let Some(current) = revision(&answer.into_body().collect().await?.to_bytes())? {
                let lost = shared.seen().judge(&selected, resumed, known, current);
                if let Some(lost) = lost {
                    return Ok(expired(current, lost));
                }
            }
            server.ready().await?;
        }
        let answer = server.call(request).await?;
        Ok(answer.map(|body| until_lost(Open::new(body, selected, shared, losses))))
    }
}

/// A watch that is open.
struct Open {
    frames: BodyStream<Box<DynBody>>,
    selected: String,
    shared: Arc<Shared>,
    losses: watch::Receiver<(u64, u64, u64)>,
    begun: Instant,
    /// When it last heard something.
    heard: Instant,
    /// When it was last seen whether it would be told of a loss.
    asked: Instant,
    /// Whether it was told of a loss, after which there is nothing to hear.
    is_over: bool,
}

impl Open {
    fn new(
        body: Box<DynBody>,
        selected: String,
        shared: Arc<Shared>,
        losses: watch::Receiver<(u64, u64, u64)>,
    ) -> Self {
        let now = Instant::now();
        Self {
            frames: BodyStream::new(body),
            selected,
            shared,
            losses,
            begun: now,
            heard: now,
            asked: now,
            is_over: false,
        }
    }

    /// What it receives next: `None` at its end.
    async fn next(&mut self) -> Option<Result<Frame<Bytes>, BoxError>> {
        while !self.is_over {
            tokio::select! {
                biased;
                Ok(()) = self.losses.changed() => {
                    let (number, lost, current) = *self.losses.borrow_and_update();
                    self.shared.seen().made_good.insert(self.selected.clone(), number);
                    self.is_over = true;
                    // A line that has only come in part is no event, but must not make this one unreadable.
                    return Some(Ok(Frame::data(format!("\n{}", expiry(current, lost)).into())));
                }
                frame = self.frames.next() => {
                    self.heard = Instant::now();
                    // Whatever ends one before its time may be what comes with a restored etcd.
                    if frame.is_none() && self.begun.elapsed().as_secs() + 1 >= u64::from(OPEN) {
                        self.is_undisturbed();
                    }
                    return frame;
                }
                () = sleep_until(self.heard + self.shared.quiet) => {
                    self.is_undisturbed();
                    return None;
                }
                () = sleep_until(self.asked + self.shared.fresh) => {
                    // Nobody would tell it. When it resumes, it is asked.
                    if !self.shared.is_told() {
                        return None;
                    }
                    self.asked = Instant::now();
                }
            }
        }
        None
    }

    /// It has lasted as long as it was to.
    fn is_undisturbed(&self) {
        self.shared.seen().undisturbed.insert(self.selected.clone());
    }
}

/// What a watch receives, until the API server is found to have gone back in time.
fn until_lost(open: Open) -> Box<DynBody> {
    let frames = stream::unfold(open, |mut open| async move { open.next().await.map(|frame| (frame, open)) });
    Box::new(StreamBody::new(frames.boxed()))
}

/// What a watch selects, as the beginning of a request for the same: its path, and the fields, without which an agent may
/// not list what it may only see by name.
fn selected(uri: &Uri) -> String {
    let mut pairs = uri.query().into_iter().flat_map(|query| query.split('&'));
    let fields = pairs.find(|pair| pair.starts_with("fieldSelector=")).map(|fields| format!("{fields}&"));
    format!("{}?{}", uri.path(), fields.unwrap_or_default())
}

/// The revision from which a request resumes a watch; `None` if it is another request.
fn resumed_from(uri: &Uri) -> Option<u64> {
    let value = |name: &str| uri.query()?.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    value("watch").filter(|watch| *watch == "true")?;
    value("resourceVersion")?.parse().ok()
}

/// The revision of a list or an object; `None` if it is not a number.
///
/// Revisions are those of etcd, so they increase over all objects (Kubernetes 1.35, KEP-5504; in practice always).
fn revision(text: &[u8]) -> Result<Option<u64>, BoxError> {
    #[derive(Deserialize)]
    struct List {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        resource_version: String,
    }
    let List { metadata } = serde_json::from_slice(text)?;
    Ok(metadata.resource_version.parse().ok())
}

/// Returns what a watch receives that is about to resume from a revision that is lost.
fn expired(current: u64, lost: u64) -> Response<Box<DynBody>> {
    let body: Box<DynBody> = Box::new(Full::from(expiry(current, lost)).map_err(|never| match never {}));
    let mut answer = Response::new(body);
    answer.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    answer
}

/// Returns what says to a watch that its revision is too old, since it has seen one that is lost.
fn expiry(current: u64, lost: u64) -> String {
    let message = format!(
        "the API server is at revision {current}, but {lost} was seen before: etcd has been restored from a backup; listing all objects anew"
    );
    let event = json!({
        "type": "ERROR",
        "object": {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": 410,
            "reason": REASON,
            "message": message,
        },
    });
    format!("{event}\n")
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use kube::core::WatchEvent;
    use kube::core::dynamic::DynamicObject;
    use tower::{Layer, service_fn};

    use super::super::between::BetweenLayer;
    use super::*;

    const WATCH: &str = "/api/v1/persistentvolumes?&watch=true&timeoutSeconds=120&allowWatchBookmarks=true";

    /// Returns what a request for `uri` is answered with by a server at `revision`, and the requests that reach the
    /// server.
    async fn answered(uri: &str, revision: &str) -> (String, Vec<String>) {
        let reached = Arc::new(Mutex::new(Vec::new()));
        let (seen, list) = (Arc::clone(&reached), json!({ "metadata": { "resourceVersion": revision } }).to_string());
        let server = service_fn(move |request: Request<Body>| {
            seen.lock().unwrap().push(request.uri().to_string());
            let body: Box<DynBody> = Box::new(Full::from(list.clone()).map_err(|never| match never {}));
            async move { Ok::<_, BoxError>(Response::new(body)) }
        });
        let answer = BetweenLayer(Rewound::default())
            .layer(server)
            .oneshot(Request::get(uri).body(Body::empty()).unwrap())
            .await
            .unwrap();
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        let reached = reached.lock().unwrap().clone();
        (String::from_utf8(text.to_vec()).unwrap(), reached)
    }

    #[tokio::test]
    async fn a_watch_resumes_from_the_past_only() {
        let watch = format!("{WATCH}&resourceVersion=500");
        let list = "/api/v1/persistentvolumes?limit=1";
        for current in ["500", "501", "unknown"] {
            assert_eq!(answered(&watch, current).await.1, [list, watch.as_str()], "{current}");
        }
        let (event, reached) = answered(&watch, "499").await;
        assert_eq!(reached, [list]);
        let WatchEvent::<DynamicObject>::Error(status) = serde_json::from_str(event.trim_end()).unwrap() else {
            panic!("{event}");
        };
        assert!(status.code == 410 && is_rewound(&status) && status.message.contains("499"), "{status:?}");
    }

    #[tokio::test]
    async fn what_may_be_seen_by_name_is_asked_for_by_name() {
        let path = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
        let of = |name: &str| format!("{path}?fieldSelector=metadata.name%3D{name}&");
        let watch = format!("{path}?&watch=true&fieldSelector=metadata.name%3Da&resourceVersion=500");
        assert_eq!(answered(&watch, "500").await.1, [format!("{}limit=1", of("a")), watch]);
        let selected = |name: &str| selected(&format!("{}watch=true", of(name)).parse().unwrap());
        assert_ne!(selected("a"), selected("b"), "two watches of one path are two");
    }

    #[test]
    fn every_watch_starts_over_once_for_each_loss() {
        let mut seen = Seen::default();
        let mut judge = |path, resumed, current| seen.judge(path, resumed, seen.known(), current);
        assert_eq!(judge("a", 100, 120), None);
        assert_eq!(judge("b", 90, 121), None);
        assert_eq!(judge("a", 110, 115), Some(121), "what another watch has seen counts");
        assert_eq!(judge("a", 115, 130), None);
        assert_eq!(judge("b", 95, 140), Some(121), "though its own revision is not lost");
        assert_eq!(judge("b", 140, 141), None);
        assert_eq!(judge("c", 50, 60), Some(141));
        assert_eq!(judge("b", 60, 61), Some(141));
    }

    #[test]
    fn answers_that_overtake_each_other_are_no_loss() {
        let mut seen = Seen::default();
        let asked = seen.known();
        assert_eq!(seen.judge("a", 100, asked, 121), None);
        assert_eq!(seen.judge("b", 100, asked, 120), None, "it was asked for before 121 was known");
        let asked = seen.known();
        assert_eq!(seen.judge("a", 121, asked, 90), Some(121));
        assert_eq!(seen.judge("b", 120, asked, 91), Some(121), "one loss, noticed twice");
        assert_eq!(seen.judge("a", 90, seen.known(), 92), None);
        assert_eq!(seen.judge("b", 91, seen.known(), 93), None);
    }

    #[tokio::test]
    async fn other_requests_are_passed_on() {
        for uri in ["/api/v1/persistentvolumes?limit=500&resourceVersion=500", WATCH, "/api/v1/persistentvolumes/a"] {
            assert_eq!(answered(uri, "499").await.1, [uri]);
        }
    }

    #[tokio::test]
    async fn the_lease_tells_it_to_all_watches_and_saves_them_the_question() {
        let (revision, reached) = (Arc::new(Mutex::new(500)), Arc::new(Mutex::new(Vec::new())));
        let (now, seen) = (Arc::clone(&revision), Arc::clone(&reached));
        let quiet = Duration::from_millis(300);
        let shared = Shared { quiet, ..Shared::default() };
        let server = BetweenLayer(Rewound(Arc::new(shared))).layer(service_fn(move |request: Request<Body>| {
            seen.lock().unwrap().push(request.uri().to_string());
            let answer = json!({ "metadata": { "resourceVersion": now.lock().unwrap().to_string() } }).to_string();
            // A watch stays open.
            let frames = stream::iter([Ok::<_, BoxError>(Frame::data(answer.into()))]);
            let body: Box<DynBody> = match resumed_from(request.uri()) {
                Some(_) => Box::new(StreamBody::new(frames.chain(stream::pending()).boxed())),
                None => Box::new(StreamBody::new(frames.boxed())),
            };
            async move { Ok::<_, BoxError>(Response::new(body)) }
        }));
        let ask = |request: http::request::Builder| server.clone().oneshot(request.body(Body::empty()).unwrap());
        let lease = "/apis/coordination.k8s.io/v1/namespaces/n/leases/here";
        let mut open = Vec::new();
        ask(Request::patch(lease)).await.unwrap();
        for path in ["a", "b"] {
            let watch = format!("/api/v1/{path}?&watch=true&resourceVersion=400");
            let mut body = ask(Request::get(&watch)).await.unwrap().into_body();
            body.frame().await.unwrap().unwrap();
            open.push(body);
            assert_eq!(reached.lock().unwrap().last().unwrap(), &watch);
        }
        let asked = reached.lock().unwrap().len();
        for body in &mut open {
            assert!(body.frame().await.is_none(), "it is quiet");
        }
        for (body, path) in open.iter_mut().zip(["a", "b"]) {
            let watch = format!("/api/v1/{path}?&watch=true&resourceVersion=400");
            *body = ask(Request::get(&watch)).await.unwrap().into_body();
            body.frame().await.unwrap().unwrap();
        }
        assert_eq!(reached.lock().unwrap().len(), asked + 2, "nothing else is asked");
        *revision.lock().unwrap() = 501;
        let answer = ask(Request::patch(lease)).await.unwrap().into_body().collect().await.unwrap().to_bytes();
        assert!(String::from_utf8_lossy(&answer).contains("501"), "it is passed on");
        assert!(open[0].frame().now_or_never().is_none());
        *revision.lock().unwrap() = 450;
        ask(Request::patch(lease)).await.unwrap();
        for mut body in open {
            let event = body.frame().await.unwrap().unwrap().into_data().unwrap();
            let WatchEvent::<DynamicObject>::Error(status) = serde_json::from_slice(&event).unwrap() else {
                panic!("{event:?}");
            };
            assert!(is_rewound(&status) && status.message.contains("501"), "{status:?}");
            assert!(body.frame().await.is_none());
        }
        let again = "/api/v1/a?&watch=true&resourceVersion=450";
        let mut body = ask(Request::get(again)).await.unwrap().into_body();
        assert!(body.frame().await.unwrap().unwrap().into_data().unwrap().starts_with(b"{\"metadata\""), "once each");
    }

    #[tokio::test]
    async fn a_watch_that_nobody_would_tell_resumes_so_that_it_is_asked() {
        let shared = Arc::new(Shared { fresh: Duration::from_millis(200), ..Shared::default() });
        let open = || {
            let silent = Box::new(StreamBody::new(stream::pending().boxed()));
            until_lost(Open::new(silent, "/api/v1/a".to_owned(), Arc::clone(&shared), shared.lost.subscribe()))
        };
        let within = |mut body: Box<DynBody>| async move {
            tokio::time::timeout(Duration::from_millis(500), body.frame()).await.map(|frame| frame.is_none())
        };
        assert_eq!(within(open()).await, Ok(true), "no Lease is written");
        assert!(shared.seen().undisturbed.is_empty(), "it is asked before it resumes");
        let (body, before) = (tokio::spawn(within(open())), shared.seen().known());
        for _ in 0..10 {
            shared.written(before, 7);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(body.await.unwrap().is_err(), "the Lease tells it");
    }
}
