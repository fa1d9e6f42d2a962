//! What the helper knows while it serves. The pools and the kernel are authoritative; this is rebuilt from them at
//! start.
//!
//! What must hold is a type wherever it can be: an operation has no volume unless it holds it, a row says that its volume
//! is deleted only with what put its content aside, and the emptier's connection needs the table of all that was found.
//! These rules of the whole helper hold by a comment only, so a change has to be read with them in mind:
//!
//! 1. A path is opened from the root of the file system at start only (`open_at_start`), and nothing that was opened
//!    outside the jail, or in what the placer sees of it, is kept, except the host's mount tables and what tells of their
//!    changes, `/dev/loop-control` and the lock beside the socket.
//!    Not a type because the compiler refuses calls, but cannot demand that a descriptor is closed by then.
//! 2. A lock of a table is held for memory only, never during a system call that may wait for a disk.
//!    Not a type because what a function may wait for is not part of its type, so no guard can forbid a call.
//! 3. What was changed is synced before its request is answered, and a change that a reply rests on is synced again.
//!    Not a type because a value can say that something was synced, but not that it is what this reply rests on.
//! 4. What may hang is done by a child at start, and admitted by its filesystem afterwards.
//!    Not a type because it is the filesystem, and not the call, that decides whether a call may hang.

mod aside;
mod attributes;
mod host;
mod kinds;
pub mod layout;
mod locks;
mod loops;
mod mounts;
mod operation;
mod placer;
mod pool;
mod refusals;
mod sockets;
mod targets;
mod volumes;
mod ways;
mod works;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bulkhead_protocol::{DriverName, Error, ErrorKind, PoolName, TargetPath, VolumeId};

pub use aside::Aside;
pub use attributes::Attributes;
pub use host::Host;
pub use layout::Record;
pub use locks::{InProgress, Locks, MOST_ON_A_FILESYSTEM};
pub use loops::{Attached, Device, KEEPERS, Loops, label};
pub use mounts::{PoolAt, node, volume_in};
pub use operation::{Held, HeldTarget, Joined, Seen};
pub use placer::Placer;
pub use pool::{FILESYSTEMS, Lent, Place, Pool, PoolConfig, Served};
pub use sockets::{SocketPlace, Sockets};
pub use targets::{PublishDirectory, may_be_looked_at};
pub use volumes::{Deleted, FoundVolumes, Published, Volume, Volumes};
pub use ways::{Step, Way, apart};
pub use works::{Hold, Limit, PATIENCE};

pub use crate::errors::{broken, busy, exists, failed, in_use, invalid, no_space, refused, unsupported};
pub use crate::place::kind::Kind;

use crate::bookkeeping::{Deletions, Limits};
use crate::sys::{Errno, Error as SysError, Result as SysResult, with_patience};

/// Everything the operations work on.
#[derive(Debug)]
pub struct State {
    /// CSI plugin name.
    pub driver: DriverName,
    /// The configured pools, served or broken.
    pub pools: Vec<Arc<Pool>>,
    /// Where volumes are published.
    pub publish_directories: Vec<PublishDirectory>,
    /// How many volumes and targets there may be.
    pub limits: Limits,
    /// Whether system calls that are not allowed end the process.
    pub is_confined: bool,
    /// The volumes and their targets.
    pub volumes: Arc<Volumes>,
    /// The emptiers of the pools that are served.
    pub deletions: BTreeMap<PoolName, Deletions>,
    /// Volumes that exist but cannot be served: in which pool, and why.
    pub unserved: BTreeMap<VolumeId, (PoolName, String)>,
    /// The loop devices that were bound to images of unknown volumes at start, by the label of the hold, which only
    /// helpers can write.
    pub attached: BTreeMap<String, Vec<u32>>,
    /// The host's mounts.
    pub host: Host,
    /// What mounts, makes nodes and sets limits.
    pub placer: Arc<Placer>,
    /// Loop devices.
    pub loops: Loops,
    /// The operations in progress.
    pub locks: Locks,
    /// The frontend's sockets.
    pub sockets: Sockets,
}

impl State {
    /// The pool with that name.
    ///
    /// # Errors
    /// `Invalid` when there is none.
    pub fn pool(&self, name: &PoolName) -> Result<&Arc<Pool>, Error> {
        let found = self.pools.iter().find(|pool| pool.config.name == *name);
        found.ok_or_else(|| invalid(format!("pool {name} does not exist")))
    }

    /// Returns why no volume with that id is known. `NotFound` only if it certainly does not exist: it may exist
    /// without being served.
    pub fn unknown(&self, id: &VolumeId) -> Error {
        let unserved = self.pools.iter().find(|pool| pool.served().is_err());
        match (self.unserved.get(id), unserved) {
            (Some((_, why)), _) => broken(format!("volume {id} is not served: {why}")),
            (None, Some(pool)) => {
                broken(format!("volume {id} may be in pool {}, which is not served", pool.config.name))
            }
            (None, None) => Error::new(ErrorKind::NotFound, format!("volume {id} does not exist")),
        }
    }

    /// Tells the emptier of a pool that there is something to empty: see [`Deletions::wake`].
    pub fn wake_emptier(&self, pool: &Pool, in_place: bool) {
        if let Some(deletions) = self.deletions.get(&pool.config.name) {
            deletions.wake(in_place);
        }
    }

    /// Where the pools are that are served.
    pub fn pools_at(&self) -> Vec<PoolAt> {
        self.pools.iter().filter_map(|pool| Some(pool.state.as_ref().ok()?.place.now())).collect()
    }

    /// The publish directory of a target.
    ///
    /// # Errors
    /// `Refused` when there is none of that name.
    pub fn publish_directory(&self, target: &TargetPath) -> Result<&PublishDirectory, Error> {
        let found = self.publish_directories.iter().find(|directory| directory.name == target.directory);
        found.ok_or_else(|| refused(format!("publish directory {} does not exist", target.directory)))
    }
}

/// The error for a request that only the other kind of volume supports.
pub fn wrong_kind(id: &VolumeId, wanted: Kind) -> Error {
    Error::new(ErrorKind::WrongKind, format!("volume {id} is not a {wanted}"))
}

/// Locks a mutex whose holder may never return from a filesystem that hangs.
///
/// # Errors
/// `BUSY` when it is held for two seconds.
pub fn lock_in_time<T>(mutex: &Mutex<T>) -> SysResult<MutexGuard<'_, T>> {
    with_patience(Errno::BUSY, || mutex.try_lock().map_err(|_| SysError::of(Errno::BUSY)))
}

/// Locks a mutex. A thread that panics while it holds one ends the process, so there is nothing to recover from.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What tests of several modules need.
#[cfg(test)]
pub mod testing {
    use bulkhead_protocol::{BlockSize, Bytes, NameHash, QuotaMode, VolumeKind, VolumeSpec};

    use super::*;
    use crate::sys::file::FileId;
    use crate::sys::mountinfo::MountTable;

    /// A pool that is not served.
    pub fn pool(name: &str) -> Arc<Pool> {
        let config = PoolConfig {
            name: name.parse().expect("a name"),
            directory: "/pool".into(),
            quota: QuotaMode::None,
            overcommit_permille: 1000,
            reserve: crate::bookkeeping::Reserve::NONE,
            filesystems: 0,
            extents: 1000,
        };
        Arc::new(Pool { config, state: Err("a test".to_owned()), trouble: std::sync::OnceLock::new() })
    }

    /// A sparse block volume of 4 KiB in a pool.
    pub fn volume(pool: &Arc<Pool>) -> Volume {
        let kind = VolumeKind::Image { sparse: true, block_size: BlockSize::B512 };
        let size = Bytes::try_from(4096).expect("a size");
        let record = Record { spec: VolumeSpec { size, kind, name_hash: NameHash([0; 32]) }, unused: true };
        Volume::new(Arc::clone(pool), None, record, FileId { device: (0, 0), inode: 1 })
    }

    /// A table with volumes that have these ids.
    pub fn volumes(ids: &[&str]) -> Arc<Volumes> {
        let (mut found, pool) = (FoundVolumes::default(), pool("default"));
        assert!(ids.iter().all(|known| found.add(id(known), volume(&pool))), "each is known once");
        Arc::new(found.all_known())
    }

    /// A volume id.
    pub fn id(text: &str) -> VolumeId {
        text.parse().expect("a volume id")
    }

    /// A target in the publish directory called work.
    pub fn target(path: &str) -> TargetPath {
        TargetPath { directory: "work".parse().expect("a name"), path: path.parse().expect("a path") }
    }

    /// A placer that cannot be asked.
    pub fn placer() -> Arc<Placer> {
        Arc::new(Placer::new(Vec::new(), BTreeMap::new()))
    }

    /// A helper without pools or publish directories.
    pub fn state() -> State {
        let nothing = || rustix::fs::memfd_create("nothing", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        State {
            driver: "bulkhead.csi.local".parse().expect("a name"),
            pools: Vec::new(),
            publish_directories: Vec::new(),
            limits: Limits::default(),
            is_confined: true,
            volumes: volumes(&[]),
            deletions: BTreeMap::new(),
            unserved: BTreeMap::new(),
            attached: BTreeMap::new(),
            host: Host::new(
                "nodes".to_owned(),
                Vec::new(),
                [MountTable::of(""), MountTable::of("")],
                placer(),
                volumes(&[]),
            ),
            placer: placer(),
            loops: Loops::new(nothing(), placer(), 0, std::collections::BTreeSet::new()),
            locks: Locks::default(),
            sockets: Sockets::new(BTreeMap::new()),
        }
    }
}
