//! Watching the objects that concern this node. Their driver is not among their metadata, so that without
//! the policy all of them are watched whole.

use std::future::ready;
use std::pin::pin;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tracing::warn;

use super::kind::Kind;
use super::scope::{filter, includes};
use crate::kubernetes::api::backoff::Interruptions;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::pages::{PAGE, list};
use crate::kubernetes::api::request::request;
use crate::kubernetes::api::watch::config;
use crate::kubernetes::labels::scope::Scope;
use crate::kubernetes::labels::unlabelled::Found;
use crate::kubernetes::labels::watch::{Labelled, Watched};

/// How soon to ask again whether the cluster knows snapshots.
const UNKNOWN: Duration = Duration::from_secs(120);

impl<K: Kind> Labelled for K {
    const OBJECTS: &'static str = K::MANY;
    const EVERYTHING: &'static str = K::EVERYTHING;
    const POLICY: &'static str = K::POLICY;

    async fn is_known(client: &Client) -> Result<Result<(), Duration>, Failure> {
        let version = K::api_version(&());
        let found = request("asking whether the cluster knows snapshots", client.list_api_group_resources(&version));
        match found.await {
            Ok(found) if found.resources.iter().any(|known| known.name == K::plural(&())) => Ok(Ok(())),
            Ok(_) => Ok(Err(UNKNOWN)),
            Err(failure) if failure.is_unknown_kind() => Ok(Err(UNKNOWN)),
            Err(failure) => Err(failure),
        }
    }

    fn labelled(client: &Client, scope: &Scope) -> BoxStream<'static, Watched<Self>> {
        // Those that no node has yet have an empty value.
        let labels = format!("{} in (,{})", scope.place.key(), scope.place.value());
        watcher(Api::<K>::all(client.clone()), config().labels(&labels)).backoff(Interruptions::default()).boxed()
    }

    fn among_all(client: &Client, scope: &Scope) -> BoxStream<'static, Watched<Self>> {
        let scope = scope.clone();
        watcher(Api::<K>::all(client.clone()), config().page_size(PAGE))
            .backoff(Interruptions::default())
            .try_filter_map(move |event| ready(Ok(filter(&scope, event))))
            .boxed()
    }

    async fn find_unlabelled(client: &Client, scope: &Scope) -> Found<Self> {
        let labels = format!("!{}", scope.place.key());
        let mut listed = pin!(list("listing snapshots without a label", Api::<K>::all(client.clone()), Some(&labels)));
        let (mut found, mut seen) = (Vec::new(), 0_u32);
        loop {
            match listed.try_next().await {
                Ok(Some(content)) => {
                    seen = seen.saturating_add(1);
                    if includes(scope, &content) {
                        found.push(content);
                    }
                }
                Ok(None) => return Found::among(seen, found),
                Err(failure) => {
                    warn!("{failure}");
                    return Found::incomplete(found);
                }
            }
        }
    }
}
