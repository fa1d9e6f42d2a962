//! What is wrong with pools and volumes: in the log, as metrics, and for subscribers; each once when it appears and
//! once when it is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_model::volumes::{Ailment, Identity, PoolCondition, Severity};
use bulkhead_protocol::{PoolName, VolumeId};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Condition, Report};
use crate::metrics::METRICS;

/// How long a volume counts as abnormal after it was last measured. A kubelet measures those in use every minute.
const REMEMBERED: Duration = Duration::from_secs(600);

/// What a volume that somebody needs, but that does not exist, has in the place of its state.
const MISSING: &str = "the volume does not exist: no pool of the node contains it. If its disk was replaced, or an older copy of the pool was restored, put back the former; if the data is lost, restore it from a backup, or delete the pod and the claim";

/// What is wrong at a given moment.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Whether all pools have been looked at once: before that, no condition is known to be over.
    pub are_pools_known: bool,
    /// The conditions of each pool that has any.
    pub pools: BTreeMap<PoolName, BTreeMap<Identity, PoolCondition>>,
    /// The volumes that are abnormal.
    pub volumes: BTreeMap<VolumeId, Abnormal>,
    /// The volumes that nobody needs, as far as the orchestrator's objects tell.
    pub orphans: BTreeMap<VolumeId, Orphan>,
}

/// Why a volume is abnormal.
#[derive(Clone, Debug)]
pub struct Abnormal {
    /// Its pool, if it has one.
    pub pool: Option<PoolName>,
    /// What is wrong.
    pub message: String,
    ailment: Ailment,
    cause: Cause,
}

/// How it is known that a volume is abnormal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// It was measured then.
    Measured(Instant),
    /// Its whole pool has failed.
    Pool,
    /// It is needed, and not served.
    Unserved,
    /// It is needed, and does not exist.
    Missing,
    /// It cannot be unpublished.
    Stuck,
}

/// A volume that nobody needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Its pool.
    pub pool: PoolName,
    /// Its size in bytes.
    pub bytes: u64,
}

impl Abnormal {
    /// Returns whether the reason is that its whole pool, `pool`, has failed.
    pub fn is_of_failed(&self, pool: &PoolName) -> bool {
        self.pool.as_ref() == Some(pool) && self.cause == Cause::Pool
    }

    /// Returns whether it does not exist.
    pub fn is_missing(&self) -> bool {
        self.cause == Cause::Missing
    }

    /// Returns whether it exists, or may, but is not served.
    pub fn is_unserved(&self) -> bool {
        self.cause == Cause::Unserved
    }

    /// Returns whether somebody is known to need it, though no pool that is served has it.
    pub(super) fn is_needed(&self) -> bool {
        self.is_missing() || self.is_unserved()
    }

    /// Returns whether it is still so after the volume was measured, and answered.
    pub(super) fn outlasts_a_measurement(&self) -> bool {
        matches!(self.cause, Cause::Pool | Cause::Stuck)
    }

    /// It as it is reported.
    pub(super) fn report(&self) -> Report {
        Report { ailment: self.ailment, message: self.message.clone() }
    }

    fn is_measured(&self) -> bool {
        matches!(self.cause, Cause::Measured(_))
    }
}

impl Health {
    /// Returns how many volumes do not exist though they are needed.
    pub fn missing(&self) -> usize {
        self.volumes.values().filter(|abnormal| abnormal.is_missing()).count()
    }

    /// Returns how many volumes are not served though they are needed.
    pub fn unserved(&self) -> usize {
        self.volumes.values().filter(|abnormal| abnormal.is_unserved()).count()
    }

    /// The volumes that are there and served, in pools that have not failed, and need attention all the same.
    pub fn by_themselves(&self) -> impl Iterator<Item = (&VolumeId, &Abnormal)> {
        let alone = |cause| matches!(cause, Cause::Measured(_) | Cause::Stuck);
        self.volumes.iter().filter(move |(_, abnormal)| alone(abnormal.cause))
    }

    /// Returns whether `pool` is not mounted on the host any more, as the helper has said last.
    pub fn is_unmounted(&self, pool: &PoolName) -> bool {
        let unmounted = PoolCondition::Reported(bulkhead_protocol::Condition::Unmounted).identity();
        self.pools.get(pool).is_some_and(|conditions| conditions.contains_key(&unmounted))
    }

    /// Returns whether any pool is not, as the helper has said last.
    pub fn is_any_unmounted(&self) -> bool {
        self.pools.keys().any(|pool| self.is_unmounted(pool))
    }

    /// The condition of `pool` that concerns all of its volumes, if it has one.
    pub fn failure_of(&self, pool: &PoolName) -> Option<&PoolCondition> {
        self.pools.get(pool)?.values().find(|condition| condition.kind().severity == Severity::Failure)
    }
}

/// Returns what is in `these` and not in `others`: what has appeared, or what is over.
pub fn beyond<'a, K: Ord, V>(
    these: &'a BTreeMap<K, V>,
    others: &BTreeMap<K, V>,
) -> impl Iterator<Item = (&'a K, &'a V)> {
    these.iter().filter(|(key, _)| !others.contains_key(*key))
}

/// The conditions that were reported last. Clones share the same state.
#[derive(Clone)]
pub struct Conditions(Arc<watch::Sender<Health>>);

impl Default for Conditions {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Health::default())))
    }
}

impl Conditions {
    /// Returns what is wrong now, and every change to it.
    pub fn subscribe(&self) -> watch::Receiver<Health> {
        self.0.subscribe()
    }

    /// Records what is wrong with a pool now.
    pub fn record(&self, pool: &PoolName, found: impl IntoIterator<Item = PoolCondition>) {
        let now: BTreeMap<_, _> = found.into_iter().map(|condition| (condition.identity(), condition)).collect();
        self.0.send_if_modified(|health| {
            let before = health.pools.remove(pool).unwrap_or_default();
            for (_, condition) in beyond(&now, &before) {
                warn!(%pool, condition = condition.kind().name, "the pool reports: {condition}");
            }
            for (identity, condition) in beyond(&before, &now) {
                info!(%pool, condition = condition.kind().name, "the pool no longer reports: {identity}");
                METRICS.pool_condition.with([pool.as_str(), condition.kind().name]).set(0.0);
            }
            for condition in now.values() {
                METRICS.pool_condition.with([pool.as_str(), condition.kind().name]).set(1.0);
            }
            let is_news = !before.keys().eq(now.keys());
            if !now.is_empty() {
                // Even if only its figures have changed: whoever looks next sees the current ones.
                health.pools.insert(pool.clone(), now);
            }
            is_news
        });
    }

    /// Has all that wait for a change look again.
    pub fn wake(&self) {
        self.0.send_modify(|_| {});
    }

    /// Records that all pools have been looked at.
    pub fn record_known(&self) {
        self.0.send_if_modified(|health| !std::mem::replace(&mut health.are_pools_known, true));
    }

    /// Records that `volume` was measured, and what that showed.
    pub fn record_volume(&self, volume: &VolumeId, pool: &PoolName, condition: &Condition) {
        match self.0.borrow().volumes.get(volume) {
            // Its pool decides, or whether it exists.
            Some(abnormal) if !abnormal.is_measured() => return,
            None if !condition.is_abnormal() => return,
            _ => {}
        }
        self.change_volumes(|volumes| {
            if let Some(ailment) = condition.ailment {
                let (pool, message) = (Some(pool.clone()), condition.message.clone());
                let cause = Cause::Measured(Instant::now());
                volumes.insert(volume.clone(), Abnormal { pool, message, ailment, cause });
            } else {
                volumes.remove(volume);
            }
        });
    }

    /// Records that `pool` has failed, with all its volumes.
    pub fn fail_volumes(&self, pool: &PoolName, failure: &PoolCondition, volumes_of_pool: Vec<VolumeId>) {
        let Some(ailment) = failure.ailment() else { return };
        let message = failure.to_string();
        self.change_volumes(|volumes| {
            for volume in volumes_of_pool {
                let (pool, message) = (Some(pool.clone()), message.clone());
                volumes.insert(volume, Abnormal { pool, message, ailment, cause: Cause::Pool });
            }
        });
    }

    /// Records that these volumes, and no others, are needed but do not exist.
    pub fn record_missing(&self, missing: &BTreeSet<VolumeId>) {
        METRICS.missing_volumes.with([]).set(missing.len() as f64);
        self.change_volumes(|volumes| {
            volumes.retain(|volume, abnormal| !abnormal.is_missing() || missing.contains(volume));
            for volume in missing {
                let (message, ailment) = (MISSING.to_owned(), Ailment::MISSING);
                volumes.insert(volume.clone(), Abnormal { pool: None, message, ailment, cause: Cause::Missing });
            }
        });
    }

    /// Records that these volumes, and no others, are needed but not served: why each is not.
    pub fn record_unserved(&self, unserved: BTreeMap<VolumeId, String>) {
        METRICS.unserved_volumes.with([]).set(unserved.len() as f64);
        self.change_volumes(|volumes| {
            volumes.retain(|volume, abnormal| !abnormal.is_unserved() || unserved.contains_key(volume));
            for (volume, message) in unserved {
                if volumes.get(&volume).is_none_or(|known| known.cause != Cause::Pool) {
                    let ailment = Ailment::UNSERVED;
                    volumes.insert(volume, Abnormal { pool: None, message, ailment, cause: Cause::Unserved });
                }
            }
        });
    }

    /// Records that these volumes, and no others, cannot be unpublished: in which pool each is, and why. What is wrong
    /// with its whole pool counts for more.
    pub fn record_stuck(&self, stuck: BTreeMap<VolumeId, (Option<PoolName>, String)>) {
        self.change_volumes(|volumes| {
            volumes.retain(|volume, abnormal| abnormal.cause != Cause::Stuck || stuck.contains_key(volume));
            for (volume, (pool, message)) in stuck {
                if volumes.get(&volume).is_none_or(|known| known.is_measured() || known.cause == Cause::Stuck) {
                    let ailment = Ailment::STUCK;
                    volumes.insert(volume, Abnormal { pool, message, ailment, cause: Cause::Stuck });
                }
            }
        });
    }

    /// Records that nobody needs these volumes, and no others.
    pub fn record_orphans(&self, orphans: BTreeMap<VolumeId, Orphan>) {
        METRICS.orphaned_volumes.with([]).set(orphans.len() as f64);
        self.0.send_if_modified(|health| {
            for (volume, Orphan { pool, bytes }) in beyond(&orphans, &health.orphans) {
                warn!(%volume, %pool, bytes, "no PersistentVolume names the volume");
            }
            let is_news = !health.orphans.keys().eq(orphans.keys());
            health.orphans = orphans;
            is_news
        });
    }

    /// Forgets what is out of date: volumes of pools that have recovered, and those that have not been measured for a
    /// long time.
    pub fn forget_recovered(&self) {
        let health = self.0.borrow().clone();
        self.change_volumes(|volumes| {
            volumes.retain(|_, abnormal| match abnormal.cause {
                Cause::Missing | Cause::Unserved | Cause::Stuck => true,
                Cause::Pool => abnormal.pool.as_ref().is_some_and(|pool| health.failure_of(pool).is_some()),
                Cause::Measured(at) => at.elapsed() < REMEMBERED,
            });
        });
    }

    /// Forgets `volume`, which is no longer in use.
    pub fn forget_volume(&self, volume: &VolumeId) {
        if self.0.borrow().volumes.get(volume).is_some_and(Abnormal::is_measured) {
            self.change_volumes(|volumes| drop(volumes.remove(volume)));
        }
    }

    fn change_volumes(&self, change: impl FnOnce(&mut BTreeMap<VolumeId, Abnormal>)) {
        self.0.send_if_modified(|health| {
            let before = health.volumes.clone();
            change(&mut health.volumes);
            // What concerns a whole pool is already in the log, and the pool may have thousands of volumes.
            let own = |(_, abnormal): &(&VolumeId, &Abnormal)| abnormal.cause != Cause::Pool;
            for (volume, Abnormal { message, .. }) in beyond(&health.volumes, &before).filter(own) {
                warn!(%volume, "the volume is abnormal: {message}");
            }
            for (volume, _) in beyond(&before, &health.volumes).filter(own) {
                info!(%volume, "the volume is no longer abnormal");
            }
            !before.keys().eq(health.volumes.keys())
        });
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::{Condition as Reported, Separation};

    use super::*;

    fn record(conditions: &Conditions, pool: &PoolName, reported: &[Reported]) {
        conditions.record(pool, reported.iter().cloned().map(PoolCondition::Reported));
    }

    #[test]
    fn a_condition_is_news_when_it_appears_and_when_it_is_gone() {
        let (conditions, pool) = (Conditions::default(), "default".parse().unwrap());
        let mut health = conditions.subscribe();
        let report = |reported: &[Reported]| record(&conditions, &pool, reported);
        let evasion = |bytes, inodes| Reported::QuotaEvasion { bytes, inodes, first: 4711, more: false };
        report(&[]);
        assert!(!health.has_changed().unwrap());
        report(&[evasion(4096, 7)]);
        assert!(health.borrow_and_update().pools.contains_key(&pool));
        report(&[evasion(8192, 9)]);
        assert!(!health.has_changed().unwrap(), "figures do not make another condition");
        let current = conditions.subscribe().borrow().pools[&pool].values().cloned().collect::<Vec<_>>();
        assert_eq!(current, [PoolCondition::Reported(evasion(8192, 9))], "but they are not outdated either");
        assert!(health.borrow().failure_of(&pool).is_none());
        report(&[Reported::ShutDown]);
        assert_eq!(health.borrow_and_update().failure_of(&pool).unwrap().kind().name, "shut_down");
        report(&[]);
        assert!(health.borrow_and_update().pools.is_empty());
    }

    #[test]
    fn a_condition_that_remains_elsewhere_is_still_in_the_metric() {
        let (conditions, pool) = (Conditions::default(), "metric".parse().unwrap());
        let metric = || METRICS.pool_condition.with(["metric", "apart"]).get();
        for directory in ["kubelet", "local"] {
            let (directory, cause) = (directory.parse().unwrap(), Separation::NotShared);
            record(&conditions, &pool, &[Reported::Apart { directory, cause }]);
            assert_eq!(metric(), 1.0);
        }
        record(&conditions, &pool, &[]);
        assert_eq!(metric(), 0.0);
    }

    #[test]
    fn a_volume_that_is_stuck_is_abnormal_until_it_is_not() {
        let (conditions, pool) = (Conditions::default(), "default".parse::<PoolName>().unwrap());
        let [one, other] = ["vol-1", "vol-2"].map(|volume| volume.parse::<VolumeId>().unwrap());
        let health = conditions.subscribe();
        conditions.record_missing(&[other.clone()].into());
        let stuck = |volume: &VolumeId| (volume.clone(), (Some(pool.clone()), "it is held".to_owned()));
        conditions.record_stuck([stuck(&one), stuck(&other)].into());
        conditions.record_volume(&one, &pool, &Condition { ailment: None, message: String::new() });
        conditions.forget_recovered();
        assert_eq!(health.borrow().volumes[&one].message, "it is held");
        assert!(health.borrow().volumes[&other].is_missing(), "that is worse");
        conditions.record_stuck(BTreeMap::new());
        assert!(health.borrow().volumes.keys().eq([&other]));
    }

    #[test]
    fn a_volume_is_abnormal_by_itself_or_with_its_pool() {
        let (conditions, pool) = (Conditions::default(), "default".parse().unwrap());
        let [one, other] = ["vol-1", "vol-2"].map(|volume| volume.parse::<VolumeId>().unwrap());
        let mut health = conditions.subscribe();
        let mut abnormal = || health.borrow_and_update().volumes.keys().cloned().collect::<Vec<_>>();
        let measured = |abnormal: bool| {
            let ailment = if abnormal { PoolCondition::Reported(Reported::Other).ailment() } else { None };
            Condition { ailment, message: "text".to_owned() }
        };
        conditions.record_volume(&one, &pool, &measured(true));
        assert_eq!(abnormal(), std::slice::from_ref(&one));
        conditions.record_volume(&one, &pool, &measured(true));
        assert!(!conditions.subscribe().has_changed().unwrap());
        conditions.record_volume(&one, &pool, &measured(false));
        assert!(abnormal().is_empty());

        record(&conditions, &pool, &[Reported::ShutDown]);
        conditions.fail_volumes(&pool, &PoolCondition::Reported(Reported::ShutDown), vec![one.clone(), other.clone()]);
        conditions.record_volume(&one, &pool, &measured(false));
        conditions.forget_volume(&other);
        conditions.forget_recovered();
        assert_eq!(abnormal(), [one, other], "the pool decides");
        record(&conditions, &pool, &[]);
        conditions.forget_recovered();
        assert!(abnormal().is_empty());
    }
}
