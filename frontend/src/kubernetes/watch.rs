//! Watching objects: a store of them, and a stream of those that have changed.

use std::fmt::Debug;
use std::hash::Hash;

use futures::{Stream, StreamExt, future};
use k8s_openapi::serde::de::DeserializeOwned;
use kube::Resource;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, reflector};
use kube::runtime::watcher::{self, Event};
use tracing::warn;

use super::failure::told;

/// Keeps `writer`'s store like `events`, and tells which objects have changed or gone. What fails is logged, and
/// tried again by the watcher itself.
pub(super) fn follow<K>(
    what: &'static str,
    writer: Writer<K>,
    events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static,
) -> impl Stream<Item = ObjectRef<K>> + Send
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Eq + Hash,
{
    let slim = events.modify(|object| object.meta_mut().managed_fields = None);
    reflector(writer, slim).touched_objects().filter_map(move |outcome| {
        future::ready(match outcome {
            Ok(object) => Some(ObjectRef::from_obj(&object)),
            Err(error) => {
                warn!("watching {what} is interrupted: {}", reason(&error));
                None
            }
        })
    })
}

fn reason(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => told(error),
        watcher::Error::WatchError(status) => status.message.clone(),
        watcher::Error::NoResourceVersion => error.to_string(),
    }
}
