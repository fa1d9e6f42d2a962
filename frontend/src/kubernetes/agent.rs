//! The agent's life cycle: it finds the API server, learns its identity, then runs the controllers concurrently.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_model::objects::claim;
use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use bulkhead_model::volumes::Place;
use bulkhead_protocol::DriverName;
use futures::{Stream, StreamExt, future, stream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::runtime::reflector::{ObjectRef, store};
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{error, info};

use super::api::backoff::{Interruptions, jitter};
use super::api::credential::Credential;
use super::api::csi_node;
use super::api::failure::Failure;
use super::api::node_identity::NodeIdentity;
use super::api::server::{ApiServer, ApiServerError, Reached};
use super::api::watch::{config, follow};
use super::capacity::reporter::CapacityReporter;
use super::capacity::schedule;
use super::claims::controller::ClaimController;
use super::condition_events;
use super::confinement;
use super::context::{AgentIdentity, Context, Stores};
use super::heartbeat::{self, Record};
use super::labels::scope::Scope;
use super::labels::watch::watch;
use super::memory::Memory;
use super::persistent_volumes::reclaimer::Reclaimer;
use super::persistent_volumes::{census, orphans, owners};
use super::reconcile::{self, Changes};
use super::renewal;
use super::snapshots::controller::ContentController;
use super::view::View;
use crate::readiness::{Part, Readiness};
use crate::server::Shutdown;
use crate::volumes::Volumes;

/// How long to wait before trying to reach the API server again.
const RETRY: Duration = Duration::from_secs(5);

/// A node's storage agent.
pub struct Agent {
    /// The access to the API server.
    pub access: ApiServer,
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
    credential: Option<Credential>,
    /// Notified when the API server has gone back in time, so that what was written lately may be lost.
    rewound: Arc<Notify>,
    claims: Changes<PersistentVolumeClaim>,
    persistent_volumes: Changes<PersistentVolume>,
    contents: Changes<VolumeSnapshotContent>,
}

/// Why the agent does not work yet.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(transparent)]
    ApiServer(#[from] ApiServerError),
    #[error(transparent)]
    Identity(#[from] Failure),
}

impl Agent {
    /// Works until `shutdown` begins, then finishes the work in progress. Waits for an API server that is away, and for
    /// policies that are not in force.
    pub async fn run(self, shutdown: Shutdown) {
        for part in Part::OF_AGENT {
            self.readiness.not_ready(part, "the API server has not answered yet");
        }
        loop {
            let connected = tokio::select! {
                connected = self.connect() => connected,
                () = shutdown.begun() => return,
            };
            let Some(why) = self.work(connected, &shutdown).await else { return };
            error!("not working for Kubernetes any more: {why}");
            self.view.is_starting(why.to_string());
            self.readiness.not_ready(Part::Agent, why);
        }
    }

    /// Works until `shutdown` begins, or until a policy is not in force any more: then it returns why. Finishes the work
    /// in progress.
    async fn work(&self, connected: Connected, shutdown: &Shutdown) -> Option<Failure> {
        let Connected { context, credential, rewound, claims, persistent_volumes, contents } = connected;
        let end = Shutdown::default();
        let stop = || {
            let end = end.clone();
            Box::pin(async move { end.begun().await })
        };
        let capacity = Arc::new(CapacityReporter::new(Arc::clone(&context), rewound));
        let claim_controller = Arc::new(ClaimController::new(Arc::clone(&context), Arc::clone(&capacity)));
        let reclaimer = Arc::new(Reclaimer::new(Arc::clone(&context)));
        let content_controller = Arc::new(ContentController::new(Arc::clone(&context)));
        let Stores { claims: claim_store, persistent_volumes: volume_store, contents: content_store, .. } =
            &context.stores;
        let controllers = future::join3(
            reconcile::run(claim_controller, claim_store.clone(), claims.take_until(stop()).boxed()),
            reconcile::run(reclaimer, volume_store.clone(), persistent_volumes.take_until(stop()).boxed()),
            reconcile::run(content_controller, content_store.clone(), contents.take_until(stop()).boxed()),
        );
        let background = async {
            if context.stores.are_complete().await {
                let token = async {
                    if let Some(credential) = &credential {
                        renewal::run(&context, credential).await;
                    }
                };
                let volumes = future::join3(orphans::run(&context), census::run(&context), owners::run(&context));
                let reports = async {
                    let record = Record::default();
                    let before = heartbeat::reported_before(&context, &record).await;
                    future::join(
                        condition_events::report(&context, &record, before),
                        heartbeat::run(&context, &record, &capacity, &self.readiness),
                    )
                    .await;
                };
                future::join4(schedule::run(&capacity), volumes, reports, token).await;
            }
            future::pending::<()>().await;
        };
        let ended = async {
            let why = tokio::select! {
                why = confinement::lost(&context.client, &context.agent.node.account, context.agent.driver.as_str()) => Some(why),
                () = shutdown.begun() => None,
            };
            end.begin();
            why
        };
        let registration =
            csi_node::look(&context.client, &context.agent.driver, &context.agent.node.name, &self.readiness);
        tokio::select! {
            (why, _) = future::join(ended, controllers) => why,
            // These go on for as long as they are polled.
            _ = future::join(background, registration) => None,
        }
    }

    /// Reaches the API server and starts to watch.
    async fn connect(&self) -> Connected {
        let (Reached { client, namespace, credential }, node) = loop {
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
        let place = Place::new(&self.driver, &node.name);
        let scope = Scope { driver: self.driver.to_string(), node: node.name.clone(), place: place.clone() };
        let (classes, class_writer) = store();
        let (claims, claim_writer) = store();
        let (persistent_volumes, persistent_volume_writer) = store();
        let (contents, content_writer) = store();
        let class_events =
            watcher(Api::<StorageClass>::all(client.clone()), config()).backoff(Interruptions::default());
        let persistent_volume_events =
            watcher(Api::<PersistentVolume>::all(client.clone()), config().labels(&place.to_string()))
                .backoff(Interruptions::default());
        let (memory, rewound) = (Arc::new(Memory::default()), Arc::new(Notify::new()));
        let forget = || {
            let (memory, rewound) = (Arc::clone(&memory), Arc::clone(&rewound));
            move || {
                memory.forget_written();
                rewound.notify_one();
            }
        };
        let class_changes = follow(self.readiness.clone(), class_writer, class_events, forget());
        let claim_changes =
            follow(self.readiness.clone(), claim_writer, watch(client.clone(), scope.clone()), forget());
        let persistent_volume_changes =
            follow(self.readiness.clone(), persistent_volume_writer, persistent_volume_events, forget());
        let content_events = watch(client.clone(), scope);
        let content_changes = follow(self.readiness.clone(), content_writer, content_events, forget());
        let agent = AgentIdentity { driver: self.driver.clone(), node, place, namespace };
        let stores = Stores { classes, claims, persistent_volumes, contents };
        let context = Arc::new(Context::new(client, agent, self.volumes.clone(), stores, memory));
        self.view.works(Arc::clone(&context));
        let of_changed_classes = waiting_claims(Arc::clone(&context), class_changes);
        Connected {
            context,
            credential,
            rewound,
            claims: stream::select(claim_changes, of_changed_classes).boxed(),
            persistent_volumes: persistent_volume_changes.boxed(),
            contents: content_changes.boxed(),
        }
    }

    async fn introduce(&self) -> Result<(Reached, NodeIdentity), ConnectError> {
        let mut reached = self.access.client(&self.readiness).await?;
        let node = NodeIdentity::review(&reached.client, &self.node).await?;
        confinement::check(&reached.client, &node.account, self.driver.as_str()).await?;
        if let Some(namespace) = &self.namespace {
            reached.namespace.clone_from(namespace);
        }
        Ok((reached, node))
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
