//! Lists that the API server sends a page at a time, so that a large one strains neither side.

use std::error::Error;
use std::fmt::Debug;
use std::time::Duration;

use bulkhead_model::objects::reducer::Unreadable;
use bulkhead_model::reading::{Ceiling, Reading, Unended};
use futures::{Stream, TryStreamExt, stream};
use http::Request;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::api::ListParams;
use kube::core::{ObjectList, PartialObjectMeta, request};
use kube::{Api, Resource};

/// How many objects are in a page.
pub const PAGE: u32 = 500;

/// The most that is read of a list: five million objects, and of those that are kept whole about a million.
pub const CEILING: Ceiling = Ceiling { pages: 10_000, bytes: 512 << 20, time: Duration::from_secs(600) };

/// A part of a list.
#[derive(Debug)]
pub struct Page<T> {
    items: Vec<T>,
    /// Leads to the next page; empty on the last one.
    next: String,
    /// How large its text was.
    bytes: usize,
}

/// The page of the objects at `api` that `parameters` ask for.
///
/// # Errors
/// When the request fails, or its answer cannot be read.
pub async fn page<K>(api: Api<K>, parameters: ListParams) -> Result<Page<K>, kube::Error>
where
    K: Clone + DeserializeOwned + Debug + Resource,
{
    let list = request::Request::new(api.resource_url());
    smaller_if_too_large(parameters, |parameters| answer(api.clone(), list.list(parameters))).await
}

/// Their metadata.
///
/// # Errors
/// See [`page`].
pub async fn page_of_metadata<K>(api: Api<K>, parameters: ListParams) -> Result<Page<PartialObjectMeta<K>>, kube::Error>
where
    K: Clone + DeserializeOwned + Debug + Resource,
    PartialObjectMeta<K>: Clone + DeserializeOwned,
{
    let list = request::Request::new(api.resource_url());
    smaller_if_too_large(parameters, |parameters| answer(api.clone(), list.list_metadata(parameters))).await
}

/// The page that `fetch` gets. One that holds too much is asked for again with fewer objects, so that a few that are
/// large are read all the same.
async fn smaller_if_too_large<T, F>(
    mut parameters: ListParams,
    fetch: impl Fn(&ListParams) -> F,
) -> Result<T, kube::Error>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    loop {
        match (fetch(&parameters).await, parameters.limit) {
            (Err(error), Some(limit @ 2..)) if is_too_large(&error) => parameters.limit = Some(limit.div_ceil(8)),
            (outcome, _) => return outcome,
        }
    }
}

fn is_too_large(error: &kube::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Unreadable::TooLarge) = error.downcast_ref() {
            return true;
        }
        cause = error.source();
    }
    false
}

async fn answer<K, T>(api: Api<K>, request: Result<Request<Vec<u8>>, request::Error>) -> Result<Page<T>, kube::Error>
where
    K: Resource,
    T: Clone + DeserializeOwned,
{
    let text = api.into_client().request_text(request.map_err(kube::Error::BuildRequest)?).await?;
    let list: ObjectList<T> = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
    Ok(Page { items: list.items, next: list.metadata.continue_.unwrap_or_default(), bytes: text.len() })
}

/// All items of the pages that `fetch` gets, in the time that it is given for one. Each page is fetched once the items
/// before it have been taken. `unended` is what a list fails with that does not end.
pub fn paged<T, E, F>(
    mut first: ListParams,
    ceiling: Ceiling,
    unended: impl Fn(Unended) -> E + Send,
    fetch: impl Fn(ListParams, Duration) -> F + Send,
) -> impl Stream<Item = Result<T, E>> + Send
where
    T: Send,
    E: Send,
    F: Future<Output = Result<Page<T>, E>> + Send,
{
    first.limit.get_or_insert(PAGE);
    let state = (Some(first), Reading::begin(ceiling), fetch, unended);
    let pages = stream::try_unfold(state, |(next, mut reading, fetch, unended)| async move {
        let Some(parameters) = next else { return Ok(None) };
        if reading.time_left().is_zero() {
            return Err(unended(reading.late()));
        }
        let page = fetch(parameters.clone(), reading.time_left()).await?;
        reading.page(page.bytes, &page.next).map_err(&unended)?;
        let next = (!page.next.is_empty()).then(|| parameters.continue_token(&page.next));
        let items = stream::iter(page.items.into_iter().map(Ok));
        Ok(Some((items, (next, reading, fetch, unended))))
    });
    pages.try_flatten()
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::Mutex;

    use super::*;

    type Asked = Vec<(Option<u32>, Option<String>)>;

    /// What a list with these pages holds, and what was asked for.
    async fn read(pages: Vec<(Vec<&str>, &str)>) -> (Result<Vec<String>, Unended>, Asked) {
        let (pages, asked) = (Mutex::new(pages.into_iter()), Mutex::new(Vec::new()));
        let fetch = |parameters: ListParams, _| {
            asked.lock().unwrap().push((parameters.limit, parameters.continue_token));
            let (items, next) = pages.lock().unwrap().next().unwrap();
            let items = items.into_iter().map(str::to_owned).collect();
            let page = Page { items, next: next.to_owned(), bytes: 0 };
            async move { Ok(page) }
        };
        let all = paged(ListParams::default(), CEILING, |why| why, fetch).try_collect().await;
        (all, asked.into_inner().unwrap())
    }

    #[tokio::test]
    async fn every_page_is_asked_for() {
        let (all, asked) = read(vec![(vec!["a", "b"], "one"), (vec![], "two"), (vec!["c"], "")]).await;
        assert_eq!(all.unwrap(), ["a", "b", "c"]);
        let with = |token: Option<&str>| (Some(PAGE), token.map(str::to_owned));
        assert_eq!(asked, [with(None), with(Some("one")), with(Some("two"))]);
        let (all, asked) = read(vec![(vec!["a"], "")]).await;
        assert_eq!((all.unwrap(), asked.len()), (vec!["a".to_owned()], 1));
    }

    #[tokio::test]
    async fn a_list_that_goes_in_a_circle_fails() {
        let (all, asked) = read(vec![(vec!["a"], "one"), (vec!["b"], "one")]).await;
        assert_eq!((all, asked.len()), (Err(Unended::Circle), 2));
    }

    #[tokio::test]
    async fn fewer_objects_are_asked_for_if_they_are_too_large() {
        let limits = Mutex::new(Vec::new());
        let fetch = |parameters: &ListParams| {
            limits.lock().unwrap().push(parameters.limit.unwrap());
            ready(match parameters.limit {
                Some(..=8) => Ok(()),
                _ => Err(kube::Error::Service(Unreadable::TooLarge.into())),
            })
        };
        smaller_if_too_large(ListParams::default().limit(PAGE), fetch).await.unwrap();
        assert_eq!(*limits.lock().unwrap(), [500, 63, 8]);
        let hopeless = |_: &ListParams| ready(Err::<(), _>(kube::Error::Service(Unreadable::TooLarge.into())));
        smaller_if_too_large(ListParams::default().limit(PAGE), hopeless).await.unwrap_err();
    }
}
