//! The state of pools and volumes, for the operators of the node.

use std::collections::{BTreeMap, HashSet};

use bulkhead_model::volumes::{Fault, Mode, PoolCondition};
use bulkhead_protocol::{ErrorKind, Listed, PoolName, PoolStatus, QuotaMode, Snapshot, VolumeId};
use tokio::time::timeout;

use super::pool_watch::PATIENCE;
use super::{Measured, Volumes};
use crate::helper::Counts;

/// How many volumes are looked at at a time.
const PAGE: usize = 500;

/// More than there can be.
const ALL: usize = usize::MAX - 1;

/// The protocol version that counts filesystems in images and inodes.
const COUNTED_SINCE: u16 = 4;

/// The state of a pool.
#[derive(Clone, Debug)]
pub struct PoolState {
    /// Its name.
    pub name: PoolName,
    /// Whether its sizes are enforced.
    pub quota: QuotaMode,
    /// As the helper reports it; a failure if the pool is not served.
    pub status: Result<PoolStatus, Fault>,
    /// What is wrong with it.
    pub conditions: Vec<PoolCondition>,
    /// Its volumes with filesystems in images, and its inodes.
    pub counts: Counts,
}

/// The state of a volume.
#[derive(Clone, Debug)]
pub struct Inspected {
    /// As it is listed.
    pub listed: Listed,
    /// How much of it is used, and whether it is healthy; a failure if that cannot be found out.
    pub measured: Result<Measured, Fault>,
}

impl PoolState {
    /// Returns what is wrong, for people; empty when nothing is.
    pub fn told(&self) -> Vec<String> {
        match &self.status {
            Err(fault) if self.conditions.is_empty() => vec![fault.to_string()],
            _ => self.conditions.iter().map(ToString::to_string).collect(),
        }
    }
}

impl Volumes {
    /// Returns what the volumes of each pool use, as far as it is counted. Every volume is measured.
    ///
    /// # Errors
    /// When the helper cannot be reached.
    pub async fn used(&self) -> Result<BTreeMap<PoolName, u64>, Fault> {
        let mut used = BTreeMap::<PoolName, u64>::new();
        let mut token = String::new();
        loop {
            let (page, next) = self.inspect_page(&token).await?;
            for Inspected { listed, measured } in page {
                let bytes = measured.ok().and_then(|measured| measured.usage.used_bytes).unwrap_or_default();
                *used.entry(listed.pool).or_default() += bytes;
            }
            match next {
                Some(next) => token = next,
                None => return Ok(used),
            }
        }
    }

    /// The state of all pools.
    ///
    /// # Errors
    /// When the helper cannot be reached.
    pub async fn pools(&self) -> Result<Vec<PoolState>, Fault> {
        let welcome = self.helper.welcome().await?;
        let mut states = Vec::new();
        for pool in welcome.pools.as_slice() {
            let status = self.pool_status(&pool.name).await;
            let conditions = match &status {
                Ok(status) => PoolCondition::all_of(status).collect(),
                Err(fault) => self.condition_of(&pool.name, fault).into_iter().collect(),
            };
            let counts = self.counts(&pool.name).await;
            states.push(PoolState { name: pool.name.clone(), quota: pool.quota, status, conditions, counts });
        }
        Ok(states)
    }

    /// The volumes of `pool` with filesystems in images, and its inodes. Where the helper is too old to count them, or
    /// fails, there are none, and nothing is known of inodes.
    pub(super) async fn counts(&self, pool: &PoolName) -> Counts {
        match self.helper.welcome().await {
            Ok(welcome) if welcome.version >= COUNTED_SINCE => self.helper.counts(pool).await.unwrap_or_default(),
            _ => Counts::default(),
        }
    }

    /// A page of volumes in the order of their ids, and the token for the next page, if there is one. The first page
    /// has an empty token.
    ///
    /// # Errors
    /// `BadToken` when no page can have returned the token.
    pub async fn inspect_page(&self, token: &str) -> Result<(Vec<Inspected>, Option<String>), Fault> {
        let page = self.list(PAGE, token).await?;
        let mut inspected = Vec::with_capacity(page.entries.len());
        for listed in page.entries {
            let measured = self.measure(&listed.volume, None).await;
            // It may have been deleted in the meantime.
            if !measured.as_ref().is_err_and(|fault| fault.is(ErrorKind::NotFound)) {
                inspected.push(Inspected { listed, measured });
            }
        }
        Ok((inspected, page.next))
    }

    /// All volumes.
    ///
    /// # Errors
    /// When the helper cannot list them.
    pub async fn list_all(&self) -> Result<Vec<Listed>, Fault> {
        Ok(self.list(ALL, "").await?.entries)
    }

    /// All snapshots. A helper of a release that takes none has none.
    ///
    /// # Errors
    /// When the helper cannot list them.
    pub async fn list_all_snapshots(&self) -> Result<Vec<Snapshot>, Fault> {
        match self.list_snapshots(None, ALL, "").await {
            Err(fault) if fault.is(ErrorKind::Unsupported) => Ok(Vec::new()),
            page => Ok(page?.entries),
        }
    }

    /// The pools that work.
    ///
    /// # Errors
    /// When the helper cannot be reached.
    pub async fn working_pools(&self) -> Result<HashSet<PoolName>, Fault> {
        let mut working = HashSet::new();
        for pool in self.helper.welcome().await?.pools.as_slice() {
            let fails = |status| PoolCondition::all_of(&status).any(|condition| condition.is_unserved());
            let status = timeout(PATIENCE, self.pool_status(&pool.name)).await;
            if status.is_ok_and(|status| status.is_ok_and(|status| !fails(status))) {
                working.insert(pool.name.clone());
            }
        }
        Ok(working)
    }

    /// One volume.
    ///
    /// # Errors
    /// `NotFound` when there is no such volume.
    pub async fn inspect(&self, volume: VolumeId) -> Result<Inspected, Fault> {
        let measured = self.measure(&volume, None).await?;
        let (pool, targets) = (measured.usage.pool.clone(), measured.usage.targets);
        let block = measured.mode() == Mode::Block;
        let listed = Listed { volume, pool, size: measured.usage.spec.size, block, targets };
        Ok(Inspected { listed, measured: Ok(measured) })
    }
}
