//! One operation per volume at a time.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bulkhead_protocol::{ErrorKind, VolumeId};
use tokio::sync::Notify;

use super::{Fault, FaultKind};

/// The volumes on which an operation is in progress.
#[derive(Clone, Default)]
pub(super) struct InFlight(Arc<Shared>);

#[derive(Default)]
struct Shared {
    volumes: Mutex<HashSet<VolumeId>>,
    ended: Notify,
}

/// The right to change one volume, until it is dropped.
#[must_use]
pub(super) struct Guard {
    shared: Arc<Shared>,
    volume: VolumeId,
}

impl InFlight {
    /// The right to change `volume`; refused while another operation has it.
    pub(super) fn enter(&self, volume: &VolumeId) -> Result<Guard, Fault> {
        if self.0.volumes().insert(volume.clone()) {
            Ok(Guard { shared: Arc::clone(&self.0), volume: volume.clone() })
        } else {
            let message = format!("another operation on volume {volume} is in progress; try again");
            Err(Fault::new(FaultKind::Typed(ErrorKind::Busy), message))
        }
    }

    /// Waits until no operation is in progress.
    pub(super) async fn idle(&self) {
        loop {
            let ended = self.0.ended.notified();
            if self.0.volumes().is_empty() {
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

    #[test]
    fn one_at_a_time_and_again_afterwards() {
        let in_flight = InFlight::default();
        let (one, other): (VolumeId, VolumeId) = ("vol-1".parse().unwrap(), "vol-2".parse().unwrap());
        let guard = in_flight.enter(&one).unwrap();
        assert!(in_flight.enter(&one).err().unwrap().is(ErrorKind::Busy));
        let _other = in_flight.enter(&other).unwrap();
        drop(guard);
        let _again = in_flight.enter(&one).unwrap();
    }
}
