//! Who asks about snapshots from outside the node, and what they may know of: the API server is asked about both, each
//! time.
//!
//! - `review`: who asks, and for which namespaces
//! - `snapshots`: where a snapshot is, and which earlier one it can be compared with
//! - `peers`: the agents of other nodes

mod peers;
mod review;
mod snapshots;

use std::sync::Arc;
use std::time::Duration;

use bulkhead_model::objects::snapshot_metadata_service::{ServiceSpec, SnapshotMetadataService};
use bulkhead_model::volumes::Fault;
use kube::Api;
use tracing::warn;

use super::api::failure::Failure;
use super::api::request::request;
use super::context::Context;
use super::view::View;
use crate::volumes::Volumes;

pub use peers::Peer;
pub use snapshots::Located;

/// An agent that may not send for longer than this sends nothing for callers: its own work comes first.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Why somebody is told nothing.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It is not known who asks.
    #[error(
        "security_token is not valid here: send one that has not expired, for the audience in the driver's SnapshotMetadataService"
    )]
    Unknown,
    /// Whoever asks may not know of the snapshots of a namespace.
    #[error("{account} may not get volumesnapshots in namespace {namespace}: grant the account that")]
    Forbidden {
        /// Who asks.
        account: String,
        /// The namespace.
        namespace: String,
    },
    /// There is no such snapshot.
    #[error("{0}")]
    Missing(String),
    /// The snapshot is another driver's.
    #[error("{0}")]
    Foreign(String),
    /// Not now.
    #[error("{0}")]
    NotNow(String),
    /// The node's helper does not say.
    #[error("{0}")]
    Volume(Fault),
}

/// The agent, as long as it works for Kubernetes.
pub struct Callers(Arc<Context>);

impl View {
    /// Returns whom to ask about callers.
    ///
    /// # Errors
    /// While the agent does not work, or the API server is overloaded.
    pub fn callers(&self) -> Result<Callers, Refusal> {
        let context = self.working().ok_or_else(|| {
            Refusal::NotNow("the node's storage agent does not work for Kubernetes at the moment: try again".to_owned())
        })?;
        if context.pace.pause().is_some_and(|pause| pause > LONGEST_PAUSE) {
            return Err(Refusal::NotNow("the API server is overloaded: try again later".to_owned()));
        }
        Ok(Callers(context))
    }
}

impl Callers {
    /// The node's volumes.
    pub fn volumes(&self) -> &Volumes {
        &self.0.volumes
    }

    /// How the service is known to those who call it.
    ///
    /// # Errors
    /// When that is not said, or the API server does not answer.
    pub async fn service(&self) -> Result<ServiceSpec, Refusal> {
        let driver = self.0.agent.driver.as_str();
        let services: Api<SnapshotMetadataService> = Api::all(self.0.client.clone());
        let found = request("reading the SnapshotMetadataService", services.get_opt(driver)).await.map_err(unasked)?;
        let spec = found.map(|service| service.spec).unwrap_or_default();
        // A token for no audience in particular would be one for the API server.
        if spec.audience.is_empty() {
            return Err(Refusal::NotNow(format!(
                "there is no SnapshotMetadataService {driver} with an audience: make one"
            )));
        }
        Ok(spec)
    }
}

/// The API server's words are for the agent's log: they say more of the cluster than a caller has to know.
fn unasked(failure: Failure) -> Refusal {
    warn!("a caller is told nothing about snapshots: {failure}");
    Refusal::NotNow(
        "the API server does not answer the node's storage agent, whose log has the reason: try again".to_owned(),
    )
}
