//! What is wrong with pools and volumes: in the log, as metrics, and for subscribers; each once when it appears and
//! once when it is gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_protocol::{Condition as Reported, PoolName, VolumeId};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::Condition;
use super::pool_condition::{PoolCondition, Severity};
use crate::metrics::METRICS;

/// How long a volume counts as abnormal after it was last measured. A kubelet measures those in use every minute.
const REMEMBERED: Duration = Duration::from_secs(600);

/// What is wrong at a given moment.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// The conditions of each pool that has any, by their texts without figures.
    pub pools: BTreeMap<PoolName, BTreeMap<String, PoolCondition>>,
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
        self.pools.get(pool)?.values().find(|condition| condition.kind.severity() == Severity::Failure)
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

    /// Records what the helper reports about a pool.
    pub fn note(&self, pool: &PoolName, reported: &[Reported]) {
        self.note_pool(pool, reported.iter().map(PoolCondition::reported));
    }

    /// Records that the helper cannot say anything about a pool, for this reason.
    pub fn note_failed(&self, pool: &PoolName, condition: PoolCondition) {
        self.note_pool(pool, std::iter::once(condition));
    }

    fn note_pool(&self, pool: &PoolName, reported: impl Iterator<Item = PoolCondition>) {
        let now: BTreeMap<_, _> = reported.map(|condition| (condition.key.clone(), condition)).collect();
        self.0.send_if_modified(|health| {
            let before = health.pools.get(pool).cloned().unwrap_or_default();
            for (_, condition) in now.iter().filter(|(key, _)| !before.contains_key(*key)) {
                warn!(%pool, condition = condition.kind.name(), "the pool reports: {}", condition.text);
            }
            for (key, condition) in before.iter().filter(|(key, _)| !now.contains_key(*key)) {
                info!(%pool, condition = condition.kind.name(), "the pool no longer reports: {key}");
                METRICS.pool_condition.with([pool.as_str(), condition.kind.name()]).set(0.0);
            }
            for condition in now.values() {
                METRICS.pool_condition.with([pool.as_str(), condition.kind.name()]).set(1.0);
            }
            if before.keys().eq(now.keys()) {
                return false;
            }
            match now.is_empty() {
                true => health.pools.remove(pool),
                false => health.pools.insert(pool.clone(), now),
            };
            true
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
    use bulkhead_protocol::ConditionKind;

    use super::*;

    #[test]
    fn a_condition_is_news_when_it_appears_and_when_it_is_gone() {
        let (conditions, pool) = (Conditions::default(), "default".parse().unwrap());
        let mut health = conditions.subscribe();
        let report = |reported: &[Reported]| conditions.note(&pool, reported);
        let evasion = |text: &str| Reported::new(ConditionKind::QuotaEvasion, text);
        report(&[]);
        assert!(!health.has_changed().unwrap());
        report(&[evasion("4096 bytes and 7 files are charged to projects that no volume has (the first is 4711)")]);
        assert!(health.borrow_and_update().pools.contains_key(&pool));
        report(&[evasion("900 bytes and 9 files are charged to projects that no volume has (the first is 4711)")]);
        assert!(!health.has_changed().unwrap(), "figures do not make another condition");
        assert!(health.borrow().failure_of(&pool).is_none());
        report(&[Reported::new(ConditionKind::ShutDown, "it has shut down")]);
        assert_eq!(health.borrow_and_update().failure_of(&pool).unwrap().kind.name(), "shut_down");
        report(&[]);
        assert!(health.borrow_and_update().pools.is_empty());
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

        conditions.note(&pool, &[Reported::new(ConditionKind::ShutDown, "it has shut down")]);
        conditions.fail_volumes(&pool, "it has shut down", vec![one.clone(), other.clone()]);
        conditions.note_volume(&one, &pool, &measured(false));
        conditions.forget_volume(&other);
        conditions.forget_recovered();
        assert_eq!(abnormal(), [one, other], "the pool decides");
        conditions.note(&pool, &[]);
        conditions.forget_recovered();
        assert!(abnormal().is_empty());
    }
}
