//! Making volumes for claims.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_model::objects::names::shown;
use bulkhead_model::objects::{claim, persistent_volume, storage_class};
use bulkhead_model::quantity::Quantity;
use bulkhead_model::volumes::{Provisioned, identify};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use kube::api::PostParams;
use kube::runtime::reflector::ObjectRef;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::attributes;
use super::decision::{Decision, decide};
use super::holder::{self, Holder};
use super::immediate_binding::ImmediateBinding;
use super::node_selection::select;
use super::placement;
use super::requested_volume::requested_volume;
use super::source::source;
use crate::call_id;
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::request;
use crate::kubernetes::capacity::reporter::CapacityReporter;
use crate::kubernetes::context::{AgentIdentity, Context};
use crate::kubernetes::holdings::{charge_claim, settled};
use crate::kubernetes::persistent_volumes::owners;
use crate::kubernetes::reconcile::Action;
use crate::metrics::METRICS;

/// How soon to look again at a claim whose volume, from an earlier attempt, is currently being judged as an orphan.
const JUDGED_PAUSE: Duration = Duration::from_secs(1);

/// How soon to look again at a claim while it is not known yet which pools are cordoned.
const START_PAUSE: Duration = Duration::from_secs(1);

/// Makes volumes for claims.
pub struct Provisioner {
    context: Arc<Context>,
    capacity: Arc<CapacityReporter>,
    immediate_binding: ImmediateBinding,
}

/// Added to why a claim is given back that should not have come. It may come back again and again.
const IN_SPITE_OF_CAPACITY: &str = "; the node had already published that it has no room for this: see `kubectl bulkhead doctor`, which names capacity of a former installation";

/// Where a claim stands once its volume is made.
enum Standing {
    /// It waits for its volume.
    Waiting,
    /// It is gone, or being deleted.
    Gone,
    /// It waits for a volume on another node.
    Elsewhere,
}

impl Provisioner {
    /// For the claims that concern `context`'s node, whose capacity `capacity` publishes.
    pub fn new(context: Arc<Context>, capacity: Arc<CapacityReporter>) -> Self {
        let immediate_binding = ImmediateBinding::new(Arc::clone(&context), Arc::clone(&capacity));
        Self { context, capacity, immediate_binding }
    }

    /// Does what `claim`, which is not bound, needs from this node.
    ///
    /// # Errors
    /// When it cannot be done now; the claim's owner has been informed where that helps.
    pub async fn serve(&self, claim: &PersistentVolumeClaim) -> Result<Action, Failure> {
        let Context { agent: AgentIdentity { driver, node, place, .. }, stores, events, .. } = &*self.context;
        let has_object = |name: &str| stores.persistent_volumes.get(&ObjectRef::new(name)).is_some();
        let volume = claim::volume_name(claim);
        if !self.is_ours(claim) || has_object(&persistent_volume::name_of(&volume, place)) || has_object(&volume) {
            return Ok(Action::await_change());
        }
        let Some(name) = claim::class(claim) else { return Ok(Action::await_change()) };
        let Some(class) = stores.classes.get(&ObjectRef::new(name)) else {
            // Every node sees a claim that no node has yet; only the selected one reports.
            if claim::selected_node(claim) != Some(&node.name) {
                return Ok(Action::await_change());
            }
            return Err(self.report(claim, Failure::Refused(format!("storage class {} does not exist", shown(name)))));
        };
        if class.provisioner != driver.as_str() {
            return Ok(Action::await_change());
        }
        match decide(claim, &class, &node.name, place) {
            Decision::Ignore => Ok(Action::await_change()),
            Decision::Compete => self.immediate_binding.compete(claim, &class).await,
            Decision::TakeIfHeld => placement::take_if_held(&self.context, claim, &class).await,
            Decision::LeaveToPopulator => {
                let note = "the claim's data source is served by a volume populator, which has to make the volume";
                events.publish(claim, Reason::Provisioning, note);
                Ok(Action::await_change())
            }
            Decision::Provision => match self.provision(claim, &class).await {
                Ok(action) => Ok(action),
                // A copy can be on no other node, however full this one is.
                Err(failure) if self.is_of_this_node(&failure) && matches!(source(claim), Ok(None)) => {
                    let size = claim::requested_bytes(claim).unwrap_or_default();
                    let hint = if self.capacity.has_ruled_out(&class, size) { IN_SPITE_OF_CAPACITY } else { "" };
                    let failure = self.report_with(claim, failure, hint);
                    if let Some(object) = self.made(claim).await? {
                        info!(
                            claim = %claim.name_any(),
                            "not given back to the scheduler: PersistentVolume {object} has been made for it"
                        );
                    } else {
                        self.reschedule(claim, &class).await?;
                        info!(claim = %claim.name_any(), "given back to the scheduler: {failure}");
                    }
                    Ok(Action::await_change())
                }
                Err(failure @ Failure::OverShare(_)) if matches!(source(claim), Ok(None)) => {
                    self.give_way(claim, failure).await
                }
                Err(failure) => Err(self.report(claim, failure)),
            },
        }
    }

    /// Returns whether `claim` has been given to this driver. One that waits for a pod has not been given to any yet:
    /// it is seen only because it has a source.
    fn is_ours(&self, claim: &PersistentVolumeClaim) -> bool {
        match claim::provisioner(claim) {
            Some(provisioner) => provisioner == self.context.agent.driver.as_str(),
            None => claim::selected_node(claim).is_none() && matches!(source(claim), Ok(Some(_))),
        }
    }

    /// Returns whether another node may do better.
    fn is_of_this_node(&self, failure: &Failure) -> bool {
        failure.is_of_this_node() || failure.is_helper_away() && self.capacity.has_lost_helper()
    }

    async fn provision(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<Action, Failure> {
        let context = &*self.context;
        let wanted_since =
            context.memory.with(claim::uid(claim), |entry| *entry.wanted_since.get_or_insert_with(Instant::now));
        let mut wanted = requested_volume(claim, class)?;
        if let Some(name) = claim::attributes_class(claim) {
            let attributes = attributes::named(context, name).await?;
            wanted.parameters = wanted.parameters.with_attributes(&attributes, wanted.mode)?;
        }
        if !storage_class::may_be_at(class, &context.agent.place) {
            let (class, node) = (class.name_any(), &context.agent.node.name);
            return Err(Failure::Refused(format!(
                "storage class {class} allows no volumes on node {node} (allowedTopologies), which was selected nevertheless: remove the claim's annotation selected-node"
            )));
        }
        wanted.source = match holder::find(context, claim).await? {
            Some(Holder::Elsewhere(node)) => {
                placement::hand_over(context, claim, &node).await?;
                return Ok(Action::await_change());
            }
            Some(Holder::Here(source)) => Some(source),
            None => None,
        };
        if !context.cordon.is_known() {
            return Ok(Action::requeue(START_PAUSE));
        }
        context.cordon.check(&context.volumes.pool(&wanted.parameters).await?, &context.agent.node.name)?;
        // Held until the API server has the PersistentVolume: before that, the volume looks like an orphan.
        let Some(_making) = context.unnamed.try_enter(&identify(&wanted.name)?.0) else {
            return Ok(Action::requeue(JUDGED_PAUSE));
        };
        let charged = charge_claim(context, &claim.namespace().unwrap_or_default(), &wanted).await?;
        let provisioned = settled(charged, context.volumes.provision(wanted).await)?;
        METRICS.provisioning.with(["made"]).observe(wanted_since.elapsed().as_secs_f64());
        let outcome = self.record(claim, class, provisioned).await;
        // A pod is waiting for the PersistentVolume, but nobody for the capacity.
        context.capacity_changed.notify_one();
        outcome.map(|()| Action::await_change())
    }

    /// Creates the PersistentVolume for the volume that was made for `claim`.
    async fn record(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        provisioned: Provisioned,
    ) -> Result<(), Failure> {
        let context = &*self.context;
        let mut object =
            persistent_volume::describe(&context.agent.driver, &context.agent.place, claim, class, &provisioned);
        match self.standing(claim).await? {
            Standing::Waiting => {}
            Standing::Elsewhere => {
                context.unnamed.suspect();
                return Ok(());
            }
            // It will never be claimed: the object exists only so that the volume is deleted in the ordinary way.
            Standing::Gone => {
                if let Some(spec) = &mut object.spec {
                    spec.persistent_volume_reclaim_policy = Some("Delete".to_owned());
                }
            }
        }
        let created = self.create(&object).await?;
        if let Some(since) = context.memory.with(claim::uid(claim), |entry| entry.wanted_since.take()) {
            METRICS.provisioning.with(["acknowledged"]).observe(since.elapsed().as_secs_f64());
        }
        let Provisioned { volume, size } = provisioned;
        info!(claim = %claim.name_any(), namespace = claim.namespace(), %volume, %size, call = %call_id::current(), "provisioned");
        let note = format!("provisioned volume {volume} of {}", Quantity::from(size.get()));
        context.events.publish(claim, Reason::ProvisioningSucceeded, note);
        // Whom it is charged to has to be known if the agent starts anew.
        if context.ledger.limits().is_some()
            && let Err(failure) = owners::note(context, &volume, &created).await
        {
            debug!(%volume, "whose the volume is is noted later: {failure}");
        }
        Ok(())
    }

    /// Returns where `claim` stands now. If the watch shows it unchanged, that is believed. Otherwise the API server is
    /// asked, since a watch may lack what exists.
    async fn standing(&self, claim: &PersistentVolumeClaim) -> Result<Standing, Failure> {
        let is_same = |now: &PersistentVolumeClaim| now.metadata.uid == claim.metadata.uid;
        let is_here = |now: &PersistentVolumeClaim| claim::selected_node(now) == Some(&self.context.agent.node.name);
        let watched = self.context.stores.claims.get(&ObjectRef::from_obj(claim));
        if watched.is_some_and(|now| is_same(&now) && is_here(&now) && !claim::is_being_deleted(&now)) {
            return Ok(Standing::Waiting);
        }
        let claims = self.context.claims_beside(claim);
        Ok(match request("reading a claim", claims.get_opt(&claim.name_any())).await? {
            Some(now) if !is_same(&now) || claim::is_being_deleted(&now) => Standing::Gone,
            Some(now) if is_here(&now) => Standing::Waiting,
            Some(_) => Standing::Elsewhere,
            None => Standing::Gone,
        })
    }

    async fn create(&self, object: &PersistentVolume) -> Result<PersistentVolume, Failure> {
        let objects = self.context.persistent_volumes();
        match request("creating a PersistentVolume", objects.create(&PostParams::default(), object)).await {
            Ok(created) => Ok(created),
            // The answer to an earlier request was lost, or the watch is late.
            Err(failure) if failure.is_already_exists() => self.verify(object).await,
            Err(failure) => {
                self.context.unnamed.suspect();
                Err(failure)
            }
        }
    }

    /// Makes sure that the existing PersistentVolume is for this very volume.
    async fn verify(&self, object: &PersistentVolume) -> Result<PersistentVolume, Failure> {
        let (objects, name) = (self.context.persistent_volumes(), object.name_any());
        let existing = request("reading a PersistentVolume", objects.get(&name)).await?;
        if persistent_volume::binding(&existing) != persistent_volume::binding(object) {
            return Err(Failure::Refused(format!(
                "PersistentVolume {name} already exists for another purpose: delete it if it is not in use"
            )));
        }
        if persistent_volume::own_volume(&existing, &self.context.agent.driver, &self.context.agent.place).is_none() {
            self.context.unnamed.suspect();
            return Err(Failure::Refused(format!(
                "PersistentVolume {name} of this claim is on another node: the volume made here is not used and will be deleted"
            )));
        }
        Ok(existing)
    }

    /// The PersistentVolume that this node has made for `claim`, though it may not know: the answer was lost, and the
    /// watch is late. The control plane would try in vain to bind the claim to it once another node is selected.
    async fn made(&self, claim: &PersistentVolumeClaim) -> Result<Option<String>, Failure> {
        let (objects, volume) = (self.context.persistent_volumes(), claim::volume_name(claim));
        let name = persistent_volume::name_of(&volume, &self.context.agent.place);
        let found = request("reading a PersistentVolume", objects.get_metadata_opt(&name)).await?;
        Ok(found.map(|_| name))
    }

    /// Lets the scheduler choose another node. The remaining capacity of this one is published first: otherwise the
    /// scheduler would choose it again at once.
    async fn reschedule(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<(), Failure> {
        let size = claim::requested_bytes(claim).unwrap_or_default();
        self.capacity.rule_out(class, claim::mode(claim), size).await?;
        select(&self.context, claim, None).await
    }

    /// Lets the scheduler choose another node for a claim whose namespace has its share of this one. The node's capacity is
    /// for others, and stays as it is. So the scheduler may come straight back, and most such claims wait here.
    async fn give_way(&self, claim: &PersistentVolumeClaim, failure: Failure) -> Result<Action, Failure> {
        let failure = self.report(claim, failure);
        let namespace = claim.namespace().unwrap_or_default();
        if self.made(claim).await?.is_some() || !self.context.ledger.may_give_back(&namespace) {
            return Err(failure);
        }
        select(&self.context, claim, None).await?;
        info!(claim = %claim.name_any(), namespace, "given back to the scheduler: {failure}");
        Ok(Action::await_change())
    }

    /// Reports a failure to the claim's owner if it is about the volume; failures of the API server are for the
    /// operator alone.
    fn report(&self, claim: &PersistentVolumeClaim, failure: Failure) -> Failure {
        self.report_with(claim, failure, "")
    }

    /// Reports as [`Self::report`] does, and adds `hint`, which says what else may help.
    fn report_with(&self, claim: &PersistentVolumeClaim, failure: Failure, hint: &str) -> Failure {
        METRICS.provisioning_failures.with([failure.cause()]).inc();
        if failure.is_for_owner() {
            warn!(claim = %claim.name_any(), namespace = claim.namespace(), "not provisioned: {failure}");
            self.context.events.publish(claim, Reason::ProvisioningFailed, format!("{failure}{hint}"));
        }
        failure
    }
}
