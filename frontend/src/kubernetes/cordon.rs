//! Pools that take no new volumes because an operator wants it: `kubectl bulkhead cordon` says so on the agent's Lease,
//! which is read whenever it is written. Nothing else changes: their volumes are used, grow, and are deleted.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bulkhead_model::objects::{lease, names};
use bulkhead_model::volumes::{Fault, FaultKind};
use bulkhead_protocol::{DriverName, ErrorKind, PoolName};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use tracing::info;

use crate::metrics::METRICS;

/// The pools of this node that are cordoned; `None` until the Lease has been read.
#[derive(Debug, Default)]
pub struct Cordon(Mutex<Option<BTreeSet<PoolName>>>);

impl Cordon {
    /// Goes by what the agent's `lease` says, if there is one, and returns whether that is news.
    pub fn follow(&self, lease: Option<&Lease>, driver: &DriverName) -> bool {
        let annotation = lease.and_then(|lease| lease.annotations().get(&names::cordoned_pools(driver)));
        let wanted = lease::cordoned(annotation);
        let mut known = self.known();
        let before = known.replace(wanted.clone()).unwrap_or_default();
        if before == wanted {
            return false;
        }
        METRICS.pool_cordoned.clear();
        for pool in &wanted {
            METRICS.pool_cordoned.with([pool.as_str()]).set(1.0);
        }
        for pool in wanted.difference(&before) {
            info!(%pool, "the pool is cordoned: it takes no new volumes");
        }
        for pool in before.difference(&wanted) {
            info!(%pool, "the pool is not cordoned any more");
        }
        true
    }

    /// Returns whether the Lease has been read, or could not be.
    pub fn is_known(&self) -> bool {
        self.known().is_some()
    }

    /// Fails if `pool`, which is on `node`, is cordoned.
    ///
    /// # Errors
    /// As if there were no room.
    pub fn check(&self, pool: &PoolName, node: &str) -> Result<(), Fault> {
        if !self.known().as_ref().is_some_and(|cordoned| cordoned.contains(pool)) {
            return Ok(());
        }
        let why = format!(
            "pool {pool} of node {node} is cordoned and takes no new volumes, until `kubectl bulkhead uncordon {node}/{pool}`"
        );
        Err(Fault::new(FaultKind::Typed(ErrorKind::NoSpace), why))
    }

    fn known(&self) -> MutexGuard<'_, Option<BTreeSet<PoolName>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bulkhead_model::volumes::Outlook;

    use super::*;

    #[test]
    fn what_the_lease_says_last_counts() {
        let (cordon, driver) = (Cordon::default(), "bulkhead.csi.local".parse().unwrap());
        let (fast, slow): (PoolName, PoolName) = ("fast".parse().unwrap(), "slow".parse().unwrap());
        let lease = |pools: &str| {
            let mut lease = Lease::default();
            lease.metadata.annotations = Some(BTreeMap::from([(names::cordoned_pools(&driver), pools.to_owned())]));
            lease
        };
        assert!(!cordon.is_known() && cordon.check(&fast, "a").is_ok());
        assert!(cordon.follow(Some(&lease("fast")), &driver) && !cordon.follow(Some(&lease("fast")), &driver));
        assert!(cordon.is_known());
        let fault = cordon.check(&fast, "a").unwrap_err();
        assert!(fault.outlook() == Outlook::NoRoom && fault.to_string().contains("`kubectl bulkhead uncordon a/fast`"));
        assert!(cordon.check(&slow, "a").is_ok());
        assert!(cordon.follow(Some(&lease("slow")), &driver) && cordon.check(&fast, "a").is_ok());
        assert!(cordon.follow(None, &driver) && cordon.check(&slow, "a").is_ok());
    }
}
