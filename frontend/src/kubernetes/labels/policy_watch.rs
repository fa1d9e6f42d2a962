//! Watching a policy that sets a label, for as long as objects are watched by that label: without the policy new objects
//! lack it, and the watch says nothing of them.

use std::future::ready;

use futures::stream::{BoxStream, select_all};
use futures::{Stream, StreamExt};
use kube::Client;
use kube::runtime::watcher::{Error, Event};
use kube::runtime::{WatchStreamExt, watcher};

use super::policy::Part;
use crate::kubernetes::api::backoff::Interruptions;
use crate::kubernetes::api::watch::config;

/// Reports each time that the policy called `name` or its binding is seen to be missing, or has been changed. Ends when
/// neither may be watched.
pub fn changes(client: &Client, name: &str) -> BoxStream<'static, ()> {
    let of = |part: Part| {
        let selected = config().fields(&format!("metadata.name={name}"));
        reported(watcher(part.api(client), selected).backoff(Interruptions::default())).boxed()
    };
    select_all(Part::BOTH.map(of)).boxed()
}

/// What the watch of one object reports.
fn reported<K: Send + 'static>(
    events: impl Stream<Item = Result<Event<K>, Error>> + Send,
) -> impl Stream<Item = ()> + Send {
    // What has become of it between two lists is not known.
    let (mut is_listed, mut lists) = (false, 0_u64);
    events.take_while(|event| ready(!is_forbidden(event))).filter_map(move |event| {
        let is_news = match event {
            Ok(Event::Init) => {
                is_listed = false;
                false
            }
            Ok(Event::InitApply(_)) => {
                is_listed = true;
                false
            }
            Ok(Event::InitDone) => {
                lists += 1;
                !is_listed || lists > 1
            }
            Ok(Event::Apply(_) | Event::Delete(_)) => true,
            // The watcher tries again, and what is watched by the label fails for the same reason.
            Err(_) => false,
        };
        ready(is_news.then_some(()))
    })
}

/// Returns whether the API server says that the agent may not watch, as one with the rules of an earlier release says.
fn is_forbidden<K>(event: &Result<Event<K>, Error>) -> bool {
    match event {
        Err(
            Error::InitialListFailed(kube::Error::Api(status))
            | Error::WatchStartFailed(kube::Error::Api(status))
            | Error::WatchFailed(kube::Error::Api(status)),
        ) => status.code == 403,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use serde_json::{from_value, json};

    use super::*;

    async fn count(events: Vec<Result<Event<()>, Error>>) -> usize {
        reported(stream::iter(events)).count().await
    }

    fn refused(code: u16) -> Result<Event<()>, Error> {
        let status = json!({ "code": code, "reason": "", "message": "no" });
        Err(Error::InitialListFailed(kube::Error::Api(Box::new(from_value(status).unwrap()))))
    }

    #[tokio::test]
    async fn what_is_missing_or_changed_is_reported() {
        let there = || vec![Ok(Event::Init), Ok(Event::InitApply(())), Ok(Event::InitDone)];
        assert_eq!(count(there()).await, 0);
        assert_eq!(count(vec![Ok(Event::Init), Ok(Event::InitDone)]).await, 1, "it is not listed");
        for again in [vec![Ok(Event::Init), Ok(Event::InitDone)], there()] {
            assert_eq!(count(there().into_iter().chain(again).collect()).await, 1, "it is missing, or may have been");
        }
        let mut lost = there();
        lost.push(Ok(Event::Delete(())));
        assert_eq!(count(lost).await, 1);
        let mut again = there();
        again.push(Ok(Event::Apply(())));
        assert_eq!(count(again).await, 1);
    }

    #[tokio::test]
    async fn it_ends_where_watching_is_not_granted_and_nowhere_else() {
        let missing = || [Ok(Event::Init), Ok(Event::InitDone)];
        assert_eq!(count([refused(403)].into_iter().chain(missing()).collect()).await, 0);
        assert_eq!(count([refused(500)].into_iter().chain(missing()).collect()).await, 1);
    }
}
