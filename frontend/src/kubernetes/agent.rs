//! The agent's life cycle: it finds the API server, learns its identity, then runs the controllers concurrently.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_protocol::DriverName;
use futures::{Stream, StreamExt, future, stream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::runtime::reflector::{ObjectRef, store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::api::access::{Access, AccessError};
use super::api::backoff::{Interruptions, jitter};
use super::api::events::{Events, Reason};
use super::api::failure::Failure;
use super::api::node_identity::NodeIdentity;
use super::api::registered;
use super::api::token;
use super::api::watch::{config, follow};
use super::capacity::publisher::CapacityPublisher;
use super::capacity::schedule;
use super::claims::controller::ClaimController;
use super::claims::scope::Scope;
use super::claims::watch::watch;
use super::context::{Context, Stores};
use super::health;
use super::memory::Memory;
use super::objects::claim;
use super::policies;
use super::reconcile::{self, Changes};
use super::view::View;
use super::volumes::orphans;
use super::volumes::reclaimer::Reclaimer;
use crate::readiness::{Part, Readiness};
use crate::server::Shutdown;
use crate::volumes::{InFlight, Place, Volumes};

/// How long to wait before trying to reach the API server again.
const RETRY: Duration = Duration::from_secs(5);

/// A node's storage agent.
pub struct Agent {
    /// The access to the API server.
    pub access: Access,
    /// The namespace of the agent's own objects; if not given, that of its service account or kubeconfig.
    pub namespace: Option<String>,
    /// The driver whose claims it serves.
    pub driver: DriverName,
    /// Its node.
    pub node: String,
    /// The node's volumes.
    pub volumes: Volumes,
    /// Shows others what the agent knows.
    pub view: View,
    /// Records what the agent is waiting for.
    pub readiness: Readiness,
}

/// What an agent works with once it has reached the API server.
struct Connected {
    context: Arc<Context>,
    claims: Changes<PersistentVolumeClaim>,
    persistent_volumes: Changes<PersistentVolume>,
}

/// Why the agent does not work yet.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    Identity(#[from] Failure),
}

impl Agent {
    /// Works until `shutdown` begins, then finishes the work in progress. Waits for an API server that is away.
    pub async fn run(self, shutdown: Shutdown) {
        let access = self.access.clone();
        for part in Part::OF_AGENT {
            self.readiness.not_ready(part, "the API server has not answered yet");
        }
        let connected = tokio::select! {
            connected = self.connect() => connected,
            () = shutdown.begun() => return,
        };
        let Connected { context, claims, persistent_volumes } = connected;
        let capacity = Arc::new(CapacityPublisher::new(Arc::clone(&context)));
        let claim_controller = Arc::new(ClaimController::new(Arc::clone(&context), Arc::clone(&capacity)));
        let reclaimer = Arc::new(Reclaimer::new(Arc::clone(&context)));
        let stop = || {
            let shutdown = shutdown.clone();
            Box::pin(async move { shutdown.begun().await })
        };
        let Stores { claims: claim_store, persistent_volumes: volume_store, .. } = &context.stores;
        let controllers = future::join(
            reconcile::run(claim_controller, claim_store.clone(), claims.take_until(stop()).boxed()),
            reconcile::run(reclaimer, volume_store.clone(), persistent_volumes.take_until(stop()).boxed()),
        );
        let background = async {
            if context.stores.are_complete().await {
                let token = token::watch_expiry(&access, |note| {
                    context.events.publish_about(context.node.reference(), Reason::TokenExpiring, note);
                });
                future::join4(schedule::run(&capacity), orphans::run(&context), health::report(&context), token).await;
            }
        };
        tokio::select! {
            _ = controllers => {}
            () = background => {}
        }
    }

    /// Reaches the API server and starts to watch.
    async fn connect(self) -> Connected {
        let (client, node, namespace) = loop {
            match self.introduce().await {
                Ok(introduced) => break introduced,
                Err(why) => {
                    self.view.is_starting(why.to_string());
                    error!("not working for Kubernetes yet: {why}");
                    self.readiness.not_ready(Part::Agent, why);
                }
            }
            sleep(RETRY + jitter(RETRY)).await;
        };
        info!(node = %node.name, %namespace, "working for Kubernetes");
        self.readiness.ready(Part::Agent);
        tokio::spawn(registered::look(client.clone(), self.driver.clone(), node.name.clone(), self.readiness.clone()));
        let place = Place::new(&self.driver, &node.name);
        let scope = Scope { driver: self.driver.to_string(), node: node.name.clone(), place: place.clone() };
        let (classes, class_writer) = store();
        let (claims, claim_writer) = store();
        let (persistent_volumes, persistent_volume_writer) = store();
        let class_events =
            watcher(Api::<StorageClass>::all(client.clone()), config()).backoff(Interruptions::default());
        let persistent_volume_events =
            watcher(Api::<PersistentVolume>::all(client.clone()), config().labels(&place.to_string()))
                .backoff(Interruptions::default());
        let class_changes = follow(self.readiness.clone(), class_writer, class_events);
        let claim_changes = follow(self.readiness.clone(), claim_writer, watch(client.clone(), scope));
        let persistent_volume_changes = follow(self.readiness, persistent_volume_writer, persistent_volume_events);
        let context = Arc::new(Context {
            events: Events::new(client.clone(), &self.driver, &node.name),
            client,
            driver: self.driver,
            node,
            place,
            namespace,
            volumes: self.volumes,
            making: InFlight::default(),
            stores: Stores { classes, claims, persistent_volumes },
            memory: Memory::default(),
            capacity_changed: Notify::new(),
            orphan_suspected: Notify::new(),
        });
        self.view.works(Arc::clone(&context));
        let of_changed_classes = waiting_claims(Arc::clone(&context), class_changes);
        Connected {
            context,
            claims: stream::select(claim_changes, of_changed_classes).boxed(),
            persistent_volumes: persistent_volume_changes.boxed(),
        }
    }

    async fn introduce(&self) -> Result<(Client, NodeIdentity, String), ConnectError> {
        let (client, namespace) = self.access.client(&self.readiness).await?;
        let node = NodeIdentity::review(&client, &self.node).await?;
        policies::check(&client, &node.account).await?;
        if node.uid.is_none() {
            warn!(
                "the token is not bound to a node: the cluster's policies refuse its writes, and capacity objects outlive the node; use a token that is bound to a pod or to the node"
            );
        }
        Ok((client, node, self.namespace.clone().unwrap_or(namespace)))
    }
}

/// The claims that a change to their class may help.
fn waiting_claims(
    context: Arc<Context>,
    classes: impl Stream<Item = ObjectRef<StorageClass>> + Send + 'static,
) -> Changes<PersistentVolumeClaim> {
    classes
        .flat_map(move |class| {
            context.capacity_changed.notify_one();
            // The class of a claim that is watched without its contents is unknown.
            let waiting = context.stores.claims.state_filter(|waiting| {
                let is_concerned = waiting.spec.is_none() || claim::class(waiting) == Some(&class.name);
                is_concerned && claim::persistent_volume(waiting).is_none() && !claim::is_bound(waiting)
            });
            stream::iter(waiting.into_iter().map(|waiting| ObjectRef::from_obj(&*waiting)))
        })
        .boxed()
}
