//! What the helper knows while it serves. The pools and the kernel are authoritative; this is rebuilt from them at
//! start.

mod ballast;
mod cached;
mod deletions;
mod filesystem;
pub mod layout;
mod ledger;
mod limits;
mod locks;
mod loops;
mod pins;
mod pool;
mod sockets;
mod targets;
mod vol_data;
mod volumes;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bulkhead_protocol::{DriverName, Error, ErrorKind, PoolName, TargetPath, VolumeId};
use rustix::fs::OFlags;

pub use ballast::Ballast;
pub use deletions::{Deletion, Deletions};
pub use filesystem::{Filesystem, KUBELET_PROJECTS, Strays, limits};
pub use layout::{Kind, Record};
pub use ledger::{Measured, Share};
pub use limits::Limits;
pub use locks::{InProgress, Locks, MOST_ON_A_FILESYSTEM};
pub use loops::{Device, Loops};
pub use pins::{Pin, Pins};
pub use pool::{Pool, PoolConfig, Served};
pub use sockets::{Place, Sockets};
pub use targets::{Obstacle, PublishDirectory, Shape, TRIAL};
pub use volumes::{Published, Volume, Volumes};

use crate::sys::{Errno, Result as SysResult, file};

/// Everything the operations work on.
#[derive(Debug)]
pub struct State {
    /// CSI plugin name.
    pub driver: DriverName,
    /// The configured pools, served or broken.
    pub pools: Vec<Pool>,
    /// Where volumes are published.
    pub publish_directories: Vec<PublishDirectory>,
    /// How many volumes and targets there may be.
    pub limits: Limits,
    /// The volumes and their targets.
    pub volumes: Volumes,
    /// Mounts of volumes that are not targets.
    pub pins: Pins,
    /// Volumes that exist but cannot be served, and why.
    pub unserved: BTreeMap<VolumeId, String>,
    /// Loop devices.
    pub loops: Loops,
    /// The operations in progress.
    pub locks: Locks,
    /// The frontend's sockets.
    pub sockets: Sockets,
}

impl State {
    /// The served pool with that name, and its index.
    pub fn pool(&self, name: &PoolName) -> Result<(usize, &Served), Error> {
        let found = self.pools.iter().enumerate().find(|(_, pool)| pool.config.name == *name);
        let (index, pool) =
            found.ok_or_else(|| Error::new(ErrorKind::Invalid, format!("pool {name} does not exist")))?;
        Ok((index, pool.served()?))
    }

    /// The served pool at the index noted for a volume.
    pub fn pool_at(&self, index: usize) -> Result<&Served, Error> {
        let pool =
            self.pools.get(index).ok_or_else(|| Error::new(ErrorKind::PoolBroken, "the volume's pool is gone"))?;
        pool.served()
    }

    /// What a pool's filesystem has to share out.
    pub fn measure(&self, pool: &Served) -> Result<Measured, Error> {
        let measured = pool.filesystem.measure(|| self.occupied_by_images(&pool.filesystem));
        measured.map_err(|errno| failed("determine the free space of pool", &pool.config.name, errno))
    }

    /// What is occupied by images that no project accounts for. This is not what was allocated for them: their users
    /// discard blocks.
    fn occupied_by_images(&self, filesystem: &Arc<Filesystem>) -> SysResult<u64> {
        let mut sum = 0_u64;
        for (index, pool) in self.pools.iter().enumerate() {
            let Some(pool) = pool.state.as_ref().ok().filter(|pool| Arc::ptr_eq(&pool.filesystem, filesystem)) else {
                continue;
            };
            for id in self.volumes.uncounted_images(index) {
                let image = layout::open_content(&pool.directory, &id, Kind::Block, OFlags::PATH);
                match image.and_then(file::status) {
                    Ok(image) => sum = sum.saturating_add(image.allocated),
                    // It was deleted meanwhile.
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        Ok(sum)
    }

    /// Why no volume with that id is known. `NotFound` only if it certainly does not exist: it may exist without being
    /// served.
    pub fn unknown(&self, id: &VolumeId) -> Error {
        let broken = self.pools.iter().find(|pool| pool.state.is_err());
        match (self.unserved.get(id), broken) {
            (Some(why), _) => Error::new(ErrorKind::PoolBroken, format!("volume {id} is not served: {why}")),
            (None, Some(pool)) => {
                let message = format!("volume {id} may be in pool {}, which is not served", pool.config.name);
                Error::new(ErrorKind::PoolBroken, message)
            }
            (None, None) => Error::new(ErrorKind::NotFound, format!("volume {id} does not exist")),
        }
    }

    /// The publish directory of a target.
    pub fn publish_directory(&self, target: &TargetPath) -> Result<&PublishDirectory, Error> {
        self.publish_directories.iter().find(|directory| directory.name == target.directory).ok_or_else(|| {
            Error::new(ErrorKind::Refused, format!("publish directory {} does not exist", target.directory))
        })
    }
}

/// An error for a failed system call: the operation, its object, the cause.
pub fn failed(operation: &str, object: impl std::fmt::Display, errno: Errno) -> Error {
    let kind = match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrorKind::NoSpace,
        Errno::BUSY => ErrorKind::Busy,
        Errno::OPNOTSUPP | Errno::NOSYS => ErrorKind::Unsupported,
        other => ErrorKind::Io(other.raw_os_error()),
    };
    Error::new(kind, format!("{operation} {object}: {errno}"))
}

/// Locks a mutex whose holder may never return from a filesystem that hangs.
///
/// # Errors
/// `BUSY` when it is held for two seconds.
fn lock_in_time<T>(mutex: &Mutex<T>) -> SysResult<MutexGuard<'_, T>> {
    for _ in 0..200 {
        if let Ok(guard) = mutex.try_lock() {
            return Ok(guard);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(Errno::BUSY)
}

/// Locks a mutex. A thread that panics while it holds one ends the process, so there is nothing to recover from.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
