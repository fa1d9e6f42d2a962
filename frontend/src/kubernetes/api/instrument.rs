//! What requests to the API server reveal in passing: how long they took, and whether the watches are alive.
//!
//! A watcher reports that a watch failed, but not that it has resumed. The answers, which are seen here, show that.

use std::time::Instant;

use bulkhead_api::path::subject;
use futures::StreamExt;
use http::{Method, Request};
use http_body_util::{BodyStream, StreamBody};
use kube::client::{Body, DynBody};

use super::between::{Answer, Between, Server};
use crate::metrics::{METRICS, now};
use crate::readiness::{Part, Readiness};

/// The objects that requests are about, as named in their paths. Metrics count any others as `other`.
const RESOURCES: [&str; 22] = [
    "persistentvolumeclaims", "persistentvolumes", "storageclasses", "csistoragecapacities", "csinodes", "events",
    "leases", "selfsubjectreviews", "serviceaccounts", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings",
    "validatingadmissionpolicies", "validatingadmissionpolicybindings", "volumesnapshotcontents", "volumesnapshots",
    "volumesnapshotclasses", "volumegroupsnapshotcontents", "volumegroupsnapshotclasses", "snapshotmetadataservices",
    "tokenreviews", "subjectaccessreviews", "endpointslices",
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

/// Observes a client's requests, and reports watches.
#[derive(Clone)]
pub struct Observe(pub Readiness);

impl Between for Observe {
    async fn answer<S: Server>(self, mut server: S, request: Request<Body>) -> Answer {
        let (verb, resource) = (verb(&request), resource(request.uri().path()));
        let begun = Instant::now();
        let answer = server.call(request).await;
        let code = answer.as_ref().map_or(0, |answer| answer.status().as_u16()).to_string();
        METRICS.api_requests.with([verb, resource, &code]).observe(begun.elapsed().as_secs_f64());
        let answer = answer?;
        if verb != "watch" || !answer.status().is_success() {
            return Ok(answer);
        }
        established(&self.0, resource);
        Ok(answer.map(|body| with_contact(body, resource)))
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

/// The objects that a request to `path` is about.
pub(super) fn resource(path: &str) -> &'static str {
    let (named, _) = subject(path);
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
