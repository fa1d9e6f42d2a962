//! Lists that the API server sends a page at a time, so that a large one strains neither side.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use futures::{Stream, TryStreamExt, stream};
use k8s_openapi::serde::de::DeserializeOwned;
use kube::api::ListParams;
use kube::core::{ObjectList, PartialObjectMeta};
use kube::{Api, Resource};

use super::failure::Failure;
use super::request::request_within;

/// How many objects are in a page.
pub const PAGE: u32 = 500;

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
    K: Clone + DeserializeOwned + Debug + Send + 'static,
{
    paged(operation, parameters(labels), move |parameters| {
        let api = api.clone();
        async move { api.list(&parameters).await }
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
    paged(operation, parameters(labels), move |parameters| {
        let api = api.clone();
        async move { api.list_metadata(&parameters).await }
    })
}

fn parameters(labels: Option<&str>) -> ListParams {
    ListParams { label_selector: labels.map(str::to_owned), limit: Some(PAGE), ..ListParams::default() }
}

/// All items of the pages that `fetch` gets. Each page is fetched once the items before it have been taken.
fn paged<T, F>(
    operation: &'static str,
    first: ListParams,
    fetch: impl Fn(ListParams) -> F + Send,
) -> impl Stream<Item = Result<T, Failure>> + Send
where
    T: Clone + Send,
    F: Future<Output = Result<ObjectList<T>, kube::Error>> + Send,
{
    let pages = stream::try_unfold((Some(first), fetch), move |(next, fetch)| async move {
        let Some(parameters) = next else { return Ok(None) };
        let page = request_within(DEADLINE, operation, fetch(parameters.clone())).await?;
        let token = page.metadata.continue_.filter(|token| !token.is_empty());
        let next = token.map(|token| parameters.continue_token(&token));
        let items = stream::iter(page.items.into_iter().map(Ok));
        Ok::<_, Failure>(Some((items, (next, fetch))))
    });
    pages.try_flatten()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::{Value, json};

    use super::*;

    /// The names in a list with these pages, and the continue tokens of the requests for them.
    async fn names(pages: Vec<Value>) -> (Vec<String>, Vec<Option<String>>) {
        let (pages, tokens) = (Mutex::new(pages.into_iter()), Mutex::new(Vec::new()));
        let fetch = |parameters: ListParams| {
            tokens.lock().unwrap().push(parameters.continue_token);
            let page = serde_json::from_value::<ObjectList<ConfigMap>>(pages.lock().unwrap().next().unwrap());
            async move { Ok(page.unwrap()) }
        };
        let items: Vec<_> = paged("testing", parameters(None), fetch).try_collect().await.unwrap();
        let names = items.into_iter().map(|item| item.metadata.name.unwrap()).collect();
        (names, tokens.into_inner().unwrap())
    }

    fn page(token: Option<&str>, names: &[&str]) -> Value {
        let items: Vec<_> = names.iter().map(|name| json!({ "metadata": { "name": name } })).collect();
        json!({ "apiVersion": "v1", "kind": "ConfigMapList", "metadata": { "continue": token }, "items": items })
    }

    #[tokio::test]
    async fn every_page_is_asked_for() {
        let pages = vec![page(Some("one"), &["a", "b"]), page(Some("two"), &[]), page(Some(""), &["c"])];
        let (names, tokens) = names(pages).await;
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(tokens, [None, Some("one".to_owned()), Some("two".to_owned())]);
    }

    #[tokio::test]
    async fn one_page_is_one_request() {
        assert_eq!(names(vec![page(None, &["a"])]).await, (vec!["a".to_owned()], vec![None]));
    }
}
