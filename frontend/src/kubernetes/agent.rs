//! The agent's life: find the API server, learn who it is, then run the controllers side by side.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_protocol::DriverName;
use futures::{Stream, StreamExt, future, stream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::runtime::reflector::{ObjectRef, store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::api::access::{Access, AccessError};
use super::api::backoff::{Attempts, Interruptions, random};
use super::api::events::Events;
use super::api::failure::Failure;
use super::api::identity::NodeIdentity;
use super::api::watch::{config, follow};
use super::capacity::publisher::Publisher;
use super::claims::immediate_binding::Contest;
use super::claims::resizer::Hopeless;
use super::claims::watch::{self, Concern};
use super::context::{Context, Written};
use super::objects::claim;
use super::objects::names::BOUND;
use super::reconcile::{self, Queue};
use super::volumes::orphans;
use crate::server::Shutdown;
use crate::volumes::{Place, Volumes};

/// How long to wait before the API server is asked again who this is.
const RETRY: Duration = Duration::from_secs(5);

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
            reconcile::claims(Arc::clone(&context), claims.take_until(Box::pin(stop())).boxed()),
            reconcile::objects(Arc::clone(&context), objects.take_until(Box::pin(stop())).boxed()),
        );
        let background = async {
            if context.is_informed().await {
                future::join(context.publisher.run(&context), orphans::run(&context)).await;
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
            watcher(Api::<StorageClass>::all(client.clone()), config()).backoff(Interruptions::default()),
        );
        let labels = format!("{}={}", place.key(), place.value());
        let object_changes = follow(
            "PersistentVolumes",
            object_writer,
            watcher(Api::<PersistentVolume>::all(client.clone()), config().labels(&labels))
                .backoff(Interruptions::default()),
        );
        let concern = Concern {
            client: client.clone(),
            driver: self.driver.to_string(),
            node: node.name.clone(),
            place: place.clone(),
        };
        let claim_changes = follow("claims", claim_writer, watch::watch(concern));
        let publisher = Publisher::new(node.uid.clone());
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
            publisher,
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
        if node.uid.is_none() {
            warn!(
                "the token is bound to no node: the cluster's policies refuse what it writes, and capacity objects outlive the node; use one that is bound to a pod or to the node"
            );
        }
        Ok((client, node, self.namespace.clone().unwrap_or(namespace)))
    }
}

/// Why the agent does not work yet.
#[derive(Debug, thiserror::Error)]
enum Introduction {
    #[error(transparent)]
    Access(#[from] AccessError),
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
            // Of a claim that is watched without its contents nobody knows the class.
            let waiting = context.claims.state_filter(|waiting| {
                let concerned = waiting.spec.is_none() || claim::class(waiting) == Some(&class.name);
                concerned && claim::volume(waiting).is_none() && !waiting.annotations().contains_key(BOUND)
            });
            stream::iter(waiting.into_iter().map(|waiting| ObjectRef::from_obj(&*waiting)))
        })
        .boxed()
}
