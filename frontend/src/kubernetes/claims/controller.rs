//! The controller of claims: provisions those that need a volume, and modifies and expands those that ask for that.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_model::objects::claim;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::modifier::{Modifier, Outcome};
use super::provisioner::Provisioner;
use super::resizer::Resizer;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::request;
use crate::kubernetes::capacity::reporter::CapacityReporter;
use crate::kubernetes::context::Context;
use crate::kubernetes::memory::Memory;
use crate::kubernetes::reconcile::{Action, Controller};

/// How soon to look again at a claim of which something waits.
const SOON: Duration = Duration::from_secs(30);

/// The controller.
pub struct ClaimController {
    context: Arc<Context>,
    provisioner: Provisioner,
    modifier: Modifier,
    resizer: Resizer,
}

impl Controller for ClaimController {
    type Object = PersistentVolumeClaim;

    fn memory(&self) -> &Memory {
        &self.context.memory
    }

    fn namespace(claim: &PersistentVolumeClaim) -> String {
        claim.namespace().unwrap_or_default()
    }

    async fn reconcile(&self, claim: Arc<PersistentVolumeClaim>) -> Result<Action, Failure> {
        if !self.context.stores.are_complete().await {
            return Ok(Action::await_change());
        }
        let Some(claim) = self.with_contents(claim).await? else { return Ok(Action::await_change()) };
        let has_volume = claim::persistent_volume(&claim).is_some();
        if has_volume || claim::selected_node(&claim).is_some() {
            self.context.memory.with(claim::uid(&claim), |entry| entry.bids = None);
        }
        if !has_volume {
            return self.provisioner.serve(&claim).await;
        }
        match self.modifier.serve(&claim).await {
            Ok(Outcome::Written) => Ok(Action::await_change()),
            Ok(Outcome::Idle(None)) => self.resizer.serve(&claim).await,
            // The resizer may want to look sooner, and a look in vain costs nothing.
            Ok(Outcome::Idle(Some(pause))) => {
                self.resizer.serve(&claim).await.map(|_| Action::requeue(pause.min(SOON)))
            }
            // Neither waits for what only the other needs, such as the right to read classes of attributes.
            Err(failure) => self.resizer.serve(&claim).await.and(Err(failure)),
        }
    }

    fn gone(&self) {
        // Perhaps while its volume was being made.
        self.context.unnamed.suspect();
    }
}

impl ClaimController {
    /// For the claims that concern `context`'s node, whose capacity `capacity` publishes.
    pub fn new(context: Arc<Context>, capacity: Arc<CapacityReporter>) -> Self {
        let provisioner = Provisioner::new(Arc::clone(&context), capacity);
        let (modifier, resizer) = (Modifier::new(Arc::clone(&context)), Resizer::new(Arc::clone(&context)));
        Self { context, provisioner, modifier, resizer }
    }

    /// The claim with its contents, which are not watched where the admission policy is missing.
    async fn with_contents(
        &self,
        claim: Arc<PersistentVolumeClaim>,
    ) -> Result<Option<Arc<PersistentVolumeClaim>>, Failure> {
        if claim.spec.is_some() {
            return Ok(Some(claim));
        }
        let claims = self.context.claims_beside(&claim);
        let found = request("reading a claim", claims.get_opt(&claim.name_any())).await?;
        Ok(found.filter(|found| found.metadata.uid == claim.metadata.uid).map(Arc::new))
    }
}
