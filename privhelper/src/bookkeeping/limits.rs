//! How much the helper takes on. It keeps all volumes and targets in memory, which a frontend must not be able to fill.
//! Whatever is found at start is served, however much it is.

use bulkhead_protocol::{Bytes, Condition, Error, VolumeId};

use super::template;
use crate::state::{Held, Kind, Pool, State, invalid, no_space, unsupported};

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

/// Returns whether there are as many volumes as are allowed. Deleted ones count until nothing is left of them, and
/// those that are not served count as well.
pub fn too_many_volumes(state: &State) -> Option<Condition> {
    let known = state.volumes.number().saturating_add(state.unserved.len());
    let limit = state.limits.volumes;
    (known >= limit).then(|| Condition::VolumeLimit { volumes: count(known), limit: count(limit) })
}

/// Checks that one more volume may be created.
///
/// # Errors
/// `NoSpace` if not.
pub fn check_number_of_volumes(state: &State) -> Result<(), Error> {
    let Some(Condition::VolumeLimit { volumes, limit }) = too_many_volumes(state) else { return Ok(()) };
    Err(no_space(format!(
        "there are {volumes} volumes, including deleted ones that are not yet empty; the limit is --max-volumes {limit}"
    )))
}

/// Checks that a volume of a size with a filesystem of its own may be created in a pool.
///
/// # Errors
/// `Unsupported`, `Invalid` or `NoSpace` if not.
pub fn check_filesystem(state: &State, pool: &Pool, id: &VolumeId, size: Bytes) -> Result<(), Error> {
    let (name, limit) = (&pool.config.name, pool.config.filesystems);
    if limit == 0 {
        return Err(unsupported(format!(
            "create volume {id}: pool {name} is not configured for filesystems in images (--pool {name}=DIR,filesystems)"
        )));
    }
    if template::of(size.get()).is_none() || size.get() > template::LARGEST {
        return Err(invalid(format!(
            "create volume {id}: a filesystem in an image takes at least 300 MiB, at most 64 TiB"
        )));
    }
    let number = state.volumes.of_kind(Kind::Filesystem, pool).len();
    if number >= limit {
        return Err(no_space(format!(
            "pool {name} has {number} volumes with filesystems of their own; the limit is filesystems={limit}"
        )));
    }
    Ok(())
}

/// Checks that a volume may be published at one more target.
///
/// # Errors
/// `NoSpace` if not.
pub fn check_number_of_targets(held: &Held<'_>) -> Result<(), Error> {
    let own = held.known().map_or(0, |volume| volume.published.len());
    let (all, most) = (held.state.volumes.number_of_targets(), held.state.limits.targets);
    if own >= TARGETS_OF_A_VOLUME {
        return Err(no_space(format!(
            "the volume is published at {own} targets; the limit for one volume is {TARGETS_OF_A_VOLUME}"
        )));
    }
    if all >= most {
        return Err(no_space(format!("volumes are published at {all} targets; the limit is --max-targets {most}")));
    }
    Ok(())
}

/// A number as it is reported.
pub fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
