//! Watching the claims that concern this node, and no others.
//!
//! An admission policy copies the selected node into a label, so that the API server sends an agent only its own
//! claims. Without that policy the agent watches the metadata of all claims, and drops those that do not concern it as
//! they arrive.

use std::future::{pending, ready};
use std::time::Duration;

use bulkhead_model::objects::names::CLAIM_POLICY;
use futures::channel::mpsc::{self, Sender};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, SinkExt, Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::policy::{WatchMode, watch_mode};
use super::scope::Scope;
use super::unlabelled::{self, Found};
use crate::kubernetes::api::backoff::{Interruptions, jitter};
use crate::kubernetes::api::pages::PAGE;
use crate::kubernetes::api::watch::config;

/// How soon to review the mode again when the API server has not answered.
const AFTER_FAILURE: Duration = Duration::from_secs(7);

type ClaimEvent = Result<Event<PersistentVolumeClaim>, watcher::Error>;

/// The claims in `scope`. Where they arrive without contents, `spec` is `None`.
pub fn watch(client: Client, scope: Scope) -> impl Stream<Item = ClaimEvent> + Send {
    let (sender, receiver) = mpsc::channel(0);
    tokio::spawn(feed(client, scope, sender));
    receiver
}

/// Watches in whichever mode is possible, and switches when the policy is added or removed.
async fn feed(client: Client, scope: Scope, mut sender: Sender<ClaimEvent>) {
    let mut before = None;
    while !sender.is_closed() {
        let (mode, mut review) = current_mode(&client, &scope, before).await;
        if before != Some(mode) {
            announce(mode);
        }
        before = Some(mode);
        let mut events = events(&client, &scope, mode);
        let mut unlabelled = unlabelled::Schedule::default();
        // The search may read many pages of other drivers' claims: events do not wait for it.
        let mut finding: Option<BoxFuture<'_, Found>> = None;
        loop {
            tokio::select! {
                event = events.next() => {
                    let Some(event) = event else { break };
                    if matches!(event, Ok(Event::InitDone)) {
                        unlabelled.watch_restarted();
                    }
                    if sender.send(event).await.is_err() {
                        return;
                    }
                }
                () = sleep_until(review) => {
                    let (now, next_review) = current_mode(&client, &scope, before).await;
                    if now != mode {
                        break;
                    }
                    review = next_review;
                }
                () = unlabelled.is_due(), if mode == WatchMode::Labelled && finding.is_none() => {
                    finding = Some(unlabelled::find(&client, &scope).boxed());
                }
                found = finished(&mut finding) => {
                    finding = None;
                    unlabelled.plan(&found);
                    for claim in found.free {
                        if sender.send(Ok(Event::Apply(claim))).await.is_err() {
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// The result of `finding`; waits for ever if nothing is being looked for.
async fn finished(finding: &mut Option<BoxFuture<'_, Found>>) -> Found {
    match finding {
        Some(finding) => finding.await,
        None => pending().await,
    }
}

/// The mode to watch in, and when to review it. Without an answer from the API server it stays as it was `before`.
async fn current_mode(client: &Client, scope: &Scope, before: Option<WatchMode>) -> (WatchMode, Instant) {
    let (mode, pause) = watch_mode(client, scope).await.unwrap_or_else(|failure| {
        warn!("{failure}");
        (before.unwrap_or(WatchMode::Everything), AFTER_FAILURE)
    });
    (mode, Instant::now() + pause + jitter(pause))
}

fn announce(mode: WatchMode) {
    match mode {
        WatchMode::Labelled => info!("watching claims by label"),
        WatchMode::Everything => warn!(
            "admission policy {CLAIM_POLICY} is not in force for this node: watching the metadata of all claims, which is costly in a large cluster; apply the policies"
        ),
    }
}

fn events(client: &Client, scope: &Scope, mode: WatchMode) -> BoxStream<'static, ClaimEvent> {
    match mode {
        WatchMode::Labelled => {
            let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
            // Those that any node may take have an empty value.
            let labels = format!("{} in (,{})", scope.place.key(), scope.place.value());
            watcher(claims, config().labels(&labels)).backoff(Interruptions::default()).boxed()
        }
        WatchMode::Everything => {
            let partial: Api<PartialObjectMeta<PersistentVolumeClaim>> = Api::all(client.clone());
            let scope = scope.clone();
            watcher(partial, config().page_size(PAGE))
                .backoff(Interruptions::default())
                .try_filter_map(move |event| ready(Ok(scope.filter(event))))
                .boxed()
        }
    }
}
