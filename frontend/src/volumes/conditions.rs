//! What is wrong with pools and volumes: in the log, as metrics, and for subscribers; each once when it appears and
//! once when it is gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_protocol::{PoolName, VolumeId};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::Condition;
use super::pool_condition::{Identity, PoolCondition, Severity};
use crate::metrics::METRICS;

/// How long a volume counts as abnormal after it was last measured. A kubelet measures those in use every minute.
const REMEMBERED: Duration = Duration::from_secs(600);

/// What is wrong at a given moment.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// The conditions of each pool that has any.
    pub pools: BTreeMap<PoolName, BTreeMap<Identity, PoolCondition>>,
    /// The volumes that are abnormal.
    pub volumes: BTreeMap<VolumeId, Abnormal>,
}

/// Why a volume is abnormal.
#[derive(Clone, Debug)]
pub struct Abnormal {
    /// Its pool.
    pub pool: PoolName,
    /// What is wrong.
    pub message: String,
    /// When it was measured; `None` if what is wrong concerns its whole pool.
    measured: Option<Instant>,
}

impl Abnormal {
    /// Whether the reason is that its whole pool, `pool`, has failed.
    pub fn is_of_failed(&self, pool: &PoolName) -> bool {
        self.pool == *pool && self.measured.is_none()
    }
}

impl Health {
    /// The condition of `pool` that concerns all of its volumes, if it has one.
    pub fn failure_of(&self, pool: &PoolName) -> Option<&PoolCondition> {
        self.pools.get(pool)?.values().find(|condition| condition.kind().severity == Severity::Failure)
    }
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
    /// What is wrong now, and every change to it.
    pub fn subscribe(&self) -> watch::Receiver<Health> {
        self.0.subscribe()
    }

    /// Records what is wrong with a pool now.
    pub fn note(&self, pool: &PoolName, found: impl IntoIterator<Item = PoolCondition>) {
        let now: BTreeMap<_, _> = found.into_iter().map(|condition| (condition.identity(), condition)).collect();
        self.0.send_if_modified(|health| {
            let before = health.pools.remove(pool).unwrap_or_default();
            for (_, condition) in now.iter().filter(|(identity, _)| !before.contains_key(*identity)) {
                warn!(%pool, condition = condition.kind().name, "the pool reports: {condition}");
            }
            for (identity, condition) in before.iter().filter(|(identity, _)| !now.contains_key(*identity)) {
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

    /// Records that `volume` was measured, and what that showed.
    pub fn note_volume(&self, volume: &VolumeId, pool: &PoolName, condition: &Condition) {
        match self.0.borrow().volumes.get(volume) {
            // Its pool decides.
            Some(Abnormal { measured: None, .. }) => return,
            None if !condition.abnormal => return,
            _ => {}
        }
        self.change_volumes(|volumes| {
            if condition.abnormal {
                let (pool, message) = (pool.clone(), condition.message.clone());
                volumes.insert(volume.clone(), Abnormal { pool, message, measured: Some(Instant::now()) });
            } else {
                volumes.remove(volume);
            }
        });
    }

    /// Records that `pool` has failed, with all its volumes.
    pub fn fail_volumes(&self, pool: &PoolName, message: &str, volumes_of_pool: Vec<VolumeId>) {
        self.change_volumes(|volumes| {
            for volume in volumes_of_pool {
                let failed = Abnormal { pool: pool.clone(), message: message.to_owned(), measured: None };
                volumes.insert(volume, failed);
            }
        });
    }

    /// Forgets what is out of date: volumes of pools that have recovered, and those that have not been measured for a
    /// long time.
    pub fn forget_recovered(&self) {
        let health = self.0.borrow().clone();
        self.change_volumes(|volumes| {
            volumes.retain(|_, abnormal| match abnormal.measured {
                None => health.failure_of(&abnormal.pool).is_some(),
                Some(at) => at.elapsed() < REMEMBERED,
            });
        });
    }

    /// Forgets `volume`, which is no longer in use.
    pub fn forget_volume(&self, volume: &VolumeId) {
        if self.0.borrow().volumes.get(volume).is_some_and(|abnormal| abnormal.measured.is_some()) {
            self.change_volumes(|volumes| drop(volumes.remove(volume)));
        }
    }

    fn change_volumes(&self, change: impl FnOnce(&mut BTreeMap<VolumeId, Abnormal>)) {
        self.0.send_if_modified(|health| {
            let before = health.volumes.clone();
            change(&mut health.volumes);
            // What concerns a whole pool is already in the log, and the pool may have thousands of volumes.
            let own = |(_, abnormal): &(&VolumeId, &Abnormal)| abnormal.measured.is_some();
            let appeared = health.volumes.iter().filter(own).filter(|(volume, _)| !before.contains_key(*volume));
            for (volume, Abnormal { message, .. }) in appeared {
                warn!(%volume, "the volume is abnormal: {message}");
            }
            for (volume, _) in before.iter().filter(own).filter(|(volume, _)| !health.volumes.contains_key(*volume)) {
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

    fn note(conditions: &Conditions, pool: &PoolName, reported: &[Reported]) {
        conditions.note(pool, reported.iter().cloned().map(PoolCondition::Reported));
    }

    #[test]
    fn a_condition_is_news_when_it_appears_and_when_it_is_gone() {
        let (conditions, pool) = (Conditions::default(), "default".parse().unwrap());
        let mut health = conditions.subscribe();
        let report = |reported: &[Reported]| note(&conditions, &pool, reported);
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
            note(&conditions, &pool, &[Reported::Apart { directory, cause }]);
            assert_eq!(metric(), 1.0);
        }
        note(&conditions, &pool, &[]);
        assert_eq!(metric(), 0.0);
    }

    #[test]
    fn a_volume_is_abnormal_by_itself_or_with_its_pool() {
        let (conditions, pool) = (Conditions::default(), "default".parse().unwrap());
        let [one, other] = ["vol-1", "vol-2"].map(|volume| volume.parse::<VolumeId>().unwrap());
        let mut health = conditions.subscribe();
        let mut abnormal = || health.borrow_and_update().volumes.keys().cloned().collect::<Vec<_>>();
        let measured = |abnormal| Condition { abnormal, message: "text".to_owned() };
        conditions.note_volume(&one, &pool, &measured(true));
        assert_eq!(abnormal(), std::slice::from_ref(&one));
        conditions.note_volume(&one, &pool, &measured(true));
        assert!(!conditions.subscribe().has_changed().unwrap());
        conditions.note_volume(&one, &pool, &measured(false));
        assert!(abnormal().is_empty());

        note(&conditions, &pool, &[Reported::ShutDown]);
        conditions.fail_volumes(&pool, "it has shut down", vec![one.clone(), other.clone()]);
        conditions.note_volume(&one, &pool, &measured(false));
        conditions.forget_volume(&other);
        conditions.forget_recovered();
        assert_eq!(abnormal(), [one, other], "the pool decides");
        note(&conditions, &pool, &[]);
        conditions.forget_recovered();
        assert!(abnormal().is_empty());
    }
}
