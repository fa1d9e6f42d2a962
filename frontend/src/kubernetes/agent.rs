//! The agent's life: find the API server, learn who it is, then run the controllers side by side.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_protocol::DriverName;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, future};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::runtime::controller::{Action, Config as ApplierConfig, Error as ApplierError};
use kube::runtime::reflector::{ObjectRef, store};
use kube::runtime::watcher::Config;
use kube::runtime::{WatchStreamExt, applier, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::access::Access;
use super::backoff::{Attempts, random};
use super::capacity::Publisher;
use super::claims::{self, Concern};
use super::contest::Contest;
use super::context::{Context, Written};
use super::events::Events;
use super::failure::{Failure, ask};
use super::identity::NodeIdentity;
use super::resizer::Hopeless;
use super::watch::follow;
use super::{claim, provisioner, reclaimer, resizer, settler};
use crate::server::Shutdown;
use crate::volumes::{Place, Volumes};

/// How long to wait before the API server is asked again who this is.
const RETRY: Duration = Duration::from_secs(5);

/// How many claims, and how many volumes, are worked on at a time. More would only wait for the helper.
const CONCURRENCY: u16 = 16;

/// A node's storage agent.
pub struct Agent {
    /// The way to the API server.
    pub access: Access,
    /// The namespace of what belongs to the agent itself; if not given, that of its service account or kubeconfig.
    pub namespace: Option<String>,
    /// The driver whose claims it serves.
    pub driver: DriverName,
    /// Its node.
    pub node: String,
    /// The node's volumes.
    pub volumes: Volumes,
}

type Queue<K> = BoxStream<'static, ObjectRef<K>>;

impl Agent {
    /// Works until `shutdown` begins, and ends what is under way then. An API server that is away is waited for.
    pub async fn run(self, shutdown: Shutdown) {
        let context = tokio::select! {
            parts = self.join() => parts,
            () = shutdown.begun() => return,
        };
        let (context, claims, objects) = context;
        let stop = || {
            let shutdown = shutdown.clone();
            async move { shutdown.begun().await }
        };
        let reconciling = future::join(
            reconcile_claims(Arc::clone(&context), claims.take_until(Box::pin(stop())).boxed()),
            reconcile_objects(Arc::clone(&context), objects.take_until(Box::pin(stop())).boxed()),
        );
        let background = async {
            if context.is_informed().await {
                future::join(context.publisher.run(&context), settler::run(&context)).await;
            }
        };
        tokio::select! {
            _ = reconciling => {}
            () = background => {}
        }
    }

    /// Finds the API server and begins to watch.
    async fn join(self) -> (Arc<Context>, Queue<PersistentVolumeClaim>, Queue<PersistentVolume>) {
        let (client, node, namespace) = loop {
            match self.introduce().await {
                Ok(introduced) => break introduced,
                Err(why) => error!("not working for Kubernetes yet: {why}"),
            }
            sleep(RETRY + random(RETRY)).await;
        };
        info!(node = %node.name, %namespace, "working for Kubernetes");
        let place = Place::new(&self.driver, &node.name);
        let (classes, class_writer) = store();
        let (claims, claim_writer) = store();
        let (objects, object_writer) = store();
        let class_changes = follow(
            "storage classes",
            class_writer,
            watcher(Api::<StorageClass>::all(client.clone()), Config::default()).default_backoff(),
        );
        let labels = format!("{}={}", place.key(), place.value());
        let object_changes = follow(
            "PersistentVolumes",
            object_writer,
            watcher(Api::<PersistentVolume>::all(client.clone()), Config::default().labels(&labels)).default_backoff(),
        );
        let concern = Concern {
            client: client.clone(),
            driver: self.driver.to_string(),
            node: node.name.clone(),
            place: place.clone(),
        };
        let claim_changes = follow("claims", claim_writer, claims::watch(concern));
        let context = Arc::new(Context {
            events: Events::new(client.clone(), &self.driver, &node.name),
            client,
            driver: self.driver,
            node,
            place,
            namespace,
            volumes: self.volumes,
            classes,
            claims,
            objects,
            attempts: Attempts::default(),
            contest: Contest::default(),
            hopeless: Hopeless::default(),
            publisher: Publisher::default(),
            written: Written::default(),
            unsettled: Notify::new(),
        });
        let of_class = waiting_for(Arc::clone(&context), class_changes);
        let claims = stream::select(claim_changes, of_class).boxed();
        (context, claims, object_changes.boxed())
    }

    async fn introduce(&self) -> Result<(Client, NodeIdentity, String), Introduction> {
        let (client, namespace) = self.access.client().await?;
        let node = NodeIdentity::review(&client, &self.node).await?;
        Ok((client, node, self.namespace.clone().unwrap_or(namespace)))
    }
}

/// Why the agent does not work yet.
#[derive(Debug, thiserror::Error)]
enum Introduction {
    #[error(transparent)]
    Access(#[from] super::access::AccessError),
    #[error(transparent)]
    Identity(#[from] Failure),
}

/// The claims that a change of their class may help.
fn waiting_for(
    context: Arc<Context>,
    classes: impl Stream<Item = ObjectRef<StorageClass>> + Send + 'static,
) -> Queue<PersistentVolumeClaim> {
    classes
        .flat_map(move |class| {
            context.publisher.nudge();
            let waiting = context
                .claims
                .state_filter(|waiting| claim::class(waiting) == Some(&class.name) && claim::volume(waiting).is_none());
            stream::iter(waiting.into_iter().map(|waiting| ObjectRef::from_obj(&*waiting)))
        })
        .boxed()
}

async fn reconcile_claims(context: Arc<Context>, queue: Queue<PersistentVolumeClaim>) {
    let reconciler = |claim: Arc<PersistentVolumeClaim>, context: Arc<Context>| Box::pin(serve_claim(context, claim));
    let policy = |claim: Arc<PersistentVolumeClaim>, failure: &Failure, context: Arc<Context>| {
        let delay = context.attempts.after(claim::uid(&claim), failure);
        log_api(failure, "claim", &claim.name_any(), delay);
        Action::requeue(delay)
    };
    let config = ApplierConfig::default().concurrency(CONCURRENCY);
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

async fn reconcile_objects(context: Arc<Context>, queue: Queue<PersistentVolume>) {
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
    let config = ApplierConfig::default().concurrency(CONCURRENCY);
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
