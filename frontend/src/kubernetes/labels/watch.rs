//! The watch itself, in whichever mode is possible.

use std::future::{Future, pending};
use std::time::Duration;

use futures::channel::mpsc::{self, Sender};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, SinkExt, Stream, StreamExt, stream};
use kube::Client;
use kube::runtime::watcher::{self, Event};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::policy_watch::changes;
use super::scope::Scope;
use super::unlabelled::{Found, Schedule};
use super::watch_mode::{WatchMode, watch_mode};
use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::failure::{Failure, is_unknown_kind};

/// How soon to review the mode while the policy is watched, which tells of it in time.
const WATCHED: Duration = Duration::from_secs(3600);

/// How soon to review the mode again when the API server has not answered.
const AFTER_FAILURE: Duration = Duration::from_secs(7);

/// What a watch reports.
pub type Watched<K> = Result<Event<K>, watcher::Error>;

/// A kind of objects, of which some concern an agent.
pub trait Labelled: Sized + Send + 'static {
    /// What they are called in logs.
    const OBJECTS: &'static str;

    /// What is watched without the policy, as it is called in logs.
    const EVERYTHING: &'static str;

    /// The admission policy, and its binding, that sets the label.
    const POLICY: &'static str;

    /// Returns whether the cluster knows the kind, and how soon to ask again if not.
    fn is_known(client: &Client) -> impl Future<Output = Result<Result<(), Duration>, Failure>> + Send;

    /// Those with the label of the scope's node, or with the empty one.
    fn labelled(client: &Client, scope: &Scope) -> BoxStream<'static, Watched<Self>>;

    /// Those of the scope among all there are.
    fn among_all(client: &Client, scope: &Scope) -> BoxStream<'static, Watched<Self>>;

    /// Looks for those of the scope that have no label.
    fn find_unlabelled(client: &Client, scope: &Scope) -> impl Future<Output = Found<Self>> + Send;
}

/// The objects of one kind in `scope`, for as long as the other part of the result is polled.
pub fn watch<K: Labelled>(
    client: Client,
    scope: Scope,
) -> (impl Stream<Item = Watched<K>> + Send, impl Future<Output = ()> + Send) {
    let (sender, receiver) = mpsc::channel(0);
    (receiver, feed(client, scope, sender))
}

/// Watches, and switches modes when the policy is added or removed.
async fn feed<K: Labelled>(client: Client, scope: Scope, mut sender: Sender<Watched<K>>) {
    let mut before = None;
    while !sender.is_closed() {
        let (mode, mut review) = current_mode::<K>(&client, &scope, before, false).await;
        if before != Some(mode) {
            announce::<K>(mode);
        }
        before = Some(mode);
        let mut events = events::<K>(&client, &scope, mode);
        // A watch that works shows that the kind is known.
        let mut is_known = mode != WatchMode::Unknown;
        let mut unlabelled = Schedule::default();
        // The search may read many pages of other drivers' objects: events do not wait for it.
        let mut finding: Option<BoxFuture<'_, Found<K>>> = None;
        let watch_policy = || (mode == WatchMode::Labelled).then(|| changes(&client, K::POLICY));
        let mut policy = watch_policy();
        loop {
            tokio::select! {
                event = events.next() => {
                    let Some(event) = event else { break };
                    match &event {
                        Ok(Event::InitDone) => unlabelled.watch_restarted(),
                        Err(error) if is_unknown(error) => (review, is_known) = (Instant::now(), false),
                        _ => {}
                    }
                    if sender.send(event).await.is_err() {
                        return;
                    }
                }
                () = sleep_until(review) => {
                    let (now, next_review) = current_mode::<K>(&client, &scope, before, is_known).await;
                    if now != mode {
                        break;
                    }
                    policy = policy.or_else(watch_policy);
                    review = next_review;
                }
                changed = next(&mut policy) => {
                    policy = policy.filter(|_| changed.is_some());
                    review = Instant::now() + if changed.is_some() { Duration::ZERO } else { scope.intervals.policies };
                }
                () = unlabelled.is_due(), if mode == WatchMode::Labelled && finding.is_none() => {
                    finding = Some(K::find_unlabelled(&client, &scope).boxed());
                }
                found = finished(&mut finding) => {
                    finding = None;
                    unlabelled.plan(&found, scope.intervals.unlabelled);
                    for object in found.objects {
                        if sender.send(Ok(Event::Apply(object))).await.is_err() {
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// The result of `finding`; waits for ever if nothing is being looked for.
async fn finished<K>(finding: &mut Option<BoxFuture<'_, Found<K>>>) -> Found<K> {
    match finding {
        Some(finding) => finding.await,
        None => pending().await,
    }
}

/// The next change of the policy; waits for ever if it is not watched.
async fn next(policy: &mut Option<BoxStream<'static, ()>>) -> Option<()> {
    match policy {
        Some(policy) => policy.next().await,
        None => pending().await,
    }
}

/// The mode to watch in, and when to review it. Without an answer from the API server it stays as it was `before`.
async fn current_mode<K: Labelled>(
    client: &Client,
    scope: &Scope,
    before: Option<WatchMode>,
    is_known: bool,
) -> (WatchMode, Instant) {
    let (mode, pause) = mode_now::<K>(client, scope, is_known).await.unwrap_or_else(|failure| {
        warn!("{failure}");
        (before.unwrap_or(WatchMode::Everything), AFTER_FAILURE)
    });
    (mode, Instant::now() + pause + jitter(pause))
}

async fn mode_now<K: Labelled>(
    client: &Client,
    scope: &Scope,
    is_known: bool,
) -> Result<(WatchMode, Duration), Failure> {
    let known = if is_known { Ok(()) } else { K::is_known(client).await? };
    match known {
        Ok(()) => {
            let (mode, pause) = watch_mode(client, K::POLICY, scope).await?;
            Ok((mode, if mode == WatchMode::Labelled { WATCHED } else { pause }))
        }
        Err(pause) => Ok((WatchMode::Unknown, pause)),
    }
}

fn announce<K: Labelled>(mode: WatchMode) {
    match mode {
        WatchMode::Labelled => info!("watching {} by label", K::OBJECTS),
        WatchMode::Everything => warn!(
            "admission policy {} is not in force for this node: watching {}, which is costly in a large cluster; apply the policies",
            K::POLICY,
            K::EVERYTHING
        ),
        WatchMode::Unknown => debug!("the cluster has no {}", K::OBJECTS),
    }
}

fn events<K: Labelled>(client: &Client, scope: &Scope, mode: WatchMode) -> BoxStream<'static, Watched<K>> {
    match mode {
        WatchMode::Labelled => K::labelled(client, scope),
        WatchMode::Everything => K::among_all(client, scope),
        WatchMode::Unknown => stream::iter([Ok(Event::Init), Ok(Event::InitDone)]).chain(stream::pending()).boxed(),
    }
}

/// Returns whether the API server says that it does not know the kind.
fn is_unknown(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => is_unknown_kind(status),
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::WatchError(_)
        | watcher::Error::NoResourceVersion => false,
    }
}
