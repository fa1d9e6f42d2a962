//! Noticing that the API server has gone back in time, as it does when etcd is restored from a backup.
//!
//! A watch that resumes from a revision of the lost future is accepted, and then hears nothing: neither an error nor an
//! event; and once new revisions have the numbers of those that are lost, it hears of some changes and not of others.
//! Therefore, before a watch resumes, a list of one object tells the current revision. If a newer one has been seen by
//! any watch, each of them is told once that its own has expired, upon which the watcher lists everything anew.

use std::collections::HashMap;
use std::mem::replace;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use kube::client::{Body, DynBody};
use kube::core::Status;
use serde::Deserialize;
use serde_json::json;
use tower::{BoxError, Layer, Service, ServiceExt};

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
pub struct RewoundLayer(Arc<Mutex<Seen>>);

impl<S> Layer<S> for RewoundLayer {
    type Service = Compared<S>;

    fn layer(&self, inner: S) -> Compared<S> {
        Compared { inner, seen: Arc::clone(&self.0) }
    }
}

/// A service whose watches resume only from the past.
#[derive(Clone)]
pub struct Compared<S> {
    inner: S,
    seen: Arc<Mutex<Seen>>,
}

/// What all watches of a client have seen.
#[derive(Debug, Default)]
struct Seen {
    /// The newest revision.
    newest: u64,
    /// How often it turned out to be lost, and which it was the last time.
    losses: (u64, u64),
    /// By path, how many losses each watch has made good.
    made_good: HashMap<String, u64>,
}

/// What was known when the current revision was asked for. Other watches ask at the same time, and answers overtake each
/// other: what only became known meanwhile may well be newer.
#[derive(Clone, Copy, Debug)]
struct Known {
    newest: u64,
    losses: u64,
}

impl Seen {
    fn known(&self) -> Known {
        Known { newest: self.newest, losses: self.losses.0 }
    }

    /// Judges a watch of `path` that resumes from a revision while the server has the `current` one. Returns the newest
    /// revision that is lost, if the watch has yet to make that good.
    fn judge(&mut self, path: &str, resumed: u64, known: Known, current: u64) -> Option<u64> {
        let newest = known.newest.max(resumed);
        let has_made_good = self.made_good.get(path).is_none_or(|made_good| *made_good == self.losses.0);
        // Otherwise it is the loss that another watch has noticed.
        let is_news = known.losses == self.losses.0 && has_made_good;
        if current < newest && is_news {
            self.losses = (self.losses.0 + 1, newest);
            self.newest = current;
        }
        self.newest = self.newest.max(current);
        let before = self.made_good.insert(path.to_owned(), self.losses.0).unwrap_or_default();
        (before < self.losses.0).then_some(self.losses.1)
    }
}

impl<S> Service<Request<Body>> for Compared<S>
where
    S: Service<Request<Body>, Response = Response<Box<DynBody>>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(resumed) = resumed_from(request.uri()) else { return self.inner.call(request).boxed() };
        let (another, seen) = (self.inner.clone(), Arc::clone(&self.seen));
        // This is the one that is ready.
        let mut inner = replace(&mut self.inner, another);
        async move {
            let path = request.uri().path().to_owned();
            let known = seen.lock().unwrap_or_else(PoisonError::into_inner).known();
            let list = Request::get(format!("{path}?limit=1")).header(ACCEPT, METADATA).body(Body::empty())?;
            let answer = inner.call(list).await?;
            if !answer.status().is_success() {
                // The watch would fail as well.
                return Ok(answer);
            }
            if let Some(current) = revision(answer).await? {
                let lost = seen.lock().unwrap_or_else(PoisonError::into_inner).judge(&path, resumed, known, current);
                if let Some(lost) = lost {
                    return Ok(expired(current, lost));
                }
            }
            inner.ready().await?.call(request).await
        }
        .boxed()
    }
}

/// The revision from which a request resumes a watch; `None` if it is another request.
fn resumed_from(uri: &Uri) -> Option<u64> {
    let value = |name: &str| uri.query()?.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    value("watch").filter(|watch| *watch == "true")?;
    value("resourceVersion")?.parse().ok()
}

/// The revision of a list; `None` if it is not a number.
///
/// Revisions are those of etcd, so they increase over all objects (Kubernetes 1.35, KEP-5504; in practice always).
async fn revision(list: Response<Box<DynBody>>) -> Result<Option<u64>, BoxError> {
    #[derive(Deserialize)]
    struct List {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        resource_version: String,
    }
    let text = list.into_body().collect().await?.to_bytes();
    let List { metadata } = serde_json::from_slice(&text)?;
    Ok(metadata.resource_version.parse().ok())
}

/// Returns what a watch receives whose revision is too old, for one that has seen a revision that is lost.
fn expired(current: u64, lost: u64) -> Response<Box<DynBody>> {
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
    let body: Box<DynBody> = Box::new(Full::from(format!("{event}\n")).map_err(|never| match never {}));
    let mut answer = Response::new(body);
    answer.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    answer
}

#[cfg(test)]
mod tests {
    use kube::core::WatchEvent;
    use kube::core::dynamic::DynamicObject;
    use tower::service_fn;

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
        let answer = RewoundLayer::default()
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
}
