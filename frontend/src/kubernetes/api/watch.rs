//! Watching objects: what is known of them, and a stream of those that have changed.

use bulkhead_model::api_error::error_text;
use futures::{Stream, StreamExt, stream};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Config, Event};
use tracing::warn;

use super::first_lists::FirstLists;
use super::instrument;
use super::rewound::is_rewound;
use crate::kubernetes::known::{Kept, Writer};
use crate::readiness::Readiness;

/// How long the API server keeps a watch open, in seconds. Every end of one costs requests of every agent.
pub const OPEN: u32 = 3600;

/// The settings of every watch.
pub fn config() -> Config {
    Config::default().timeout(OPEN)
}

/// Has `writer` take in `events`, and returns the objects that have changed or are gone. Failures are logged; the watcher
/// itself retries. When the API server has gone back in time, `rewound` is called before everything is listed anew. The
/// first list is expected among `lists`.
pub fn follow<K: Kept>(
    readiness: Readiness,
    lists: FirstLists,
    mut writer: Writer<K>,
    events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static,
    rewound: impl Fn() + Send + 'static,
) -> impl Stream<Item = ObjectRef<K>> + Send {
    let resource = K::plural(&());
    lists.expect(&resource);
    events.flat_map(move |event| {
        let changed = match event {
            Ok(event) => {
                let changed = writer.take(&event);
                if matches!(event, Event::InitDone) {
                    lists.complete(&resource);
                }
                changed
            }
            Err(error) => {
                let reason = interruption(&error);
                warn!("watching {resource} is interrupted: {reason}");
                instrument::interrupted(&readiness, &resource, &reason);
                if matches!(&error, watcher::Error::WatchError(status) if is_rewound(status)) {
                    rewound();
                }
                Vec::new()
            }
        };
        stream::iter(changed)
    })
}

fn interruption(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => error_text(error),
        watcher::Error::WatchError(status) => status.message.clone(),
        watcher::Error::NoResourceVersion => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::kubernetes::known::Known;

    fn object(name: &str, uid: &str) -> ConfigMap {
        serde_json::from_value(serde_json::json!({ "metadata": { "namespace": "n", "name": name, "uid": uid } }))
            .unwrap()
    }

    async fn reported_after(events: Vec<Event<ConfigMap>>) -> Vec<(String, bool)> {
        let (known, writer) = Known::new();
        let changed = follow(
            Readiness::default(),
            FirstLists::default(),
            writer,
            stream::iter(events.into_iter().map(Ok)),
            || {},
        );
        // Each object is looked up in the store as soon as it is reported.
        let mut reported: Vec<_> =
            changed.map(|object| (object.name.clone(), known.get(&object).is_some())).collect().await;
        reported.sort();
        reported
    }

    fn pairs(expected: &[(&str, bool)]) -> Vec<(String, bool)> {
        expected.iter().map(|(name, there)| ((*name).to_owned(), *there)).collect()
    }

    #[tokio::test]
    async fn a_list_is_reported_when_it_is_complete() {
        let begun = vec![Event::Init, Event::InitApply(object("a", "1")), Event::InitApply(object("b", "2"))];
        assert_eq!(reported_after(begun.clone()).await, pairs(&[]));
        let complete = [begun, vec![Event::InitDone]].concat();
        assert_eq!(reported_after(complete.clone()).await, pairs(&[("a", true), ("b", true)]));
    }

    #[tokio::test]
    async fn a_later_list_reports_what_came_and_what_went() {
        let events = vec![
            Event::Init,
            Event::InitApply(object("gone", "1")),
            Event::InitDone,
            Event::Init,
            Event::InitApply(object("new", "2")),
            Event::InitDone,
        ];
        assert_eq!(reported_after(events).await, pairs(&[("gone", false), ("gone", true), ("new", true)]));
    }

    #[tokio::test]
    async fn an_unknown_object_is_not_missed() {
        let events = vec![
            Event::Apply(object("a", "1")),
            Event::Delete(object("a", "1")),
            Event::Delete(object("foreign", "2")),
        ];
        assert_eq!(reported_after(events).await, pairs(&[("a", false), ("a", true)]));
    }
}
