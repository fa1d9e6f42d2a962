//! One object at a time: what has changed is looked at, what has failed is tried again later.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{StreamExt, future};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::runtime::applier;
use kube::runtime::controller::{Action, Config, Error as ApplierError};
use kube::runtime::reflector::ObjectRef;
use tracing::warn;

use super::api::failure::{Failure, ask};
use super::claims::{provisioner, resizer};
use super::context::Context;
use super::objects::claim;
use super::volumes::reclaimer;

/// How many claims, and how many volumes, are worked on at a time. More would only wait for the helper.
const CONCURRENCY: u16 = 16;

/// Objects that have changed.
pub(super) type Queue<K> = BoxStream<'static, ObjectRef<K>>;

/// Does what the claims in `queue` need until it ends.
pub(super) async fn claims(context: Arc<Context>, queue: Queue<PersistentVolumeClaim>) {
    let reconciler = |claim: Arc<PersistentVolumeClaim>, context: Arc<Context>| Box::pin(serve_claim(context, claim));
    let policy = |claim: Arc<PersistentVolumeClaim>, failure: &Failure, context: Arc<Context>| {
        let delay = context.attempts.after(claim::uid(&claim), failure);
        log_api(failure, "claim", &claim.name_any(), delay);
        Action::requeue(delay)
    };
    let config = Config::default().concurrency(CONCURRENCY);
    let claims = context.claims.clone();
    applier(reconciler, policy, Arc::clone(&context), claims, queue.map(Ok::<_, Infallible>), config)
        .for_each(|outcome| {
            forget_if_gone(&context, &outcome);
            if let Err(ApplierError::ObjectNotFound(_)) = outcome {
                // It vanished, perhaps while its volume was being made.
                context.unsettled.notify_one();
            }
            future::ready(())
        })
        .await;
}

/// Does what the PersistentVolumes in `queue` need until it ends.
pub(super) async fn objects(context: Arc<Context>, queue: Queue<PersistentVolume>) {
    let reconciler = |object: Arc<PersistentVolume>, context: Arc<Context>| {
        Box::pin(async move {
            let outcome = reclaimer::serve(&context, &object).await;
            if outcome.is_ok() {
                context.attempts.forget(&object.uid().unwrap_or_default());
            }
            outcome
        })
    };
    let policy = |object: Arc<PersistentVolume>, failure: &Failure, context: Arc<Context>| {
        let delay = context.attempts.after(&object.uid().unwrap_or_default(), failure);
        log_api(failure, "PersistentVolume", &object.name_any(), delay);
        Action::requeue(delay)
    };
    let config = Config::default().concurrency(CONCURRENCY);
    let objects = context.objects.clone();
    applier(reconciler, policy, Arc::clone(&context), objects, queue.map(Ok::<_, Infallible>), config)
        .for_each(|outcome| {
            forget_if_gone(&context, &outcome);
            future::ready(())
        })
        .await;
}

/// Does what `claim` needs, whatever state it is in.
async fn serve_claim(context: Arc<Context>, claim: Arc<PersistentVolumeClaim>) -> Result<Action, Failure> {
    if !context.is_informed().await {
        return Ok(Action::await_change());
    }
    let uid = claim::uid(&claim);
    if context.written.overtook(uid, claim.metadata.resource_version.as_deref()) {
        return Ok(Action::await_change());
    }
    let Some(claim) = with_contents(&context, claim).await? else { return Ok(Action::await_change()) };
    let uid = claim::uid(&claim);
    if claim::selected_node(&claim).is_some() || claim::volume(&claim).is_some() {
        context.contest.forget(uid);
    }
    let outcome = if claim::volume(&claim).is_some() {
        resizer::serve(&context, &claim).await
    } else {
        provisioner::serve(&context, &claim).await
    };
    if outcome.is_ok() {
        context.attempts.forget(uid);
    }
    outcome
}

/// The claim with its contents, which are not watched where the policy is missing.
async fn with_contents(
    context: &Context,
    claim: Arc<PersistentVolumeClaim>,
) -> Result<Option<Arc<PersistentVolumeClaim>>, Failure> {
    if claim.spec.is_some() {
        return Ok(Some(claim));
    }
    let claims = context.claims_beside(&claim);
    let found = ask("reading a claim", claims.get_opt(&claim.name_any())).await?;
    Ok(found.filter(|found| found.metadata.uid == claim.metadata.uid).map(Arc::new))
}

/// Forgets what is remembered of objects that are gone.
fn forget_if_gone<T>(context: &Context, outcome: &Result<T, ApplierError<Failure, Infallible>>) {
    if let Err(ApplierError::ObjectNotFound(object)) = outcome {
        let uid = object.extra.uid.as_deref().unwrap_or_default();
        context.attempts.forget(uid);
        context.written.forget(uid);
        context.contest.forget(uid);
        context.hopeless.forget(uid);
    }
}

/// Logs a failure that no event tells of.
fn log_api(failure: &Failure, kind: &'static str, name: &str, delay: Duration) {
    if matches!(failure, Failure::Api { .. } | Failure::Hung(_)) && !failure.is_conflict() {
        warn!(kind, name, again_in = ?delay, "{failure}");
    }
}
