//! What others may ask the agent while it works. They see nothing else of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_model::objects::{claim, persistent_volume};
use bulkhead_model::volumes::{Fault, FaultKind};
use bulkhead_protocol::VolumeId;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use tokio::sync::watch;
use tokio::time::timeout;

use super::api::failure::Failure;
use super::confinement;
use super::context::Context;
use super::persistent_volumes::orphans;

/// How long the API server may take to answer an operator's question.
const PATIENCE: Duration = Duration::from_secs(5);

/// A view of the node's agent.
#[derive(Clone)]
pub struct View(watch::Sender<State>);

enum State {
    /// There is no agent.
    Absent,
    /// If there is one, it is in another process.
    Elsewhere,
    /// It does not work yet, for this reason.
    Starting(String),
    /// It works.
    Working(Arc<Context>),
}

/// The current state of the agent's connection to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// There is no agent.
    None,
    /// An agent in another process would know.
    Unknown,
    /// It does not work yet, for this reason.
    Starting(String),
    /// The API server does not answer, for this reason.
    Unreachable(String),
    /// A policy that confines the agent is not in force.
    Unconfined(String),
    /// It has not received all objects yet.
    Listing,
    /// It works, as this account.
    Working(String),
}

/// The objects that a volume belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The PersistentVolume that names it; empty while its claim waits for one.
    pub persistent_volume: String,
    /// Namespace and name of the claim that it is for.
    pub claim: Option<(String, String)>,
}

/// What is known of the objects that a volume belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// All: the objects, or that there are none.
    Known(Option<Owner>),
    /// There is no agent, and nobody else knows an orchestrator's objects.
    NoAgent,
    /// Nothing now, for this reason.
    Unknown(String),
}

impl View {
    /// The view of a process without an agent.
    pub fn without_agent() -> Self {
        Self(watch::Sender::new(State::Absent))
    }

    /// The view of a process other than the one that may have an agent.
    pub fn elsewhere() -> Self {
        Self(watch::Sender::new(State::Elsewhere))
    }

    /// The view of an agent that is about to start.
    pub fn of_agent() -> Self {
        Self(watch::Sender::new(State::Starting("it has not reached the API server yet".to_owned())))
    }

    /// Records that the agent does not work yet, because of `why`.
    pub(super) fn is_starting(&self, why: String) {
        self.0.send_replace(State::Starting(why));
    }

    /// Records that the agent works.
    pub(super) fn works(&self, context: Arc<Context>) {
        self.0.send_replace(State::Working(context));
    }

    /// The agent, if it works.
    pub(super) fn working(&self) -> Option<Arc<Context>> {
        self.context().ok()
    }

    fn context(&self) -> Result<Arc<Context>, Connection> {
        match &*self.0.borrow() {
            State::Absent => Err(Connection::None),
            State::Elsewhere => Err(Connection::Unknown),
            State::Starting(why) => Err(Connection::Starting(why.clone())),
            State::Working(context) => Ok(Arc::clone(context)),
        }
    }

    /// Asks the API server whether it answers, and whether the policies are in force.
    pub async fn connection(&self) -> Connection {
        let context = match self.context() {
            Ok(context) => context,
            Err(without) => return without,
        };
        let account = context.agent.node.account.clone();
        match timeout(PATIENCE, confinement::check(&context.client, &account, context.agent.driver.as_str())).await {
            Err(_) => Connection::Unreachable(format!("it did not answer within {} seconds", PATIENCE.as_secs())),
            Ok(Err(Failure::Refused(flaw))) => Connection::Unconfined(flaw),
            Ok(Err(failure)) => Connection::Unreachable(failure.to_string()),
            Ok(Ok(())) if timeout(Duration::ZERO, context.stores.are_complete()).await == Ok(true) => {
                Connection::Working(account)
            }
            Ok(Ok(())) => Connection::Listing,
        }
    }

    /// The volumes that no PersistentVolume names.
    ///
    /// # Errors
    /// When there is no agent to ask, or the API server does not answer.
    pub async fn orphans(&self) -> Result<Vec<VolumeId>, Fault> {
        let context = self.context().map_err(|without| match without {
            Connection::Starting(why) => Fault::new(FaultKind::Away, format!("the storage agent does not work yet: {why}")),
            // What the frontend shows at its metrics address would be the state of its latest comparison, or of none.
            Connection::Unknown => Fault::unsupported(
                "only the node's storage agent knows which volumes have a PersistentVolume, and it was not asked: see `kubectl bulkhead orphans`, or run this on the node",
            ),
            _ => Fault::unsupported(
                "only a frontend that is the node's storage agent knows which volumes have a PersistentVolume: compare the volumes with `kubectl get pv` by hand",
            ),
        })?;
        if timeout(PATIENCE, context.stores.are_complete()).await != Ok(true) {
            return Err(Fault::new(FaultKind::Away, "the storage agent has not received all objects yet"));
        }
        orphans::unnamed(&context).await.map_err(Failure::into_fault)
    }

    /// The objects that `volume` belongs to. Somebody is about to delete it: the API server is asked before it is said
    /// that there are none.
    pub async fn ownership(&self, volume: &VolumeId) -> Ownership {
        let context = match self.context() {
            Ok(context) => context,
            Err(Connection::None) => return Ownership::NoAgent,
            Err(Connection::Starting(why)) => {
                return Ownership::Unknown(format!("the storage agent does not work yet: {why}"));
            }
            Err(_) => {
                let why = "the node's frontend, which may be its storage agent, was not asked";
                return Ownership::Unknown(why.to_owned());
            }
        };
        if let Some(owner) = self.owners().remove(volume) {
            return Ownership::Known(Some(owner));
        }
        let named = async {
            if !context.stores.are_complete().await {
                return Err("the storage agent is stopping".to_owned());
            }
            orphans::named_by(&context, volume).await.map_err(|failure| failure.to_string())
        };
        match timeout(PATIENCE, named).await {
            Ok(Ok(Some(object))) => Ownership::Known(Some(owner_of(&object))),
            Ok(Ok(None)) => Ownership::Known(waiting_claim(&context, volume)),
            Ok(Err(why)) => Ownership::Unknown(why),
            Err(_) => {
                Ownership::Unknown(format!("the API server did not answer within {} seconds", PATIENCE.as_secs()))
            }
        }
    }

    /// The objects that each volume belongs to, as far as the agent knows them.
    pub fn owners(&self) -> BTreeMap<VolumeId, Owner> {
        let Ok(context) = self.context() else { return BTreeMap::new() };
        context.volumes_named().map(|(volume, object)| (volume, owner_of(&object))).collect()
    }
}

fn owner_of(object: &PersistentVolume) -> Owner {
    let claim = persistent_volume::claim_reference(object);
    let claim = claim.map(|claim| (claim.namespace.unwrap_or_default(), claim.name));
    Owner { persistent_volume: object.name_any(), claim }
}

/// The claim that `volume` has been made for, if it still waits for its PersistentVolume.
fn waiting_claim(context: &Context, volume: &VolumeId) -> Option<Owner> {
    let mut claims = context.stores.claims.all();
    let claim = claims.find(|claim| claim::volume_name(claim) == volume.as_str())?;
    let claim = Some((claim.namespace().unwrap_or_default(), claim.name_any()));
    Some(Owner { persistent_volume: String::new(), claim })
}
