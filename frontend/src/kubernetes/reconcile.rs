//! The loop that every controller runs in: one look at a time for each object that has changed, and another one later
//! if it fails. The library's `Controller` would open a watch of its own; these share the stores of a single one, so that they
//! use the part of it below: the applier.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::runtime::applier;
use kube::runtime::controller::{Action, Config, Error as ApplierError};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use tokio::sync::watch;
use tracing::warn;

use super::api::backoff::retry_delay;
use super::api::failure::Failure;
use super::memory::Memory;
use crate::call_id::numbered;
use crate::metrics::METRICS;
use crate::server::Shutdown;

/// How many objects of a kind are worked on at a time. More would only wait for the helper.
const CONCURRENCY: u16 = 16;

/// The objects that have changed, once for each change.
pub type Changes<K> = BoxStream<'static, ObjectRef<K>>;

/// A controller of one kind of object.
pub trait Controller: Send + Sync + 'static {
    /// The kind.
    type Object: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static;

    /// Returns what all controllers remember of objects.
    fn memory(&self) -> &Memory;

    /// Does whatever `object` needs in its present state.
    fn reconcile(&self, object: Arc<Self::Object>) -> impl Future<Output = Result<Action, Failure>> + Send;

    /// Called when an object is gone.
    fn gone(&self) {}
}

/// Has `controller` look at the objects in `store` as they change, until `end` begins; then the looks in progress are
/// completed.
pub async fn run<C: Controller>(
    controller: Arc<C>,
    store: Store<C::Object>,
    changes: Changes<C::Object>,
    end: Shutdown,
) {
    let looks = Looks::default();
    let (mut in_progress, begun) = (looks.0.subscribe(), end.clone());
    let reconciler = move |object, controller| Box::pin(look::<C>(object, controller, looks.clone()));
    let error_policy = |object: Arc<C::Object>, failure: &Failure, controller: Arc<C>| {
        let failures = controller.memory().count_failure(&object.uid().unwrap_or_default(), failure.is_final());
        let delay = retry_delay(failures, failure);
        let kind = C::Object::kind(&());
        METRICS.retries.with([&kind, failure.cause()]).inc();
        log(&kind, &object.name_any(), failure, delay);
        Action::requeue(delay)
    };
    let changes = changes.map(Ok::<_, Infallible>).take_until(Box::pin(async move { begun.begun().await }));
    let config = Config::default().concurrency(CONCURRENCY);
    let mut outcomes = Box::pin(applier(reconciler, error_policy, Arc::clone(&controller), store, changes, config));
    let looking = async {
        while let Some(outcome) = outcomes.next().await {
            if let Err(ApplierError::ObjectNotFound(object)) = outcome {
                controller.memory().forget(object.extra.uid.as_deref().unwrap_or_default());
                controller.gone();
            }
        }
    };
    // The applier never ends if its changes do before the store is complete, so it is not waited for.
    let idle = async {
        end.begun().await;
        // It cannot fail: the applier has the sender.
        let _ = in_progress.wait_for(|looks| *looks == 0).await;
    };
    tokio::select! {
        biased;
        () = looking => {}
        () = idle => {}
    }
}

/// How many looks of a controller are in progress.
#[derive(Clone, Default)]
struct Looks(watch::Sender<usize>);

impl Looks {
    fn begin(self) -> Look {
        self.0.send_modify(|looks| *looks += 1);
        Look(self)
    }
}

/// One of them.
struct Look(Looks);

impl Drop for Look {
    fn drop(&mut self) {
        self.0.0.send_modify(|looks| *looks -= 1);
    }
}

async fn look<C: Controller>(object: Arc<C::Object>, controller: Arc<C>, looks: Looks) -> Result<Action, Failure> {
    let _look = looks.begin();
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
