//! The agent's life cycle: it finds the API server, learns its identity, then works for a term, and begins anew.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_model::volumes::Place;
use bulkhead_protocol::DriverName;
use tokio::time::sleep;
use tracing::{error, info};

use super::api::backoff::{Interruptions, jitter};
use super::api::credential::{Credential, Used};
use super::api::failure::Failure;
use super::api::first_lists;
use super::api::node_identity::NodeIdentity;
use super::api::server::{ApiServer, ApiServerError, Reached};
use super::confinement;
use super::context::{AgentIdentity, Context};
use super::intervals::Intervals;
use super::ledger::Ledger;
use super::term::{Broken, Term};
use super::view::View;
use super::watches;
use super::work;
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
    /// What namespaces have of the node.
    pub ledger: Ledger,
    /// Shows others what the agent knows.
    pub view: View,
    /// Records what the agent is waiting for.
    pub readiness: Readiness,
    /// What it does by the clock.
    pub intervals: Intervals,
}

/// Why the agent does not work yet.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(transparent)]
    ApiServer(#[from] ApiServerError),
    #[error(transparent)]
    Identity(#[from] Failure),
}

/// Why the agent does not work any more.
#[derive(Debug, thiserror::Error)]
enum Ended {
    /// A policy is not in force, or may not be looked at.
    #[error(transparent)]
    Unconfined(Failure),
    /// Its token was exchanged for one that is not for this agent.
    #[error(transparent)]
    Exchanged(Failure),
    #[error(transparent)]
    Broken(Broken),
}

/// An API server that has said whose agent this is.
struct Introduced {
    reached: Reached,
    node: NodeIdentity,
    /// The token that it has looked at, if that can be exchanged.
    reviewed: Option<Used>,
}

impl Agent {
    /// Works until `shutdown` begins, then finishes the work in progress. Waits for an API server that is away, and for
    /// policies that are not in force.
    pub async fn run(self, shutdown: Shutdown) {
        for part in Part::OF_AGENT {
            self.readiness.not_ready(part, "the API server has not answered yet");
        }
        let mut breaks = Interruptions::default();
        loop {
            let introduced = tokio::select! {
                introduced = self.connect() => introduced,
                () = shutdown.begun() => return,
            };
            match self.work(introduced, &shutdown).await {
                None => return,
                Some(Ended::Unconfined(_) | Ended::Exchanged(_)) => {}
                Some(Ended::Broken(_)) => tokio::select! {
                    () = sleep(breaks.next().unwrap_or(RETRY)) => {}
                    () = shutdown.begun() => return,
                },
            }
        }
    }

    /// Works for a term: until `shutdown` begins, or there is a reason to end it, which is returned. Finishes the work in
    /// progress.
    async fn work(&self, introduced: Introduced, shutdown: &Shutdown) -> Option<Ended> {
        let Introduced { reached, node, reviewed } = introduced;
        let Reached { client, namespace, credential, pace } = reached;
        info!(node = %node.name, %namespace, "working for Kubernetes");
        self.readiness.ready(Part::Agent);
        let mut term = Term::default();
        let place = Place::new(&self.driver, &node.name);
        let identity = AgentIdentity { driver: self.driver.clone(), node, place, namespace };
        let volumes = (self.volumes.clone().for_agent(), self.ledger.clone());
        let watches = watches::begin(client, pace, identity, volumes, self.intervals, &self.readiness, &mut term);
        let context = Arc::clone(&watches.context);
        self.view.works(Arc::clone(&context));
        work::begin(watches, credential.clone(), &self.readiness, &mut term);
        let Context { client, agent, stores, .. } = &*context;
        let ended = tokio::select! {
            biased;
            why = confinement::lost(client, &agent.node.account, agent.driver.as_str(), &stores.lists) => Some(Ended::Unconfined(why)),
            () = shutdown.begun() => None,
            why = agent.node.lost(client, credential.as_ref().zip(reviewed)) => Some(Ended::Exchanged(why)),
            broken = term.broken() => Some(Ended::Broken(broken)),
            never = stores.lists.guard(first_lists::PATIENCE, &self.readiness) => match never {},
        };
        // Before anything is waited for: whoever asks is told the truth.
        if let Some(why) = &ended {
            error!("not working for Kubernetes any more: {why}");
            self.view.is_starting(why.to_string());
            for part in Part::OF_AGENT {
                self.readiness.not_ready(part, why);
            }
        }
        term.finish().await;
        ended
    }

    /// Reaches the API server.
    async fn connect(&self) -> Introduced {
        loop {
            match self.introduce().await {
                Ok(introduced) => return introduced,
                Err(why) => {
                    self.view.is_starting(why.to_string());
                    error!("not working for Kubernetes yet: {why}");
                    self.readiness.not_ready(Part::Agent, why);
                }
            }
            sleep(RETRY + jitter(RETRY)).await;
        }
    }

    async fn introduce(&self) -> Result<Introduced, ConnectError> {
        let mut reached = self.access.client(&self.readiness).await?;
        // Before it is sent: if it is exchanged meanwhile, that is noticed later.
        let reviewed = reached.credential.as_ref().map(Credential::used);
        let node = NodeIdentity::review(&reached.client, &self.node).await?;
        confinement::check(&reached.client, &node.account, self.driver.as_str()).await?;
        if let Some(namespace) = &self.namespace {
            reached.namespace.clone_from(namespace);
        }
        Ok(Introduced { reached, node, reviewed })
    }
}
