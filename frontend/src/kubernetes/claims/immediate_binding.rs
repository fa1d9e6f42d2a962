//! Choosing the node for a claim that any node may take (`volumeBindingMode: Immediate`), without any communication
//! between the nodes.
//!
//! Every node that has room bids for the claim, by writing its name into it, and the API server accepts the first bid
//! only. They bid one after another, in an order that each works out on its own ([`BidOrder`]), until one has taken the
//! claim.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bulkhead_model::objects::claim;
use bulkhead_model::quantity::Quantity;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use tokio::time::Instant;
use tracing::debug;

use super::bid_order::BidOrder;
use super::node_selection::select;
use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::capacity::reporter::CapacityReporter;
use crate::kubernetes::context::Context;

/// How long a node waits for each one before it: somewhat longer than it takes for a bid to be known everywhere.
/// Doubled with each bid that is narrowly lost, which shows that it takes longer, or that not all know the same about
/// each other.
const TURN: Duration = Duration::from_millis(25);

/// How many times it is doubled at most.
const DOUBLED: u32 = 3;

/// How many nodes before this one are counted at most. Nodes further back spread over the time that as many again would
/// take.
const MOST_TURNS: usize = 20;

/// Bids for claims that any node may take.
pub struct ImmediateBinding {
    context: Arc<Context>,
    capacity: Arc<CapacityReporter>,
    order: BidOrder,
    losses: Losses,
}

impl ImmediateBinding {
    /// For `context`'s node, whose capacity `capacity` publishes.
    pub fn new(context: Arc<Context>, capacity: Arc<CapacityReporter>) -> Self {
        Self { context, capacity, order: BidOrder::default(), losses: Losses::default() }
    }

    /// Tells the claim's owner, once, that this node has no room for it. No node knows whether any other has room, but
    /// by then one with room would have taken it.
    fn report_no_room(&self, claim: &PersistentVolumeClaim, largest: u64) {
        let made = claim.metadata.creation_timestamp.as_ref();
        let age = made.and_then(|made| Duration::try_from(Timestamp::now().duration_since(made.0)).ok());
        if age.is_none_or(|age| age < self.context.intervals.untaken) {
            return;
        }
        let is_news =
            self.context.memory.with(claim::uid(claim), |entry| !std::mem::replace(&mut entry.no_room_reported, true));
        if is_news {
            let node = &self.context.agent.node.name;
            let note = format!(
                "no node has taken the claim yet; on node {node}, a new volume can have at most {}: request less, or free space",
                Quantity::from(largest)
            );
            self.context.events.publish(claim, Reason::ProvisioningFailed, note);
        }
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
    /// A conflict when another node was first.
    pub async fn compete(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<Action, Failure> {
        let (memory, uid) = (&self.context.memory, claim::uid(claim));
        // A claim that cannot be served as it stands still has to be refused by one node: the one that gets it.
        let capacity = match self.capacity.estimate(class, claim::mode(claim)).await {
            Ok(capacity) => Some(capacity),
            Err(failure) if failure.is_final() => None,
            Err(failure) => return Err(failure),
        };
        let requested = claim::requested_bytes(claim).unwrap_or_default();
        if capacity.is_some_and(|capacity| capacity.largest_volume < requested) {
            memory.with(uid, |entry| entry.bid_at = None);
            self.report_no_room(claim, capacity.map(|capacity| capacity.largest_volume).unwrap_or_default());
            let pause = self.context.intervals.no_room;
            return Ok(Action::requeue(pause + jitter(pause)));
        }
        let bid_at = match memory.with(uid, |entry| entry.bid_at) {
            Some(bid_at) => bid_at,
            None => {
                // If no node can serve it, none has room for it either, and any of them may come first.
                let size = if capacity.is_some() { requested } else { 0 };
                let rank = self.order.rank(&self.context, uid, &class.name_any(), size, capacity).await?;
                let bid_at = Instant::now() + delay(rank, self.losses.factor());
                memory.with(uid, |entry| *entry.bid_at.insert(bid_at))
            }
        };
        let now = Instant::now();
        if bid_at > now {
            return Ok(Action::requeue(bid_at - now));
        }
        memory.with(uid, |entry| entry.bid_at = None);
        let outcome = select(&self.context, claim, Some(&self.context.agent.node.name)).await;
        self.losses.record(outcome.as_ref().is_err_and(Failure::is_conflict));
        if let Err(failure) = &outcome
            && failure.is_forbidden()
        {
            self.report_refusal(claim, failure);
        }
        outcome?;
        // The volume is made when the watch reports the claim with this node.
        debug!(claim = %claim.name_any(), "claim taken for this node");
        Ok(Action::await_change())
    }
}

/// Returns how long to wait before a bid, with `rank` nodes before this one.
fn delay(rank: usize, factor: u32) -> Duration {
    let turn = TURN * factor;
    let turns = |number: usize| turn * u32::try_from(number).unwrap_or(u32::MAX);
    if rank < MOST_TURNS { turns(rank) } else { turns(MOST_TURNS) + jitter(turns(MOST_TURNS)) }
}

/// Bids that were narrowly lost to another node, less those that were won; at most [`DOUBLED`].
#[derive(Debug, Default)]
struct Losses(AtomicU32);

impl Losses {
    /// Returns what to multiply the delay by.
    fn factor(&self) -> u32 {
        1 << self.0.load(Ordering::Relaxed)
    }

    /// Records that a bid was lost or won.
    fn record(&self, lost: bool) {
        let step = |now: u32| Some(if lost { (now + 1).min(DOUBLED) } else { now.saturating_sub(1) });
        // The closure always returns a value.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_does_not_wait_and_the_last_does_not_wait_for_ever() {
        assert_eq!(delay(0, 8), Duration::ZERO);
        assert_eq!(delay(3, 1), TURN * 3);
        assert_eq!(delay(3, 8), TURN * 24);
        let longest = TURN * u32::try_from(MOST_TURNS * 2).unwrap();
        assert!((longest / 2..=longest).contains(&delay(100_000, 1)));
    }

    #[test]
    fn lost_bids_spread_the_next_ones() {
        let losses = Losses::default();
        assert_eq!(losses.factor(), 1);
        let factors: Vec<_> = [true, true, true, true, false, false, false, false]
            .map(|lost| {
                losses.record(lost);
                losses.factor()
            })
            .into();
        assert_eq!(factors, [2, 4, 8, 8, 4, 2, 1, 1]);
    }
}
