//! The controller of VolumeSnapshotContents, and that of VolumeGroupSnapshotContents.

use std::marker::PhantomData;
use std::sync::Arc;

use kube::ResourceExt;

use super::attempt::remaining_pause;
use super::decision::{Step, decide};
use super::kind::Kind;
use super::{adoption, release, taking, unheld};
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::memory::Memory;
use crate::kubernetes::reconcile::{Action, Controller};

/// The controller of one of the kinds.
pub struct ContentController<K> {
    context: Arc<Context>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind> Controller for ContentController<K> {
    type Object = K;

    fn memory(&self) -> &Memory {
        &self.context.memory
    }

    fn namespace(content: &K) -> String {
        content.owner().namespace.clone()
    }

    async fn reconcile(&self, content: Arc<K>) -> Result<Action, Failure> {
        let context = &*self.context;
        if !context.stores.are_complete().await || content.driver() != context.agent.driver.as_str() {
            return Ok(Action::await_change());
        }
        match content.node(&context.agent.place) {
            Some(node) if node != context.agent.place.value() => return Ok(Action::await_change()),
            Some(_) if !self.is_labelled(&content) => adoption::label(context, &*content).await?,
            Some(_) => return self.serve(&content).await,
            None if adoption::adopt(context, &*content).await? => {}
            None => return unheld::serve(context, &*content).await,
        }
        // The watch reports it with its label.
        Ok(Action::await_change())
    }
}

impl<K: Kind> ContentController<K> {
    /// For the objects that concern `context`'s node.
    pub fn new(context: Arc<Context>) -> Self {
        Self { context, kind: PhantomData }
    }

    /// Returns whether `content` has the label by which agents watch. Where the policy is missing, a snapshot
    /// controller gives it another one only.
    fn is_labelled(&self, content: &K) -> bool {
        let place = &self.context.agent.place;
        content.labels().get(place.key()).is_some_and(|node| node == place.value())
    }

    async fn serve(&self, content: &K) -> Result<Action, Failure> {
        let (context, step) = (&*self.context, decide(content));
        let reason = match &step {
            Step::Ignore | Step::Settle => None,
            Step::Take { .. } => Some(K::REASONS.creation_failed),
            Step::Describe { .. } => Some(K::REASONS.check_failed),
            Step::Release { .. } => Some(K::REASONS.delete_failed),
        };
        if let Some(pause) = reason.and_then(|reason| remaining_pause(context, content, reason)) {
            return Ok(Action::requeue(pause));
        }
        match step {
            Step::Ignore => Ok(()),
            Step::Settle => taking::settle(context, content).await,
            Step::Take { name } => taking::take(context, content, &name).await,
            Step::Describe { handle } => taking::describe(context, content, &handle).await,
            Step::Release { handle } => release::release(context, content, handle.as_deref()).await,
        }
        .map(|()| Action::await_change())
    }
}
