//! Which node takes a claim that may be anywhere: the emptiest, without a word between the nodes.
//!
//! Every node that has room waits, the longer the fuller it is, and then writes its name into the claim. The API server
//! lets the first one through.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use tokio::time::Instant;
use tracing::debug;

use super::node_selection::select;
use crate::kubernetes::api::backoff::random;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::objects::claim;
use crate::volumes::Capacity;

/// How long a full node waits; an empty one does not.
const FULLNESS: Duration = Duration::from_millis(600);

/// What parts nodes that are equally full. Doubled with each contest that is lost by a hair, which shows that there are
/// many: the first of many comes early all the same.
const JITTER: Duration = Duration::from_millis(300);

/// How often it is doubled at most.
const DOUBLED: u32 = 3;

/// How long until a node without room looks again whether there is some.
const PAUSE: Duration = Duration::from_secs(20);

/// The claims that this node competes for, and when its turn comes.
#[derive(Debug, Default)]
pub struct Contest {
    turns: Mutex<HashMap<String, Instant>>,
    /// Contests that were lost by a hair of late, less those that were won.
    lost: AtomicU32,
}

impl Contest {
    /// Competes for `claim` of `class`.
    ///
    /// # Errors
    /// A conflict when another node was first.
    pub async fn enter(
        &self,
        context: &Context,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
    ) -> Result<Action, Failure> {
        let uid = claim::uid(claim);
        // A claim that cannot be served as it is has to be refused by somebody: whoever takes it.
        let room = match context.publisher.room(context, class).await {
            Ok(room) => Some(room),
            Err(failure) if failure.is_final() => None,
            Err(failure) => return Err(failure),
        };
        let wanted = claim::requested(claim).unwrap_or_default();
        if room.is_some_and(|room| room.largest_volume < wanted) {
            self.turns().remove(uid);
            return Ok(Action::requeue(PAUSE + random(PAUSE)));
        }
        let now = Instant::now();
        let turn = *self
            .turns()
            .entry(uid.to_owned())
            .or_insert_with(|| now + FULLNESS.mul_f64(fullness(room)) + random(JITTER * self.spread()));
        if turn > now {
            return Ok(Action::requeue(turn - now));
        }
        self.turns().remove(uid);
        // The volume is made when the claim comes back with this node.
        let taken = select(context, claim, Some(&context.node.name)).await;
        self.learn(taken.as_ref().is_err_and(Failure::is_conflict));
        taken?;
        debug!(claim = %claim.name_any(), "taken");
        Ok(Action::await_change())
    }

    /// The claim is gone, or has a node.
    pub fn forget(&self, uid: &str) {
        self.turns().remove(uid);
    }

    /// Forgets all but those claims.
    pub fn keep(&self, living: &HashSet<String>) {
        self.turns().retain(|uid, _| living.contains(uid));
    }

    fn spread(&self) -> u32 {
        1 << self.lost.load(Ordering::Relaxed)
    }

    fn learn(&self, lost: bool) {
        let step = |now: u32| Some(if lost { (now + 1).min(DOUBLED) } else { now.saturating_sub(1) });
        // The closure always gives a value.
        let _ = self.lost.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
    }

    fn turns(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How full the node is, from 0 to 1.
fn fullness(room: Option<Capacity>) -> f64 {
    let Some(Capacity { available, total, .. }) = room else { return 1.0 };
    if total == 0 { 1.0 } else { 1.0 - (available as f64 / total as f64).clamp(0.0, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fullness_is_a_share() {
        let room = |available, total| Some(Capacity { available, largest_volume: 0, total });
        assert_eq!(fullness(room(0, 0)), 1.0);
        assert_eq!(fullness(room(0, 10)), 1.0);
        assert_eq!(fullness(room(5, 10)), 0.5);
        assert_eq!(fullness(room(10, 10)), 0.0);
        assert_eq!(fullness(room(20, 10)), 0.0, "pools may be overcommitted");
        assert_eq!(fullness(None), 1.0);
    }

    #[test]
    fn contests_that_are_lost_spread_the_next_ones() {
        let contest = Contest::default();
        assert_eq!(contest.spread(), 1);
        let spreads: Vec<_> = [true, true, true, true, false, false, false, false]
            .map(|lost| {
                contest.learn(lost);
                contest.spread()
            })
            .into();
        assert_eq!(spreads, [2, 4, 8, 8, 4, 2, 1, 1]);
    }
}
