//! Choosing the node for a claim that any node may take (`volumeBindingMode: Immediate`), without any communication
//! between the nodes.
//!
//! Every node that has room bids for the claim, by writing its name into it, and the API server accepts the first bid
//! only. They bid one after another, in an order that each works out on its own ([`BidOrder`]), each in its turn
//! ([`Rank::turn`]), until one has taken the claim.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_model::objects::claim;
use bulkhead_model::quantity::Quantity;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tokio::time::Instant;
use tracing::debug;

use super::bid_order::BidOrder;
use super::bid_turn::Rank;
use super::node_selection::select;
use super::requested_volume::requested_volume;
use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::capacity::estimate::Estimate;
use crate::kubernetes::capacity::reporter::CapacityReporter;
use crate::kubernetes::context::Context;
use crate::kubernetes::holdings::objection;
use crate::kubernetes::ledger::OverShare;
use crate::kubernetes::memory::Bids;
use crate::kubernetes::reconcile::Action;
use crate::volumes::Capacity;

/// How many nodes say that a claim cannot be served: if all did, it would cost as many requests as there are nodes. The
/// first in order may be gone, so that others join in as the claim waits, up to [`MOST_TELLERS`].
const TELLERS: usize = 2;

/// How many do in the end.
const MOST_TELLERS: usize = 8;

/// How soon to bid again for a claim that the agents may not take: its class may be granted to them meanwhile.
const AFTER_REFUSAL: Duration = Duration::from_secs(300);

/// Returns how many nodes say that a claim of this `age` cannot be served; none before it is `untaken` old.
fn tellers(age: Duration, untaken: Duration) -> usize {
    let passed = age.as_secs() / untaken.as_secs().max(1);
    match passed {
        0 => 0,
        1 => TELLERS,
        2 => 2 * TELLERS,
        _ => MOST_TELLERS,
    }
}

/// Bids for claims that any node may take.
pub struct ImmediateBinding {
    context: Arc<Context>,
    capacity: Arc<CapacityReporter>,
    order: BidOrder,
}

impl ImmediateBinding {
    /// For `context`'s node, whose capacity `capacity` publishes.
    pub fn new(context: Arc<Context>, capacity: Arc<CapacityReporter>) -> Self {
        Self { context, capacity, order: BidOrder::default() }
    }

    /// Tells the claim's owner, once, that this node has no room for it. No node knows whether any other has room, but
    /// by then one with room would have taken it.
    async fn report_no_room(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        own: &Estimate,
        over: Option<OverShare>,
    ) -> Result<(), Failure> {
        let made = claim.metadata.creation_timestamp.as_ref();
        let age = made.and_then(|made| Duration::try_from(Timestamp::now().duration_since(made.0)).ok());
        let tellers = tellers(age.unwrap_or_default(), self.context.intervals.untaken);
        let (memory, uid) = (&self.context.memory, claim::uid(claim));
        if tellers == 0 || memory.with(uid, |entry| entry.no_room_reported) {
            return Ok(());
        }
        let rank = self.order.rank(&self.context, uid, &class.name_any(), 0, Some(own.capacity)).await?;
        let is_teller = rank.before < tellers;
        let is_settled = is_teller || tellers == MOST_TELLERS;
        if is_settled && memory.with(uid, |entry| std::mem::replace(&mut entry.no_room_reported, true)) {
            return Ok(());
        }
        if is_teller {
            let node = &self.context.agent.node.name;
            let here = own.obstacle.clone().or_else(|| over.map(|over| over.to_string())).unwrap_or_else(|| {
                let largest = Quantity::from(own.capacity.largest_volume);
                format!("a new volume can have at most {largest}: request less, or free space")
            });
            let note = format!("no node has taken the claim yet; on node {node}, {here}");
            self.context.events.publish(claim, Reason::ProvisioningFailed, note);
        }
        Ok(())
    }

    /// Tells the claim's owner, once, that this node may not take it, as when the class is not granted to the agents.
    fn report_refusal(&self, claim: &PersistentVolumeClaim, failure: &Failure) {
        let is_news =
            self.context.memory.with(claim::uid(claim), |entry| !std::mem::replace(&mut entry.refusal_reported, true));
        if is_news {
            let node = &self.context.agent.node.name;
            let note =
                format!("node {node} may not take the claim: {failure}; `kubectl bulkhead doctor` says what to do");
            self.context.events.publish(claim, Reason::ProvisioningFailed, note);
        }
    }

    /// Bids for `claim` of `class`, or waits until it is time to.
    ///
    /// # Errors
    /// When the bid has failed for another reason than that the claim has changed: then its new state decides.
    pub async fn compete(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<Action, Failure> {
        // A claim that cannot be served as it stands still has to be refused by one node: the one that gets it.
        let estimate = match self.capacity.estimate(class, claim::mode(claim)).await {
            Ok(estimate) => Some(estimate),
            Err(failure) if failure.is_final() => None,
            Err(failure) => return Err(failure),
        };
        let requested = claim::requested_bytes(claim).unwrap_or_default();
        if let Some(estimate) = estimate.as_ref().filter(|estimate| estimate.capacity.largest_volume < requested) {
            return self.stand_back(claim, class, estimate, None).await;
        }
        if let Some(estimate) = &estimate
            && let Some(over) = self.over_share(claim, class).await?
        {
            return self.stand_back(claim, class, estimate, Some(over)).await;
        }
        // If no node can serve it, none has room for it either, and any of them may come first.
        let capacity = estimate.map(|estimate| estimate.capacity);
        let size = if capacity.is_some() { requested } else { 0 };
        if let Some(pause) = self.pause(claim, class, size, capacity).await? {
            return Ok(Action::requeue(pause));
        }
        match self.bid(claim).await {
            Err(failure) if failure.is_conflict() || failure.is_not_found() => Ok(Action::await_change()),
            Err(failure) if failure.is_forbidden() => {
                self.report_refusal(claim, &failure);
                Ok(Action::requeue(AFTER_REFUSAL + jitter(AFTER_REFUSAL)))
            }
            bid => bid.map(|()| Action::await_change()),
        }
    }

    /// Does not bid for `claim` for a while.
    async fn stand_back(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        own: &Estimate,
        over: Option<OverShare>,
    ) -> Result<Action, Failure> {
        self.context.memory.with(claim::uid(claim), |entry| entry.bids = None);
        self.report_no_room(claim, class, own, over).await?;
        let pause = self.context.intervals.no_room;
        Ok(Action::requeue(pause + jitter(pause)))
    }

    /// Returns why the namespace of `claim` may have no such volume here, if it may not. What can be had nowhere is refused
    /// by the node that gets it.
    async fn over_share(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
    ) -> Result<Option<OverShare>, Failure> {
        let Ok(wanted) = requested_volume(claim, class) else { return Ok(None) };
        match objection(&self.context, &claim.namespace().unwrap_or_default(), &wanted).await {
            Err(failure) if failure.is_final() => Ok(None),
            objection => objection,
        }
    }

    /// Returns how long until this node may bid for `claim`; `None` if it may now.
    async fn pause(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        size: u64,
        own: Option<Capacity>,
    ) -> Result<Option<Duration>, Failure> {
        let (context, uid) = (&*self.context, claim::uid(claim));
        let begun = Bids { since: Instant::now(), made: 0 };
        let Bids { since, made } = context.memory.with(uid, |entry| *entry.bids.get_or_insert(begun));
        let left = |rank: Rank| {
            let left = rank.turn(made, context.pace.latency()).saturating_sub(since.elapsed());
            // Here it waits without holding a place that others need, and may see meanwhile that it need not bid.
            if left.is_zero() { context.pace.pause() } else { Some(left) }
        };
        let rank = || self.order.rank(context, uid, class.metadata.name.as_deref().unwrap_or_default(), size, own);
        match left(rank().await?) {
            None if self.order.renew(context).await? => Ok(left(rank().await?)),
            pause => Ok(pause),
        }
    }

    /// Bids for `claim`, unless another node is known to have it by now.
    async fn bid(&self, claim: &PersistentVolumeClaim) -> Result<(), Failure> {
        let context = &*self.context;
        let is_untaken =
            |now: &PersistentVolumeClaim| now.metadata.uid == claim.metadata.uid && claim::selected_node(now).is_none();
        if !context.stores.claims.get(&ObjectRef::from_obj(claim)).is_some_and(|now| is_untaken(&now)) {
            return Ok(());
        }
        context.memory.with(claim::uid(claim), |entry| {
            if let Some(bids) = &mut entry.bids {
                bids.made += 1;
            }
        });
        select(context, claim, Some(&context.agent.node.name)).await?;
        // The volume is made when the watch reports the claim with this node.
        debug!(claim = %claim.name_any(), "claim taken for this node");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_nodes_say_that_there_is_no_room_as_the_claim_waits() {
        let untaken = Duration::from_secs(60);
        let after = |seconds| tellers(Duration::from_secs(seconds), untaken);
        assert_eq!([0, 59, 60, 120, 180, 86_400].map(after), [0, 0, 2, 4, 8, 8]);
        assert_eq!(tellers(Duration::from_secs(1), Duration::from_millis(10)), 2, "a short time, as in tests");
    }
}
