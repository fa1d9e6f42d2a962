//! Reporting the node's capacity, class by class.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bulkhead_model::objects::storage_class;
use bulkhead_model::volumes::Mode;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use super::csi_storage_capacity;
use super::estimate::{Estimate, Estimates, Measured};
use super::turns::Turns;
use super::written::{Urgency, Verdict, Written};
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::node_identity::NodeIdentity;
use crate::kubernetes::context::Context;
use crate::kubernetes::intervals::Intervals;
use crate::metrics::METRICS;
use crate::volumes::Capacity;

/// Publishes this node's capacity.
pub struct CapacityReporter {
    context: Arc<Context>,
    rewound: Arc<Notify>,
    estimates: Estimates,
    written: Mutex<Written>,
    /// Each class is measured and written by one task at a time, so that the last write has the latest measurement.
    turns: Turns,
}

/// How reporting went. A class whose capacity is unknown does not hold up the others.
#[derive(Default)]
pub struct Outcome {
    /// Whether a change is still to be written.
    pub is_postponed: bool,
    /// What was not written, with its class if it concerns one.
    pub failures: Vec<(Option<String>, Failure)>,
}

impl CapacityReporter {
    /// For the node of `context`. `rewound` is notified when the API server may have lost what was written lately.
    pub fn new(context: Arc<Context>, rewound: Arc<Notify>) -> Self {
        let written = Mutex::new(Written::new(context.agent.node.uid.clone()));
        let estimates = Estimates::new(context.intervals);
        Self { context, rewound, estimates, written, turns: Turns::default() }
    }

    /// The agent's intervals.
    pub fn intervals(&self) -> &Intervals {
        &self.context.intervals
    }

    /// Waits until the capacity may have changed.
    pub async fn change(&self) {
        self.context.capacity_changed.notified().await;
    }

    /// Waits until what is written may be lost.
    pub async fn loss(&self) {
        self.rewound.notified().await;
    }

    /// The capacity for volumes of `class` and this mode.
    ///
    /// # Errors
    /// When the class cannot be served at all, or the helper is unavailable.
    pub async fn estimate(&self, class: &StorageClass, mode: Mode) -> Result<Estimate, Failure> {
        self.estimates.of(&self.context, class, Some(mode), &mut Measured::new()).await
    }

    /// The uid of the node, which changes when the node is registered again.
    pub fn owner(&self) -> Option<String> {
        self.written().owner().map(str::to_owned)
    }

    /// Returns whether claims should not wait for this node's helper, which has been away for a while.
    pub fn has_lost_helper(&self) -> bool {
        self.estimates.has_lost_helper()
    }

    /// Publishes that a volume of `size` bytes of `class` and this mode could not be made, and returns once the API server has it.
    /// The pool's other classes follow later, so that the claim does not wait for them.
    ///
    /// # Errors
    /// When it could not be written.
    pub async fn rule_out(&self, class: &StorageClass, mode: Mode, size: u64) -> Result<(), Failure> {
        if self.estimate(class, mode).await?.capacity.largest_volume >= size {
            self.estimates.rule_out(&class.name_any(), size);
        }
        self.context.capacity_changed.notify_one();
        self.report_class(class, Urgency::Immediate, &mut Measured::new()).await.map(drop)
    }

    /// Returns whether it is reported that no volume of `size` bytes of this class can be made here.
    pub fn has_ruled_out(&self, class: &StorageClass, size: u64) -> bool {
        self.written().rules_out(&class.name_any(), size)
    }

    /// The classes of which this node can make no volume, each with the reason, as far as that is no matter of room.
    pub fn unservable(&self) -> BTreeMap<String, String> {
        self.written().unservable()
    }

    /// Publishes everything again next time, whether or not it has changed here: another client may have changed it.
    pub fn invalidate(&self) {
        self.written().invalidate();
    }

    /// Checks whether the node is still the same object.
    pub async fn review_node(&self) {
        match NodeIdentity::review(&self.context.client, &self.context.agent.node.name).await {
            Ok(node) => {
                if self.written().set_owner(node.uid) {
                    info!(node = %node.name, "the node was registered again: publishing its capacity anew");
                }
            }
            Err(failure) => debug!("{failure}"),
        }
    }

    /// Publishes what has changed.
    pub async fn report(&self, urgency: Urgency) -> Outcome {
        let mut outcome = Outcome::default();
        if self.written().is_just_written() {
            outcome.is_postponed = true;
            return outcome;
        }
        let driver = self.context.agent.driver.as_str();
        let classes = self.context.stores.classes.all().filter(|class| class.provisioner == driver);
        let classes: Vec<_> = classes.collect();
        let mut measured = Measured::new();
        for class in &classes {
            match self.report_class(class, urgency, &mut measured).await {
                Ok(Verdict::Postpone) => outcome.is_postponed = true,
                Ok(Verdict::Keep | Verdict::Write) => {}
                Err(failure) => outcome.failures.push((Some(class.name_any()), failure)),
            }
        }
        let names: BTreeSet<_> = classes.iter().map(|class| class.name_any()).collect();
        if let Err(failure) = self.keep_only(&names).await {
            outcome.failures.push((None, failure));
        }
        let unservable = self.unservable();
        METRICS.class_obstructed.clear();
        for class in &names {
            METRICS.class_obstructed.with([class]).set(if unservable.contains_key(class) { 1.0 } else { 0.0 });
        }
        outcome
    }

    /// Publishes the capacity of one class, if that is due.
    async fn report_class(
        &self,
        class: &StorageClass,
        urgency: Urgency,
        measured: &mut Measured,
    ) -> Result<Verdict, Failure> {
        let name = class.name_any();
        let _turn = self.turns.of(&name).await;
        let flaw = storage_class::flaw(class).map(|fault| fault.to_string());
        let reported = flaw.clone().map(|flaw| self.report_flaw(&name, flaw));
        // A class serves both directories and devices.
        let mut estimate = match self.estimates.of(&self.context, class, None, measured).await {
            Ok(estimate) => estimate,
            // No volume of such a class can be made.
            Err(failure) if failure.is_final() => Estimate::default(),
            Err(failure) => return Err(failure),
        };
        if flaw.is_some() {
            estimate = Estimate { obstacle: flaw, ..Estimate::default() };
        }
        let verdict = self.written().judge(&name, &estimate, urgency);
        if verdict == Verdict::Write {
            let owner = self.owner();
            if let Err(failure) = csi_storage_capacity::write(&self.context, owner.as_deref(), &name, &estimate).await {
                // One flaw of a class is enough to say: two in turn would be news each time.
                let is_news = || reported.unwrap_or_else(|| self.report_flaw(&name, failure.to_string()));
                if failure.is_forbidden() && is_news() {
                    self.withdraw(&name).await;
                }
                return Err(failure);
            }
            let Capacity { available, largest_volume: largest, .. } = estimate.capacity;
            self.written().record_written(&name, estimate);
            if reported.is_none() {
                self.written().record_sound(&name);
            }
            debug!(class = %name, available, largest, "capacity published");
        }
        Ok(verdict)
    }

    /// Deletes the object for a class that the agent may not serve, if an earlier agent has left one: pods must not be
    /// placed by it.
    async fn withdraw(&self, class: &str) {
        match csi_storage_capacity::delete(&self.context, class).await {
            Ok(()) => self.written().record_deleted(class),
            Err(failure) => {
                debug!(%class, "{failure}");
                // So that it is tried again with the next attempt to report.
                self.written().record_sound(class);
            }
        }
    }

    /// Says once that no node can make volumes of a class. Its claims wait for a first pod, and that for capacity, so that
    /// nobody else would say it. Returns whether it had not been said yet.
    fn report_flaw(&self, class: &str, flaw: String) -> bool {
        if !self.written().record_flaw(class, &flaw) {
            return false;
        }
        warn!(%class, "no volume of this class can be made: {flaw}");
        let note = format!("no volume can be made: {flaw}");
        self.context.events.publish_about(self.context.agent.node.reference(), Reason::StorageClassInvalid, note);
        true
    }

    /// Deletes the objects of classes other than `classes`.
    async fn keep_only(&self, classes: &BTreeSet<String>) -> Result<(), Failure> {
        if self.written().has_stale() {
            csi_storage_capacity::delete_stale(&self.context, classes).await?;
            self.written().record_stale_deleted();
        }
        let beyond = self.written().beyond(classes);
        for class in beyond {
            let _turn = self.turns.of(&class).await;
            csi_storage_capacity::delete(&self.context, &class).await?;
            self.written().record_deleted(&class);
            self.written().record_sound(&class);
        }
        Ok(())
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
