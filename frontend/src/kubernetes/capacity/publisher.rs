//! Publishing the node's capacity, class by class.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use tokio::sync::Mutex;
use tracing::{debug, info};

use super::estimate::Estimates;
use super::published::{Published, Urgency, Verdict};
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::node_identity::NodeIdentity;
use crate::kubernetes::context::Context;
use crate::volumes::Capacity;

/// Publishes this node's capacity.
pub struct CapacityPublisher {
    context: Arc<Context>,
    estimates: Estimates,
    /// Locked while objects are written.
    published: Mutex<Published>,
}

/// How publishing went. A class whose capacity is unknown holds up no other.
#[derive(Default)]
pub struct Outcome {
    /// Whether a change is still to be published.
    pub is_postponed: bool,
    /// What was not written, with its class if it is about one.
    pub failures: Vec<(Option<String>, Failure)>,
}

impl CapacityPublisher {
    /// For the node of `context`.
    pub fn new(context: Arc<Context>) -> Self {
        let published = Mutex::new(Published::new(context.node.uid.clone()));
        Self { context, estimates: Estimates::default(), published }
    }

    /// Waits until the capacity may have changed.
    pub async fn change(&self) {
        self.context.capacity_changed.notified().await;
    }

    /// The capacity for volumes of `class`.
    ///
    /// # Errors
    /// When the class cannot be served at all, or the helper is unavailable.
    pub async fn estimate(&self, class: &StorageClass) -> Result<Capacity, Failure> {
        self.estimates.of(&self.context, class).await
    }

    /// Publishes that a volume of `size` bytes of `class` could not be made, and returns when the API server has it.
    ///
    /// # Errors
    /// When it could not be published.
    pub async fn rule_out(&self, class: &StorageClass, size: u64) -> Result<(), Failure> {
        if self.estimate(class).await?.largest_volume >= size {
            self.estimates.rule_out(&class.name_any(), size);
        }
        let outcome = self.publish(Urgency::Immediate).await;
        let own = outcome.failures.into_iter().find(|(failed, _)| failed.as_ref() == class.metadata.name.as_ref());
        own.map_or(Ok(()), |(_, failure)| Err(failure))
    }

    /// Publishes everything again next time, whether or not it has changed here: another client may have changed it.
    pub async fn invalidate(&self) {
        self.published.lock().await.invalidate();
    }

    /// Checks whether the node is still the same object.
    pub async fn review_node(&self) {
        match NodeIdentity::review(&self.context.client, &self.context.node.name).await {
            Ok(node) => {
                if self.published.lock().await.set_owner(node.uid) {
                    info!(node = %node.name, "the node was registered again: publishing its capacity anew");
                }
            }
            Err(failure) => debug!("{failure}"),
        }
    }

    /// Publishes what has changed.
    pub async fn publish(&self, urgency: Urgency) -> Outcome {
        let mut published = self.published.lock().await;
        let context = &*self.context;
        let classes = context.stores.classes.state_filter(|class| class.provisioner == context.driver.as_str());
        let just_written = published.is_just_written();
        let mut outcome = Outcome::default();
        for class in &classes {
            let name = class.name_any();
            let capacity = match self.estimate(class).await {
                Ok(capacity) => capacity,
                // No volume of such a class can be made.
                Err(failure) if failure.is_final() => Capacity::default(),
                Err(failure) => {
                    outcome.failures.push((Some(name), failure));
                    continue;
                }
            };
            match published.judge(&name, capacity, urgency, just_written) {
                Verdict::Keep => {}
                Verdict::Postpone => outcome.is_postponed = true,
                Verdict::Write => match published.write(context, &name, capacity).await {
                    Ok(()) => {
                        let Capacity { available, largest_volume: largest, .. } = capacity;
                        debug!(class = %name, available, largest, "capacity published");
                    }
                    Err(failure) => outcome.failures.push((Some(name), failure)),
                },
            }
        }
        let names: BTreeSet<_> = classes.iter().map(|class| class.name_any()).collect();
        if let Err(failure) = published.keep_only(context, &names).await {
            outcome.failures.push((None, failure));
        }
        outcome
    }
}
