//! What requests to the API server reveal in passing: how long they took, and whether the watches are alive.
//!
//! A watcher reports that a watch failed, but not that it has resumed. The answers, which are seen here, show that.

use std::task::{Context, Poll};
use std::time::Instant;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use http::{Method, Request, Response};
use http_body_util::{BodyStream, StreamBody};
use kube::client::{Body, DynBody};
use tower::{BoxError, Layer, Service};

use crate::metrics::{METRICS, now};
use crate::readiness::{Part, Readiness};

/// The objects that requests are about, as named in their paths. Metrics count any others as `other`.
const RESOURCES: [&str; 14] = [
    "persistentvolumeclaims", "persistentvolumes", "storageclasses", "csistoragecapacities", "csinodes", "events",
    "leases", "selfsubjectreviews", "serviceaccounts", "validatingadmissionpolicies",
    "validatingadmissionpolicybindings", "volumesnapshotcontents", "volumesnapshots", "volumesnapshotclasses",
];

/// A watch of `resource` has failed.
pub fn interrupted(readiness: &Readiness, resource: &str, reason: &str) {
    METRICS.watch_up.with([resource]).set(0.0);
    METRICS.watch_interruptions.with([resource]).inc();
    if let Some(part) = Part::watch(resource) {
        readiness.not_ready(part, reason);
    }
}

fn established(readiness: &Readiness, resource: &str) {
    METRICS.watch_up.with([resource]).set(1.0);
    METRICS.watch_contact.with([resource]).set(now());
    if let Some(part) = Part::watch(resource) {
        readiness.ready(part);
    }
}

/// Observes a client's requests.
#[derive(Clone)]
pub struct ObserveLayer(Readiness);

impl ObserveLayer {
    /// Watches are reported to `readiness`.
    pub fn new(readiness: Readiness) -> Self {
        Self(readiness)
    }
}

impl<S> Layer<S> for ObserveLayer {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed { inner, readiness: self.0.clone() }
    }
}

/// A service whose requests are observed.
#[derive(Clone)]
pub struct Observed<S> {
    inner: S,
    readiness: Readiness,
}

impl<S> Service<Request<Body>> for Observed<S>
where
    S: Service<Request<Body>, Response = Response<Box<DynBody>>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (verb, resource) = (verb(&request), resource(request.uri().path()));
        let (begun, readiness) = (Instant::now(), self.readiness.clone());
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await;
            let code = answer.as_ref().map_or(0, |answer| answer.status().as_u16()).to_string();
            METRICS.api_requests.with([verb, resource, &code]).observe(begun.elapsed().as_secs_f64());
            let answer = answer?;
            if verb != "watch" || !answer.status().is_success() {
                return Ok(answer);
            }
            established(&readiness, resource);
            Ok(answer.map(|body| with_contact(body, resource)))
        }
        .boxed()
    }
}

/// Records when something arrives.
fn with_contact(body: Box<DynBody>, resource: &'static str) -> Box<DynBody> {
    let frames = BodyStream::new(body).inspect(move |frame| {
        if frame.is_ok() {
            METRICS.watch_contact.with([resource]).set(now());
        }
    });
    Box::new(StreamBody::new(frames))
}

pub(super) fn verb(request: &Request<Body>) -> &'static str {
    let is_watch = request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
    match *request.method() {
        Method::GET if is_watch => "watch",
        Method::GET => "get",
        Method::POST => "create",
        Method::PATCH => "patch",
        Method::PUT => "update",
        Method::DELETE => "delete",
        _ => "other",
    }
}

/// The objects that a request to `path` is about: `/api/VERSION/` or `/apis/GROUP/VERSION/`, then `namespaces/NAME/` if
/// they are in one, and then their name in the API.
pub(super) fn resource(path: &str) -> &'static str {
    let mut parts = path.split('/').skip(if path.starts_with("/apis/") { 4 } else { 3 });
    let named = match parts.next() {
        Some("namespaces") => parts.nth(1),
        other => other,
    };
    RESOURCES.into_iter().find(|resource| Some(*resource) == named).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart_by_verb_and_resource() {
        let request = |uri: &str| Request::get(uri).body(Body::empty()).unwrap();
        assert_eq!(verb(&request("/api/v1/persistentvolumes?allowWatchBookmarks=true&watch=true")), "watch");
        assert_eq!(verb(&request("/api/v1/persistentvolumes?limit=500")), "get");
        assert_eq!(resource("/api/v1/persistentvolumes"), "persistentvolumes");
        assert_eq!(resource("/api/v1/namespaces/shop/persistentvolumeclaims/data/status"), "persistentvolumeclaims");
        assert_eq!(resource("/apis/storage.k8s.io/v1/csinodes/node-1"), "csinodes");
        let confusing = "/api/v1/namespaces/events/persistentvolumeclaims/persistentvolumes";
        assert_eq!(resource(confusing), "persistentvolumeclaims");
        for other in ["/version", "/", "", "/api/v1/namespaces/events", "/apis/apps/v1/deployments"] {
            assert_eq!(resource(other), "other", "{other}");
        }
    }
}
