//! How much the helper takes on. It keeps all volumes and targets in memory, which a frontend must not be able to fill.
//! Whatever is found at start is served, however much it is.

use bulkhead_protocol::{Error, ErrorKind};

use super::{State, Volume};

/// The most that is taken on. Concurrent requests may together exceed it by a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Volumes in all pools.
    pub volumes: usize,
    /// Targets at which volumes are published.
    pub targets: usize,
}

/// The most targets that one volume may have. A kubelet runs fewer pods than that.
const TARGETS_OF_A_VOLUME: usize = 1000;

impl Default for Limits {
    /// More than any node needs.
    fn default() -> Self {
        Self { volumes: 20_000, targets: 40_000 }
    }
}

impl State {
    /// Whether one more volume may be created. Deleted volumes count until nothing is left of them.
    ///
    /// # Errors
    /// `NoSpace` if not.
    pub fn check_number_of_volumes(&self) -> Result<(), Error> {
        let known = self.volumes.number().saturating_add(self.unserved.len());
        let deleted = self.pools.iter().flat_map(|pool| pool.served().ok()).map(|pool| pool.deletions.count());
        let known = deleted.fold(known, usize::saturating_add);
        if known < self.limits.volumes {
            return Ok(());
        }
        let message = format!(
            "there are {known} volumes, including deleted ones that are not yet empty; the limit is --max-volumes {}",
            self.limits.volumes
        );
        Err(Error::new(ErrorKind::NoSpace, message))
    }

    /// Whether a volume may be published at one more target.
    ///
    /// # Errors
    /// `NoSpace` if not.
    pub fn check_number_of_targets(&self, volume: &Volume) -> Result<(), Error> {
        let (own, all) = (volume.targets.len(), self.volumes.number_of_targets());
        let message = if own >= TARGETS_OF_A_VOLUME {
            format!("the volume is published at {own} targets; the limit for one volume is {TARGETS_OF_A_VOLUME}")
        } else if all >= self.limits.targets {
            format!("volumes are published at {all} targets; the limit is --max-targets {}", self.limits.targets)
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::NoSpace, message))
    }
}
