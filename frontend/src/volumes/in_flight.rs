//! One operation per volume at a time.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bulkhead_model::volumes::{Fault, FaultKind};
use bulkhead_protocol::{ErrorKind, VolumeId};
use tokio::sync::Notify;
use tokio::time::timeout;

/// How long an operation waits for another one on the same volume. Two pods that start together publish their volume
/// one after the other; a kubelet that is refused retries only after half a second, and later each time.
const PATIENCE: Duration = Duration::from_secs(2);

/// The same of one that comes again by itself, and holds meanwhile what others need.
const IMPATIENCE: Duration = Duration::from_millis(100);

/// The volumes on which an operation is in progress. Clones share them.
#[derive(Clone)]
pub struct InFlight {
    shared: Arc<Shared>,
    patience: Duration,
}

impl Default for InFlight {
    fn default() -> Self {
        Self { shared: Arc::default(), patience: PATIENCE }
    }
}

#[derive(Default)]
struct Shared {
    volumes: Mutex<HashSet<VolumeId>>,
    ended: Notify,
}

/// The right to change one volume, until it is dropped.
#[must_use]
pub struct Guard {
    shared: Arc<Shared>,
    volume: VolumeId,
}

impl InFlight {
    /// The same volumes, for operations that come again by themselves instead of waiting for others.
    pub(super) fn impatient(self) -> Self {
        Self { patience: IMPATIENCE, ..self }
    }

    /// The right to change `volume`; refused if another operation holds it for too long.
    pub(super) async fn enter(&self, volume: &VolumeId) -> Result<Guard, Fault> {
        timeout(self.patience, self.turn(volume)).await.map_err(|_| {
            let message = format!("another operation on volume {volume} is in progress; try again");
            Fault::new(FaultKind::Typed(ErrorKind::Busy), message)
        })
    }

    /// The right to change both of two volumes, which must differ. All take them in the same order, so that no two wait for
    /// each other.
    pub(super) async fn enter_both(&self, one: &VolumeId, other: &VolumeId) -> Result<[Guard; 2], Fault> {
        let (first, second) = if one < other { (one, other) } else { (other, one) };
        Ok([self.enter(first).await?, self.enter(second).await?])
    }

    async fn turn(&self, volume: &VolumeId) -> Guard {
        loop {
            let ended = self.shared.ended.notified();
            if let Some(guard) = self.try_enter(volume) {
                return guard;
            }
            ended.await;
        }
    }

    /// The right to change `volume`, unless another operation has it.
    pub fn try_enter(&self, volume: &VolumeId) -> Option<Guard> {
        let is_free = self.shared.volumes().insert(volume.clone());
        is_free.then(|| Guard { shared: Arc::clone(&self.shared), volume: volume.clone() })
    }

    /// Waits until no operation is in progress.
    pub(super) async fn idle(&self) {
        loop {
            let ended = self.shared.ended.notified();
            if self.shared.volumes().is_empty() {
                return;
            }
            ended.await;
        }
    }
}

impl Shared {
    fn volumes(&self) -> MutexGuard<'_, HashSet<VolumeId>> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.volumes().remove(&self.volume);
        self.shared.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time_and_again_afterwards() {
        let in_flight = InFlight::default();
        let (one, other): (VolumeId, VolumeId) = ("vol-1".parse().unwrap(), "vol-2".parse().unwrap());
        let guard = in_flight.enter(&one).await.unwrap();
        assert!(in_flight.try_enter(&one).is_none());
        assert!(in_flight.enter(&one).await.err().unwrap().is(ErrorKind::Busy));
        let _other = in_flight.enter(&other).await.unwrap();
        drop(guard);
        let _again = in_flight.enter(&one).await.unwrap();
    }

    #[tokio::test]
    async fn two_at_once_are_both_taken_or_neither() {
        let in_flight = InFlight::default();
        let (one, other): (VolumeId, VolumeId) = ("vol-1".parse().unwrap(), "vol-2".parse().unwrap());
        let guards = in_flight.enter_both(&other, &one).await.unwrap();
        assert!(in_flight.try_enter(&one).is_none() && in_flight.try_enter(&other).is_none());
        drop(guards);
        let guard = in_flight.enter(&other).await.unwrap();
        assert!(in_flight.enter_both(&one, &other).await.err().unwrap().is(ErrorKind::Busy));
        assert!(in_flight.try_enter(&one).is_some());
        drop(guard);
    }

    #[tokio::test]
    async fn one_that_comes_again_by_itself_does_not_wait_for_long() {
        let in_flight = InFlight::default();
        let volume: VolumeId = "vol-1".parse().unwrap();
        let _guard = in_flight.enter(&volume).await.unwrap();
        let begun = tokio::time::Instant::now();
        assert!(in_flight.clone().impatient().enter(&volume).await.is_err());
        assert!(begun.elapsed() < PATIENCE);
    }

    #[tokio::test]
    async fn one_that_comes_a_little_early_waits() {
        let in_flight = InFlight::default();
        let volume: VolumeId = "vol-1".parse().unwrap();
        let guard = in_flight.enter(&volume).await.unwrap();
        let end = async {
            tokio::time::sleep(PATIENCE / 10).await;
            drop(guard);
        };
        let (second, ()) = tokio::join!(in_flight.enter(&volume), end);
        let _second = second.unwrap();
    }
}
