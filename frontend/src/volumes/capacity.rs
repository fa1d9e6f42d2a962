//! How much room there is.

use bulkhead_protocol::{ErrorKind, PoolName};

use super::{Fault, Parameters, Volumes};

/// Room for new volumes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// For all of them together.
    pub available: u64,
    /// For the largest.
    pub largest_volume: u64,
    /// The size of the filesystem that they are in.
    pub total: u64,
}

impl Volumes {
    /// The room for volumes with these parameters.
    ///
    /// # Errors
    /// When they name no pool that is served: then no such volume could be made either.
    pub async fn capacity(&self, parameters: &Parameters) -> Result<Capacity, Fault> {
        let welcome = self.helper.welcome().await?;
        match parameters.pool(welcome.pools.as_slice()) {
            Ok(pool) => self.room(pool).await,
            Err(fault) => without_broken_pools(fault),
        }
    }

    async fn room(&self, pool: &PoolName) -> Result<Capacity, Fault> {
        match self.helper.pool_status(pool).await.map_err(Fault::from) {
            Ok(status) => {
                Ok(Capacity { available: status.available, largest_volume: status.largest_volume, total: status.total })
            }
            Err(fault) => without_broken_pools(fault),
        }
    }
}

/// A pool that is not served has room for nothing.
fn without_broken_pools(fault: Fault) -> Result<Capacity, Fault> {
    if fault.is(ErrorKind::PoolBroken) { Ok(Capacity::default()) } else { Err(fault) }
}
