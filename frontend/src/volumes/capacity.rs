//! The space that is left for new volumes.

use bulkhead_protocol::{ErrorKind, PoolName, PoolStatus};

use super::{Fault, Parameters, PoolCondition, Volumes};

/// Space for new volumes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// For all new volumes together.
    pub available: u64,
    /// For a single new volume.
    pub largest_volume: u64,
    /// The size of the pool's filesystem.
    pub total: u64,
}

impl Volumes {
    /// The space for volumes with these parameters.
    ///
    /// # Errors
    /// When they do not select a pool that is served, in which case no such volume could be created either.
    pub async fn capacity(&self, parameters: &Parameters) -> Result<Capacity, Fault> {
        match self.pool(parameters).await {
            Ok(pool) => self.room(&pool).await,
            Err(fault) => without_broken_pools(fault),
        }
    }

    /// The pool that these parameters select.
    ///
    /// # Errors
    /// When they select none that is served.
    pub async fn pool(&self, parameters: &Parameters) -> Result<PoolName, Fault> {
        let welcome = self.helper.welcome().await?;
        parameters.pool(welcome.pools.as_slice()).cloned()
    }

    /// The space for volumes in `pool`.
    ///
    /// # Errors
    /// When the helper cannot say.
    pub async fn room(&self, pool: &PoolName) -> Result<Capacity, Fault> {
        match self.pool_status(pool).await {
            Ok(status) => {
                Ok(Capacity { available: status.available, largest_volume: status.largest_volume, total: status.total })
            }
            Err(fault) => without_broken_pools(fault),
        }
    }

    /// The space and the condition of `pool`. A condition that has changed is reported.
    ///
    /// # Errors
    /// When the helper cannot say.
    pub(super) async fn pool_status(&self, pool: &PoolName) -> Result<PoolStatus, Fault> {
        let answer = self.helper.pool_status(pool).await.map_err(Fault::from);
        match &answer {
            Ok(status) => self.conditions.note(pool, status.conditions.as_slice()),
            Err(fault) => {
                if let Some(condition) = PoolCondition::of_fault(fault) {
                    self.conditions.note_failed(pool, condition);
                }
            }
        }
        answer
    }
}

/// A pool that is not served has no space.
fn without_broken_pools(fault: Fault) -> Result<Capacity, Fault> {
    let none = fault.is(ErrorKind::PoolBroken) || fault.is(ErrorKind::Unsupported);
    if none { Ok(Capacity::default()) } else { Err(fault) }
}
