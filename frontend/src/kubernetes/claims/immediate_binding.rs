//! Choosing the node for a claim that any node may take (`volumeBindingMode: Immediate`): the emptiest one, without a
//! word between the nodes.
//!
//! Every node that has room bids for the claim, by writing its name into it. The fuller a node is the longer it waits
//! before that, and the API server accepts the first bid only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use tokio::time::Instant;
use tracing::debug;

use super::node_selection::select;
use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::capacity::publisher::CapacityPublisher;
use crate::kubernetes::context::Context;
use crate::kubernetes::objects::claim;
use crate::quantity::Quantity;
use crate::volumes::Capacity;

/// How long a full node waits before it bids; an empty one does not wait.
const FULL_NODE_DELAY: Duration = Duration::from_millis(600);

/// A random delay, which separates nodes that are equally full. Doubled with each bid that is lost to another one by a
/// hair, which shows that there are many nodes: the first of many still comes early.
const JITTER: Duration = Duration::from_millis(300);

/// How often it is doubled at most.
const DOUBLED: u32 = 3;

/// How long until a node without enough room checks again.
const NO_ROOM_PAUSE: Duration = Duration::from_secs(20);

/// When a claim that no node has taken is reported to its owner.
const UNTAKEN: Duration = Duration::from_secs(60);

/// Bids for claims that any node may take.
pub struct ImmediateBinding {
    context: Arc<Context>,
    capacity: Arc<CapacityPublisher>,
    rivals: Rivals,
}

impl ImmediateBinding {
    /// For `context`'s node, whose capacity `capacity` publishes.
    pub fn new(context: Arc<Context>, capacity: Arc<CapacityPublisher>) -> Self {
        Self { context, capacity, rivals: Rivals::default() }
    }

    /// Tells the claim's owner, once, that this node has no room for it. Nobody knows that no node has, but by then one
    /// that has would have taken it.
    fn report_no_room(&self, claim: &PersistentVolumeClaim, largest: u64) {
        let made = claim.metadata.creation_timestamp.as_ref();
        let age = made.and_then(|made| Duration::try_from(Timestamp::now().duration_since(made.0)).ok());
        if age.is_none_or(|age| age < UNTAKEN) {
            return;
        }
        let is_news =
            self.context.memory.with(claim::uid(claim), |entry| !std::mem::replace(&mut entry.no_room_reported, true));
        if is_news {
            let node = &self.context.node.name;
            let note = format!(
                "no node has taken the claim yet; on node {node}, a new volume can have at most {}: request less, or free space",
                Quantity::from(largest)
            );
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
        let capacity = match self.capacity.estimate(class).await {
            Ok(capacity) => Some(capacity),
            Err(failure) if failure.is_final() => None,
            Err(failure) => return Err(failure),
        };
        let requested = claim::requested_bytes(claim).unwrap_or_default();
        if capacity.is_some_and(|capacity| capacity.largest_volume < requested) {
            memory.with(uid, |entry| entry.bid_at = None);
            self.report_no_room(claim, capacity.map(|capacity| capacity.largest_volume).unwrap_or_default());
            return Ok(Action::requeue(NO_ROOM_PAUSE + jitter(NO_ROOM_PAUSE)));
        }
        let now = Instant::now();
        let delay = || FULL_NODE_DELAY.mul_f64(fullness(capacity)) + jitter(JITTER * self.rivals.spread());
        let bid_at = memory.with(uid, |entry| *entry.bid_at.get_or_insert_with(|| now + delay()));
        if bid_at > now {
            return Ok(Action::requeue(bid_at - now));
        }
        memory.with(uid, |entry| entry.bid_at = None);
        let outcome = select(&self.context, claim, Some(&self.context.node.name)).await;
        self.rivals.note(outcome.as_ref().is_err_and(Failure::is_conflict));
        outcome?;
        // The volume is made when the watch reports the claim with this node.
        debug!(claim = %claim.name_any(), "claim taken for this node");
        Ok(Action::await_change())
    }
}

/// A guess at how many nodes bid at the same time.
#[derive(Debug, Default)]
struct Rivals {
    /// Bids that were lost, less those that were won; at most [`DOUBLED`].
    lost: AtomicU32,
}

impl Rivals {
    /// What to multiply the random delay by.
    fn spread(&self) -> u32 {
        1 << self.lost.load(Ordering::Relaxed)
    }

    /// A bid was lost or won.
    fn note(&self, lost: bool) {
        let step = |now: u32| Some(if lost { (now + 1).min(DOUBLED) } else { now.saturating_sub(1) });
        // The closure always gives a value.
        let _ = self.lost.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
    }
}

/// How full the node is, from 0 to 1.
fn fullness(capacity: Option<Capacity>) -> f64 {
    let Some(Capacity { available, total, .. }) = capacity else { return 1.0 };
    if total == 0 { 1.0 } else { 1.0 - (available as f64 / total as f64).clamp(0.0, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fullness_is_a_share() {
        let capacity = |available, total| Some(Capacity { available, largest_volume: 0, total });
        assert_eq!(fullness(capacity(0, 0)), 1.0);
        assert_eq!(fullness(capacity(0, 10)), 1.0);
        assert_eq!(fullness(capacity(5, 10)), 0.5);
        assert_eq!(fullness(capacity(10, 10)), 0.0);
        assert_eq!(fullness(capacity(20, 10)), 0.0, "pools may be overcommitted");
        assert_eq!(fullness(None), 1.0);
    }

    #[test]
    fn lost_bids_spread_the_next_ones() {
        let rivals = Rivals::default();
        assert_eq!(rivals.spread(), 1);
        let spreads: Vec<_> = [true, true, true, true, false, false, false, false]
            .map(|lost| {
                rivals.note(lost);
                rivals.spread()
            })
            .into();
        assert_eq!(spreads, [2, 4, 8, 8, 4, 2, 1, 1]);
    }
}
