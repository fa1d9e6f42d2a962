//! What the helper knows while it serves. The pools and the kernel are the truth; this is rebuilt from them at start.

mod claims;
mod doomed;
mod filesystem;
mod loops;
mod pool;
mod publish;
mod record;
mod sockets;
mod volumes;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bulkhead_protocol::{DriverName, Error, ErrorKind, PoolName, TargetPath, VolumeId};

pub use claims::Claims;
pub use doomed::{Doomed, Graveyard, Settlement};
pub use filesystem::{Filesystem, KUBELET_PROJECTS, Share};
pub use loops::{Device, Loops};
pub use pool::{DATA, DOOMED, IMAGE, MAKING, MARKER, Pool, PoolConfig, Served, SpecError, read_spec, write_spec};
pub use publish::{PublishDirectory, Purpose, Shape};
pub use sockets::{Place, Sockets};
pub use volumes::{Published, Volume, Volumes};

use crate::sys::Errno;

/// Everything the operations work on.
#[derive(Debug)]
pub struct State {
    /// CSI plugin name.
    pub driver: DriverName,
    /// The configured pools, served or broken.
    pub pools: Vec<Pool>,
    /// Where volumes are published.
    pub publish: Vec<PublishDirectory>,
    /// The volumes and their targets.
    pub volumes: Volumes,
    /// Volumes that are there and cannot be served, and why.
    pub unserved: BTreeMap<VolumeId, String>,
    /// Loop devices.
    pub loops: Loops,
    /// What operations are under way.
    pub claims: Claims,
    /// The frontend's sockets.
    pub sockets: Sockets,
    /// Deleted volumes that are not empty yet.
    pub graveyard: Graveyard,
}

impl State {
    /// The pool of that name, and its index.
    pub fn pool(&self, name: &PoolName) -> Result<(usize, &Served), Error> {
        let found = self.pools.iter().enumerate().find(|(_, pool)| pool.config.name == *name);
        let (index, pool) = found.ok_or_else(|| Error::new(ErrorKind::Invalid, format!("there is no pool {name}")))?;
        Ok((index, pool.served()?))
    }

    /// The served pool at that index, which a volume's entry holds.
    pub fn pool_at(&self, index: usize) -> Result<&Served, Error> {
        let pool =
            self.pools.get(index).ok_or_else(|| Error::new(ErrorKind::PoolBroken, "the volume's pool is gone"))?;
        pool.served()
    }

    /// Why there is no volume of that id. `NotFound` only if that is certain: a volume may be there and not be served.
    pub fn unknown(&self, id: &VolumeId) -> Error {
        let broken = self.pools.iter().find(|pool| pool.state.is_err());
        match (self.unserved.get(id), broken) {
            (Some(why), _) => Error::new(ErrorKind::PoolBroken, format!("volume {id} is not served: {why}")),
            (None, Some(pool)) => {
                let message = format!("volume {id} may be in pool {}, which is not served", pool.config.name);
                Error::new(ErrorKind::PoolBroken, message)
            }
            (None, None) => Error::new(ErrorKind::NotFound, format!("there is no volume {id}")),
        }
    }

    /// The publish directory of a target.
    pub fn publish_directory(&self, target: &TargetPath) -> Result<&PublishDirectory, Error> {
        self.publish.iter().find(|directory| directory.name == target.directory).ok_or_else(|| {
            Error::new(ErrorKind::Refused, format!("there is no publish directory {}", target.directory))
        })
    }
}

/// An error for a failed system call: what was done, to what.
pub fn failed(operation: &str, object: impl std::fmt::Display, errno: Errno) -> Error {
    let kind = match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrorKind::NoSpace,
        Errno::BUSY => ErrorKind::Busy,
        Errno::OPNOTSUPP | Errno::NOSYS => ErrorKind::Unsupported,
        other => ErrorKind::Io(other.raw_os_error()),
    };
    Error::new(kind, format!("{operation} {object}: {errno}"))
}

/// Locks a mutex. A thread that panicked while it held it has ended the process, so there is nothing to recover.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
