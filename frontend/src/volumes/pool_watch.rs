//! A look at all pools from time to time, so that problems are noticed soon even if nobody asks.
//!
//! The helper's audit log has a line for each request, so volumes are not looked at one by one: a kubelet measures
//! those in use every minute, and the answers are remembered here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bulkhead_model::volumes::{Fault, Parameters, PoolCondition};
use bulkhead_protocol::{Condition, ErrorKind, PoolName, PoolStatus, Usage, VolumeId};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::conditions::{Health, Orphan};
use super::{Room, Volumes};
use crate::helper::{COPY_REFUSALS, Counts};
use crate::metrics::METRICS;

/// The longest pause between two looks. Changes noticed in between are looked into at once.
const PERIOD: Duration = Duration::from_secs(30);

/// The shortest pause.
const SHORTEST: Duration = Duration::from_millis(200);

/// How long one pool may keep the others waiting.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How long measurements are remembered.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The last measurement of each volume in use. Clones share the same state.
#[derive(Clone, Default)]
pub struct Measurements(Arc<Mutex<HashMap<VolumeId, (Instant, Usage)>>>);

impl Measurements {
    /// Remembers a measurement.
    pub fn record(&self, volume: &VolumeId, usage: &Usage) {
        self.with(|known| known.insert(volume.clone(), (Instant::now(), usage.clone())));
    }

    /// The last measurement of `volume`.
    pub fn last(&self, volume: &VolumeId) -> Option<Usage> {
        self.with(|known| known.get(volume).map(|(_, usage)| usage.clone()))
    }

    /// Forgets a volume that is no longer in use.
    pub fn forget(&self, volume: &VolumeId) {
        self.with(|known| known.remove(volume));
    }

    /// The bytes that the volumes of each pool use.
    fn used(&self) -> BTreeMap<PoolName, u64> {
        self.with(|known| {
            known.retain(|_, (at, _)| at.elapsed() < REMEMBERED);
            let mut used = BTreeMap::new();
            for (_, usage) in known.values() {
                *used.entry(usage.pool.clone()).or_insert(0) += usage.used_bytes.unwrap_or(0);
            }
            used
        })
    }

    fn with<T>(&self, access: impl FnOnce(&mut HashMap<VolumeId, (Instant, Usage)>) -> T) -> T {
        access(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Volumes {
    /// Returns what is wrong now, and every change to it.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.conditions.subscribe()
    }

    /// Records that these volumes, and no others, are needed but do not exist.
    pub fn record_missing(&self, missing: &BTreeSet<VolumeId>) {
        self.conditions.record_missing(missing);
    }

    /// Records that these volumes, and no others, are needed but not served: why each is not.
    pub fn record_unserved(&self, unserved: BTreeMap<VolumeId, String>) {
        self.conditions.record_unserved(unserved);
    }

    /// Records that these volumes, and no others, cannot be unpublished: in which pool each is, and why.
    pub fn record_stuck(&self, stuck: BTreeMap<VolumeId, (Option<PoolName>, String)>) {
        self.conditions.record_stuck(stuck);
    }

    /// Records that nobody needs these volumes, and no others.
    pub fn record_orphans(&self, orphans: BTreeMap<VolumeId, Orphan>) {
        self.conditions.record_orphans(orphans);
    }

    /// Looks at all pools for as long as it is polled.
    pub async fn watch_health(&self) {
        let mut health = self.health();
        loop {
            let begun = Instant::now();
            match self.look_at_pools().await {
                Ok(()) => METRICS.inspections.with([]).observe(begun.elapsed().as_secs_f64()),
                // What was known stays as it was.
                Err(fault) => debug!("the pools cannot be looked at: {fault}"),
            }
            health.mark_unchanged();
            sleep(SHORTEST).await;
            // Look again, whether something has changed or the period is over.
            let _ = timeout(PERIOD, health.changed()).await;
        }
    }

    async fn look_at_pools(&self) -> Result<(), Fault> {
        let welcome = self.helper.welcome().await?;
        let (mut pools, mut counts) = (BTreeMap::new(), BTreeMap::new());
        for pool in welcome.pools.as_slice() {
            let status = match timeout(PATIENCE, self.pool_status(&pool.name)).await {
                Ok(Ok(status)) => Some(status),
                Ok(Err(fault)) if fault.is(ErrorKind::Busy) || PoolCondition::of_fault(&fault).is_some() => None,
                Ok(Err(fault)) => return Err(fault),
                // Its filesystem hangs. The helper will notice as well, and report it when it is asked again.
                Err(_) => None,
            };
            if status.is_some() {
                counts.insert(pool.name.clone(), self.counts(&pool.name).await);
            }
            pools.insert(pool.name.clone(), status);
        }
        if self.optional.is_decided() {
            self.conditions.record_known();
        }
        self.look_at_stuck().await;
        self.conditions.forget_recovered();
        for pool in pools.keys() {
            self.fail_volumes_of(pool).await?;
        }
        self.publish_figures(&pools, &counts);
        Ok(())
    }

    /// The volumes that cannot be unpublished need attention.
    async fn look_at_stuck(&self) {
        let mut stuck = BTreeMap::new();
        for (volume, message) in self.stuck.overdue(Instant::now()) {
            let pool = self.helper.usage(&volume, None).await.ok().map(|usage| usage.pool);
            stuck.insert(volume, (pool, message));
        }
        self.record_stuck(stuck);
    }

    /// If `pool` has failed, its volumes have failed as well. No others are made in it in the meantime.
    async fn fail_volumes_of(&self, pool: &PoolName) -> Result<(), Fault> {
        let health = self.health().borrow().clone();
        let Some(failure) = health.failure_of(pool) else { return Ok(()) };
        if health.volumes.values().any(|abnormal| abnormal.is_of_failed(pool)) {
            return Ok(());
        }
        let volumes = self.list_all().await?.into_iter().filter(|listed| listed.pool == *pool);
        let volumes = volumes.map(|listed| listed.volume).collect();
        self.conditions.fail_volumes(pool, failure, volumes);
        Ok(())
    }

    fn publish_figures(&self, pools: &BTreeMap<PoolName, Option<PoolStatus>>, counts: &BTreeMap<PoolName, Counts>) {
        for gauge in [
            &METRICS.pool_size, &METRICS.pool_available, &METRICS.pool_largest_volume, &METRICS.pool_promised,
            &METRICS.pool_overpromised, &METRICS.pool_used, &METRICS.pool_volumes, &METRICS.pool_emptying,
            &METRICS.pool_abnormal, &METRICS.pool_filesystem_limit, &METRICS.pool_filesystems, &METRICS.pool_snapshots,
            &METRICS.pool_snapshot_bytes, &METRICS.pool_inodes, &METRICS.pool_free_inodes,
        ] {
            // A pool that is no longer there has no figures.
            gauge.clear();
        }
        let (health, used) = (self.health().borrow().clone(), self.measurements.used());
        for (pool, status) in pools {
            let name = [pool.as_str()];
            let abnormal = health.volumes.values().filter(|abnormal| abnormal.pool.as_ref() == Some(pool)).count();
            METRICS.pool_abnormal.with(name).set(abnormal as f64);
            METRICS.pool_used.with(name).set(used.get(pool).copied().unwrap_or(0) as f64);
            let Counts { filesystem_limit, filesystems, inodes, snapshots, extent_limit, snapshot_bytes } =
                counts.get(pool).copied().unwrap_or_default();
            if filesystem_limit > 0 {
                METRICS.pool_filesystem_limit.with(name).set(filesystem_limit.into());
                METRICS.pool_filesystems.with(name).set(filesystems.into());
            }
            if extent_limit > 0 || snapshots > 0 {
                METRICS.pool_snapshots.with(name).set(snapshots.into());
                METRICS.pool_snapshot_bytes.with(name).set(snapshot_bytes as f64);
            }
            if extent_limit > 0 {
                count_refusals();
            }
            if let Some(inodes) = inodes {
                METRICS.pool_inodes.with(name).set(inodes.total as f64);
                METRICS.pool_free_inodes.with(name).set(inodes.free as f64);
            }
            if let Some(status) = status {
                METRICS.pool_size.with(name).set(status.total as f64);
                METRICS.pool_available.with(name).set(status.available as f64);
                let capacity = Room::from(status).capacity(&Parameters::default(), None);
                METRICS.pool_largest_volume.with(name).set(capacity.largest_volume as f64);
                METRICS.pool_promised.with(name).set(status.promised as f64);
                METRICS.pool_overpromised.with(name).set(overpromised(status) as f64);
                METRICS.pool_volumes.with(name).set(status.volumes.into());
                METRICS.pool_emptying.with(name).set(status.emptying.into());
            }
        }
    }
}

/// Counts the outcomes of copies that operators are told of, from zero: the first is to be an increase.
fn count_refusals() {
    for request in ["create-snapshot", "create-from"] {
        for outcome in COPY_REFUSALS {
            METRICS.helper_requests.with([request, outcome]);
        }
    }
}

/// Returns how much more is promised than may be.
fn overpromised(status: &PoolStatus) -> u64 {
    let excess = |condition: &Condition| match condition {
        Condition::Overpromised { promised, limit } => Some(promised.saturating_sub(*limit)),
        _ => None,
    };
    status.conditions.as_slice().iter().find_map(excess).unwrap_or(0)
}
