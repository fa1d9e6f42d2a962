//! Pools that a node may lack. One that is not there is no failure, unless it holds volumes that somebody needs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use bulkhead_model::volumes::{Fault, PoolCondition};
use bulkhead_protocol::{ErrorKind, PoolName};

use super::Volumes;

/// Whether volumes are needed that are in none of the pools that are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unseen {
    /// Nothing says that any is.
    #[default]
    NotNeeded,
    /// Some are.
    Needed,
    /// Somebody is about to find out.
    NotKnownYet,
}

/// The pools. Clones share the same state.
#[derive(Clone, Default)]
pub struct Optional {
    pools: Arc<BTreeSet<PoolName>>,
    unseen: Arc<Mutex<Unseen>>,
}

impl Optional {
    /// These.
    pub fn new(pools: impl IntoIterator<Item = PoolName>, unseen: Unseen) -> Self {
        Self { pools: Arc::new(pools.into_iter().collect()), unseen: Arc::new(Mutex::new(unseen)) }
    }

    /// Returns whether all that is known of the pools counts.
    pub(super) fn is_decided(&self) -> bool {
        self.pools.is_empty() || self.unseen() != Unseen::NotKnownYet
    }

    fn unseen(&self) -> Unseen {
        *self.unseen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Volumes {
    /// Records whether volumes are needed that may be in pools that are not served.
    pub fn record_unseen(&self, are_needed: bool) {
        let now = if are_needed { Unseen::Needed } else { Unseen::NotNeeded };
        let before = std::mem::replace(&mut *self.optional.unseen.lock().unwrap_or_else(PoisonError::into_inner), now);
        if before != now {
            // The pools are looked at again.
            self.conditions.wake();
        }
    }

    /// Returns whether `fault` says that a volume may be in a pool that is not served, and every such pool is one that
    /// this node may lack: then it is known only once the pool is there.
    pub fn is_of_absent_pool(&self, fault: &Fault) -> bool {
        let health = self.health();
        let health = health.borrow();
        let mut conditions = health.pools.values().flat_map(|conditions| conditions.values());
        let is_absent = conditions.clone().any(|condition| matches!(condition, PoolCondition::Absent(_)));
        fault.is(ErrorKind::PoolBroken)
            && (is_absent || !self.optional.is_decided())
            && !conditions.any(|condition| matches!(condition, PoolCondition::NotServed(_)))
    }

    /// Returns what it means for `pool` that the helper answers a question about it with `fault`; `None` if the fault
    /// is not about the pool, or if it is not known yet what it means.
    pub(super) fn condition_of(&self, pool: &PoolName, fault: &Fault) -> Option<PoolCondition> {
        let unseen = self.optional.pools.contains(pool).then(|| self.optional.unseen());
        match (unseen, PoolCondition::of_fault(fault)?) {
            (Some(Unseen::NotKnownYet), PoolCondition::NotServed(_)) => None,
            (Some(Unseen::NotNeeded), condition) => Some(condition.of_optional()),
            (_, condition) => Some(condition),
        }
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_model::volumes::FaultKind;

    use super::*;
    use crate::helper::Helper;

    #[tokio::test]
    async fn a_pool_that_may_be_lacking_is_absent_until_its_volumes_are_needed() {
        let [fast, slow]: [PoolName; 2] = ["fast", "slow"].map(|name| name.parse().unwrap());
        let volumes =
            Volumes::new(Helper::new("/nonexistent")).with_optional_pools([fast.clone()], Unseen::NotKnownYet);
        let of = |pool: &PoolName, kind| {
            let fault = Fault::new(FaultKind::Typed(kind), "text");
            volumes.condition_of(pool, &fault).map(|condition| condition.kind().name)
        };
        assert_eq!((of(&fast, ErrorKind::PoolBroken), of(&fast, ErrorKind::Io(5))), (None, Some("errors")));
        assert_eq!(of(&slow, ErrorKind::PoolBroken), Some("not_served"));
        assert!(!volumes.optional.is_decided());
        volumes.record_unseen(false);
        assert!(volumes.optional.is_decided());
        assert_eq!(of(&fast, ErrorKind::PoolBroken), Some("absent"));
        assert_eq!(of(&slow, ErrorKind::PoolBroken), Some("not_served"));
        assert_eq!((of(&fast, ErrorKind::Io(5)), of(&fast, ErrorKind::Busy)), (Some("errors"), None));
        let fault = Fault::new(FaultKind::Typed(ErrorKind::PoolBroken), "text");
        assert!(!volumes.is_of_absent_pool(&fault), "no pool is known to be absent");
        volumes.conditions.record(&fast, volumes.condition_of(&fast, &fault));
        assert!(volumes.is_of_absent_pool(&fault));
        assert!(!volumes.is_of_absent_pool(&Fault::new(FaultKind::Typed(ErrorKind::Io(5)), "text")));
        volumes.conditions.record(&slow, volumes.condition_of(&slow, &fault));
        assert!(!volumes.is_of_absent_pool(&fault), "it may be in the other one");
        volumes.record_unseen(true);
        assert_eq!(of(&fast, ErrorKind::PoolBroken), Some("not_served"));
    }
}
