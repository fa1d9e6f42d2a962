//! The controller of VolumeSnapshotContents.

use std::sync::Arc;

use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use kube::ResourceExt;

use super::attempt::remaining_pause;
use super::decision::{Step, decide};
use super::{adoption, release, taking, unheld};
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::memory::Memory;
use crate::kubernetes::reconcile::{Action, Controller};

/// The controller.
pub struct ContentController {
    context: Arc<Context>,
}

impl Controller for ContentController {
    type Object = VolumeSnapshotContent;

    fn memory(&self) -> &Memory {
        &self.context.memory
    }

    fn namespace(content: &VolumeSnapshotContent) -> String {
        content.spec.volume_snapshot_ref.namespace.clone()
    }

    async fn reconcile(&self, content: Arc<VolumeSnapshotContent>) -> Result<Action, Failure> {
        let context = &*self.context;
        if !context.stores.are_complete().await || content.spec.driver != context.agent.driver.as_str() {
            return Ok(Action::await_change());
        }
        match content.node(&context.agent.place) {
            Some(node) if node != context.agent.place.value() => return Ok(Action::await_change()),
            Some(_) if !self.is_labelled(&content) => adoption::label(context, &content).await?,
            Some(_) => return self.serve(&content).await,
            None if adoption::adopt(context, &content).await? => {}
            None => return unheld::serve(context, &content).await,
        }
        // The watch reports it with its label.
        Ok(Action::await_change())
    }
}

impl ContentController {
    /// For the objects that concern `context`'s node.
    pub fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    /// Returns whether `content` has the label by which agents watch. Where the policy is missing, a snapshot
    /// controller gives it another one only.
    fn is_labelled(&self, content: &VolumeSnapshotContent) -> bool {
        let place = &self.context.agent.place;
        content.labels().get(place.key()).is_some_and(|node| node == place.value())
    }

    async fn serve(&self, content: &VolumeSnapshotContent) -> Result<Action, Failure> {
        let (context, step) = (&*self.context, decide(content));
        let reason = match &step {
            Step::Ignore | Step::Settle => None,
            Step::Take { .. } => Some(Reason::SnapshotCreationFailed),
            Step::Describe { .. } => Some(Reason::SnapshotContentCheckandUpdateFailed),
            Step::Release { .. } => Some(Reason::SnapshotDeleteError),
        };
        if let Some(pause) = reason.and_then(|reason| remaining_pause(context, content, reason)) {
            return Ok(Action::requeue(pause));
        }
        match step {
            Step::Ignore => Ok(()),
            Step::Settle => taking::settle(context, content).await,
            Step::Take { volume, name } => taking::take(context, content, volume, &name).await,
            Step::Describe { snapshot } => taking::describe(context, content, &snapshot).await,
            Step::Release { snapshot } => release::release(context, content, snapshot.as_deref()).await,
        }
        .map(|()| Action::await_change())
    }
}
