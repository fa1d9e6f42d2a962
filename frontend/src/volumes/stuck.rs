//! Volumes that cannot be unpublished. A kubelet tries again and again, and says so in its own log, and in events of a pod
//! that may be gone.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bulkhead_model::volumes::{Fault, FaultKind};
use bulkhead_protocol::{ErrorKind, VolumeId};
use tokio::time::Instant;

/// How long attempts may fail before somebody should know.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long after the last attempt a volume is remembered. A kubelet makes one every two minutes at least.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The volumes, with the attempts on each. Clones share the same state.
#[derive(Clone, Default)]
pub struct Stuck(Arc<Mutex<HashMap<VolumeId, Attempts>>>);

struct Attempts {
    first: Instant,
    last: Instant,
    message: String,
}

impl Stuck {
    /// Records how an attempt to unpublish `volume` has ended.
    pub fn record(&self, volume: &VolumeId, outcome: &Result<(), Fault>, now: Instant) {
        let mut stuck = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Err(fault) if is_of_volume(fault) => {
                let message = fault.to_string();
                let attempts = stuck.entry(volume.clone()).or_insert(Attempts { first: now, last: now, message });
                (attempts.last, attempts.message) = (now, fault.to_string());
            }
            // The other failures say nothing about the volume.
            Err(_) => {}
            Ok(()) => drop(stuck.remove(volume)),
        }
    }

    /// The volumes that cannot be unpublished for a while, and why.
    pub fn overdue(&self, now: Instant) -> BTreeMap<VolumeId, String> {
        let mut stuck = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stuck.retain(|_, attempts| now.duration_since(attempts.last) < REMEMBERED);
        let overdue = stuck.iter().filter(|(_, attempts)| attempts.last.duration_since(attempts.first) >= PATIENCE);
        let told = |(volume, attempts): (&VolumeId, &Attempts)| {
            let why = &attempts.message;
            let message = format!(
                "the volume cannot be unpublished, so its pod does not end: {why}; find out what holds it on the node (fuser -vm TARGET, findmnt), and end that"
            );
            (volume.clone(), message)
        };
        overdue.map(told).collect()
    }
}

fn is_of_volume(fault: &Fault) -> bool {
    matches!(
        fault.kind,
        FaultKind::Typed(ErrorKind::Busy | ErrorKind::InUse | ErrorKind::Io(_) | ErrorKind::PoolBroken)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_stuck_when_attempts_have_failed_for_a_while() {
        let (stuck, start, volume) = (Stuck::default(), Instant::now(), "vol-1".parse().unwrap());
        let after = |seconds| start + Duration::from_secs(seconds);
        let attempt = |kind, seconds| {
            stuck.record(&volume, &Err(Fault::new(FaultKind::Typed(kind), "it is held")), after(seconds));
            stuck.overdue(after(seconds)).remove(&volume)
        };
        assert_eq!(attempt(ErrorKind::Busy, 0), None);
        assert_eq!(attempt(ErrorKind::Busy, 119), None);
        assert!(attempt(ErrorKind::Io(5), 120).unwrap().contains("does not end: it is held; find out"));
        stuck.record(&volume, &Ok(()), after(130));
        assert_eq!(attempt(ErrorKind::Busy, 300), None, "it is another time");
        assert_eq!(attempt(ErrorKind::Invalid, 800), None);
        assert!(attempt(ErrorKind::Busy, 801).is_some());
        assert!(stuck.overdue(after(1401)).is_empty(), "nobody tries any more");
    }
}
