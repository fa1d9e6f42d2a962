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
    /// The room for volumes with these parameters. Where the choice of the pool is open, that of the roomiest.
    ///
    /// # Errors
    /// When the parameters name a pool that is not served.
    pub async fn capacity(&self, parameters: &Parameters) -> Result<Capacity, Fault> {
        let welcome = self.helper.welcome().await?;
        let pools = welcome.pools.as_slice();
        match parameters.pool(pools) {
            Ok(pool) => self.room(pool).await,
            Err(_) if parameters.names_no_pool() => {
                let mut most = Capacity::default();
                for pool in pools {
                    let room = self.room(&pool.name).await?;
                    most.total = most.total.max(room.total);
                    most.available = most.available.max(room.available);
                    most.largest_volume = most.largest_volume.max(room.largest_volume);
                }
                Ok(most)
            }
            Err(fault) => Err(fault),
        }
    }

    async fn room(&self, pool: &PoolName) -> Result<Capacity, Fault> {
        match self.helper.pool_status(pool).await.map_err(Fault::from) {
            Ok(status) => {
                Ok(Capacity { available: status.available, largest_volume: status.largest_volume, total: status.total })
            }
            // A pool that is not served has room for nothing.
            Err(fault) if fault.is(ErrorKind::PoolBroken) => Ok(Capacity::default()),
            Err(fault) => Err(fault),
        }
    }
}
