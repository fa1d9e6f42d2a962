//! Pools that a node may lack. One that is not there is no failure, unless it holds volumes that somebody needs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bulkhead_protocol::PoolName;

use super::{Fault, PoolCondition, Volumes};

/// The pools. Clones share the same state.
#[derive(Clone, Default)]
pub struct Optional {
    pools: Arc<BTreeSet<PoolName>>,
    /// Whether volumes are needed that are in none of the pools that are served.
    are_needed: Arc<AtomicBool>,
}

impl Optional {
    /// These.
    pub fn new(pools: impl IntoIterator<Item = PoolName>) -> Self {
        Self { pools: Arc::new(pools.into_iter().collect()), are_needed: Arc::default() }
    }
}

impl Volumes {
    /// Records whether volumes are needed that may be in pools that are not served.
    pub fn note_unseen(&self, are_needed: bool) {
        self.optional.are_needed.store(are_needed, Ordering::Relaxed);
    }

    /// What it means for `pool` that the helper answers a question about it with `fault`; `None` if the fault is not about
    /// the pool.
    pub(super) fn condition_of(&self, pool: &PoolName, fault: &Fault) -> Option<PoolCondition> {
        let condition = PoolCondition::of_fault(fault)?;
        let may_lack_it = self.optional.pools.contains(pool) && !self.optional.are_needed.load(Ordering::Relaxed);
        Some(if may_lack_it { condition.of_optional() } else { condition })
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::ErrorKind;

    use super::*;
    use crate::helper::Helper;
    use crate::volumes::FaultKind;

    #[tokio::test]
    async fn a_pool_that_may_be_lacking_is_absent_until_its_volumes_are_needed() {
        let [fast, slow]: [PoolName; 2] = ["fast", "slow"].map(|name| name.parse().unwrap());
        let volumes = Volumes::new(Helper::new("/nonexistent")).with_optional_pools([fast.clone()]);
        let of = |pool: &PoolName, kind| {
            let fault = Fault::new(FaultKind::Typed(kind), "text");
            volumes.condition_of(pool, &fault).map(|condition| condition.kind().name)
        };
        assert_eq!(of(&fast, ErrorKind::PoolBroken), Some("absent"));
        assert_eq!(of(&slow, ErrorKind::PoolBroken), Some("not_served"));
        assert_eq!((of(&fast, ErrorKind::Io(5)), of(&fast, ErrorKind::Busy)), (Some("errors"), None));
        volumes.note_unseen(true);
        assert_eq!(of(&fast, ErrorKind::PoolBroken), Some("not_served"));
    }
}
