//! The loop that every controller runs in: one look at a time for each object that has changed, and another one later
//! if it fails. The library's controllers look at objects in the order in which they come, so that one namespace's could
//! keep those of all others waiting; these have an [`Agenda`].

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use tokio::task::consume_budget;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use super::agenda::Agenda;
use super::api::backoff::retry_delay;
use super::api::failure::Failure;
use super::known::{Kept, Known};
use super::memory::Memory;
use crate::call_id::numbered;
use crate::metrics::METRICS;
use crate::server::Shutdown;

/// The objects that have changed, once for each change.
pub type Changes<K> = BoxStream<'static, ObjectRef<K>>;

/// When an object is looked at again, unless it changes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action(Option<Duration>);

impl Action {
    /// After this long.
    pub fn requeue(after: Duration) -> Self {
        Self(Some(after))
    }

    /// When it has changed.
    pub fn await_change() -> Self {
        Self(None)
    }
}

/// A controller of one kind of object.
pub trait Controller: Send + Sync + 'static {
    /// The kind.
    type Object: Kept;

    /// Returns what all controllers remember of objects.
    fn memory(&self) -> &Memory;

    /// Whose the object is: the namespace of the claim or snapshot that it belongs to.
    fn namespace(object: &Self::Object) -> String;

    /// Does whatever `object` needs in its present state.
    fn reconcile(&self, object: Arc<Self::Object>) -> impl Future<Output = Result<Action, Failure>> + Send;

    /// Called when an object is gone.
    fn gone(&self) {}
}

/// Has `controller` look at the objects in `store` as they change, until `end` begins; then the looks in progress are
/// completed.
pub async fn run<C: Controller>(
    controller: Arc<C>,
    store: Known<C::Object>,
    changes: Changes<C::Object>,
    end: Shutdown,
) {
    let (mut agenda, mut looks) = (Agenda::default(), FuturesUnordered::new());
    let mut changes = changes.take_until(Box::pin(async move { end.begun().await })).fuse();
    let mut is_over = false;
    while !is_over || !looks.is_empty() {
        // A look that waits for nothing is over at once, and there may be as many as there are objects.
        consume_budget().await;
        let namespace = |object: &ObjectRef<C::Object>| Some(C::namespace(&store.get(object)?));
        while let Some(gone) = agenda.advance(Instant::now(), namespace) {
            controller.memory().forget(gone.extra.uid.as_deref().unwrap_or_default());
            controller.gone();
        }
        while !is_over && let Some((namespace, object)) = agenda.begin() {
            let look = look_now(Arc::clone(&controller), store.get(&object).map(Arc::new));
            looks.push(look.map(|action| (namespace, object, action)).boxed());
        }
        let next = agenda.next();
        tokio::select! {
            change = changes.next(), if !is_over => match change {
                Some(object) => agenda.schedule(object, Instant::now()),
                None => is_over = true,
            },
            Some((namespace, object, Action(after))) = looks.next() => {
                agenda.end(&namespace, object, after.map(|after| Instant::now() + after));
            }
            () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() && !is_over => {}
        }
    }
}

/// Looks at `object`, if it still exists. What fails is done again.
async fn look_now<C: Controller>(controller: Arc<C>, object: Option<Arc<C::Object>>) -> Action {
    // Then it is found that nothing is left to look at.
    let Some(object) = object else { return Action::requeue(Duration::ZERO) };
    let outcome = look(Arc::clone(&object), Arc::clone(&controller)).await;
    outcome.unwrap_or_else(|failure| {
        let failures = controller.memory().count_failure(&object.uid().unwrap_or_default(), failure.is_final());
        let delay = retry_delay(failures, &failure);
        let kind = C::Object::kind(&());
        METRICS.retries.with([&kind, failure.cause()]).inc();
        log(&kind, &object.name_any(), &failure, delay);
        Action::requeue(delay)
    })
}

async fn look<C: Controller>(object: Arc<C::Object>, controller: Arc<C>) -> Result<Action, Failure> {
    let uid = object.uid().unwrap_or_default();
    // The watch has not reported the agent's own last write yet: the state after it is on its way.
    if controller.memory().is_outdated(&uid, object.meta().resource_version.as_deref()) {
        return Ok(Action::await_change());
    }
    let kind = C::Object::kind(&());
    let _in_progress = METRICS.reconciliations_in_progress.during([&kind]);
    let begun = Instant::now();
    let outcome = numbered(controller.reconcile(object)).await;
    METRICS.reconciliations.with([&kind]).observe(begun.elapsed().as_secs_f64());
    if outcome.is_ok() {
        controller.memory().clear_failures(&uid);
    }
    outcome
}

/// Logs a failure that no event reports.
fn log(kind: &str, name: &str, failure: &Failure, delay: Duration) {
    if !failure.is_for_owner() && !failure.is_conflict() {
        warn!(kind, name, again_in = ?delay, "{failure}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::channel::mpsc::{UnboundedSender, unbounded};
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use kube::runtime::watcher::Event;
    use serde_json::{from_value, json};
    use tokio::time::{sleep, timeout};

    use super::*;

    /// A controller whose looks at what is busy take this long, and what it has looked at in full.
    struct Slow(Memory, Duration, Arc<Mutex<Vec<String>>>);

    impl Controller for Slow {
        type Object = PersistentVolumeClaim;

        fn memory(&self) -> &Memory {
            &self.0
        }

        fn namespace(claim: &PersistentVolumeClaim) -> String {
            claim.namespace().unwrap_or_default()
        }

        async fn reconcile(&self, claim: Arc<PersistentVolumeClaim>) -> Result<Action, Failure> {
            if claim.namespace().as_deref() != Some("quiet") {
                sleep(self.1).await;
            }
            self.2.lock().unwrap().push(claim.name_any());
            Ok(Action::await_change())
        }
    }

    /// Such a controller, of claims that are reported one after another, until the end.
    fn begin(
        slow: Duration,
        claims: &[(&str, String)],
    ) -> (Arc<Mutex<Vec<String>>>, Shutdown, impl Future<Output = ()>) {
        let (known, mut writer) = Known::new();
        let (reported, changes): (UnboundedSender<ObjectRef<PersistentVolumeClaim>>, _) = unbounded();
        for (namespace, name) in claims {
            let metadata = json!({ "namespace": namespace, "name": name, "uid": name });
            let claim: PersistentVolumeClaim = from_value(json!({ "metadata": metadata })).unwrap();
            writer.take(&Event::Apply(claim.clone()));
            reported.unbounded_send(ObjectRef::from_obj(&claim)).unwrap();
        }
        let (looked, end) = (Arc::default(), Shutdown::default());
        let controller = Arc::new(Slow(Memory::default(), slow, Arc::clone(&looked)));
        let running = run(controller, known, changes.boxed(), end.clone());
        let running = async move {
            // Dropped at the end, as the watch is.
            let _reported = (reported, writer);
            running.await;
        };
        (looked, end, running)
    }

    #[tokio::test]
    async fn a_claim_does_not_wait_for_those_of_other_namespaces() {
        let mut claims: Vec<_> = ["a", "b", "c"]
            .into_iter()
            .flat_map(|namespace| (0..250).map(move |number| (namespace, format!("busy-{namespace}-{number}"))))
            .collect();
        claims.push(("quiet", "data".to_owned()));
        let (looked, _, running) = begin(Duration::from_secs(30), &claims);
        assert!(timeout(Duration::from_secs(2), running).await.is_err());
        assert_eq!(*looked.lock().unwrap(), ["data"]);
    }

    /// A controller whose looks wait for nothing, and of which there are this many.
    struct Quick(Memory, AtomicUsize);

    impl Controller for Quick {
        type Object = PersistentVolumeClaim;

        fn memory(&self) -> &Memory {
            &self.0
        }

        fn namespace(claim: &PersistentVolumeClaim) -> String {
            claim.namespace().unwrap_or_default()
        }

        async fn reconcile(&self, _: Arc<PersistentVolumeClaim>) -> Result<Action, Failure> {
            let left = self.1.fetch_sub(1, Ordering::Relaxed);
            Ok(if left > 100 { Action::requeue(Duration::ZERO) } else { Action::await_change() })
        }
    }

    #[tokio::test]
    async fn looks_that_wait_for_nothing_leave_others_their_turn() {
        const LOOKS: usize = 20_000;
        let (known, mut writer) = Known::new();
        let claims: Vec<PersistentVolumeClaim> = (0..100)
            .map(|number| {
                let name = format!("claim-{number}");
                from_value(json!({ "metadata": { "namespace": "a", "name": name, "uid": name } })).unwrap()
            })
            .collect();
        claims.iter().for_each(|claim| drop(writer.take(&Event::Apply(claim.clone()))));
        let changes = futures::stream::iter(claims.iter().map(ObjectRef::from_obj).collect::<Vec<_>>());
        let quick = Arc::new(Quick(Memory::default(), AtomicUsize::new(LOOKS)));
        let (seen, end) = (Arc::clone(&quick), Shutdown::default());
        let at_the_end = end.clone();
        let neighbour = tokio::spawn(async move {
            tokio::task::yield_now().await;
            at_the_end.begin();
            seen.1.load(Ordering::Relaxed)
        });
        run(quick, known, changes.chain(futures::stream::pending()).boxed(), end).await;
        let left = neighbour.await.unwrap();
        assert!(left > LOOKS / 2, "the neighbour had its turn when {left} of {LOOKS} looks were left");
    }

    #[tokio::test]
    async fn at_the_end_what_is_looked_at_is_completed_and_nothing_else_begins() {
        let claims: Vec<_> = (0..100).map(|number| ("a", format!("claim-{number}"))).collect();
        let (looked, end, running) = begin(Duration::from_millis(500), &claims);
        let ending = async {
            sleep(Duration::from_millis(100)).await;
            end.begin();
        };
        tokio::join!(running, ending);
        assert_eq!(looked.lock().unwrap().len(), 16);
    }
}
