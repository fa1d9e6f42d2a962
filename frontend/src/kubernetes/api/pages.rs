//! Lists that the API server sends a page at a time.

use std::fmt::Debug;
use std::time::Duration;

use bulkhead_api::pages::{CEILING, page, page_of_metadata, paged};
use bulkhead_model::reading::Unended;
use futures::Stream;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Resource};

pub use bulkhead_api::pages::PAGE;

use super::failure::Failure;
use super::request::request_within;

/// How long the API server may take to send one: as long as it takes for any request. The objects may be large, whatever
/// is kept of them.
const DEADLINE: Duration = Duration::from_secs(60);

/// The objects at `api` that match `labels`. A failure ends the stream, and `operation` names it.
pub fn list<K>(
    operation: &'static str,
    api: Api<K>,
    labels: Option<&str>,
) -> impl Stream<Item = Result<K, Failure>> + Send + use<K>
where
    K: Clone + DeserializeOwned + Debug + Resource + Send + Sync + 'static,
{
    paged(matching(labels), CEILING, failed(operation), move |parameters, left| {
        request_within(DEADLINE.min(left), operation, page(api.clone(), parameters))
    })
}

/// The metadata of the objects at `api` that match `labels`. A failure ends the stream, and `operation` names it.
pub fn list_metadata<K>(
    operation: &'static str,
    api: Api<K>,
    labels: Option<&str>,
) -> impl Stream<Item = Result<PartialObjectMeta<K>, Failure>> + Send + use<K>
where
    K: Clone + DeserializeOwned + Debug + Resource + Send + Sync + 'static,
{
    paged(matching(labels), CEILING, failed(operation), move |parameters, left| {
        request_within(DEADLINE.min(left), operation, page_of_metadata(api.clone(), parameters))
    })
}

fn matching(labels: Option<&str>) -> ListParams {
    ListParams { label_selector: labels.map(str::to_owned), ..ListParams::default() }
}

fn failed(operation: &'static str) -> impl Fn(Unended) -> Failure {
    move |why| Failure::Api { operation, error: Box::new(kube::Error::Service(why.into())) }
}
