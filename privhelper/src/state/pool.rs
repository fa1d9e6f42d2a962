//! A configured pool, served or not.

use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use bulkhead_protocol::{Condition, Error, MountFlags, Pace, PoolName, QuotaMode};
use rustix::fs::OFlags;

use super::aside::DeletedNumbers;
use super::locks::Admitted;
use super::{Attached, Attributes, Device, PoolAt, broken, layout, lock, lock_in_time};
use crate::bookkeeping::{Filesystem, Reserve};
use crate::sys::{Errno, Error as SysError, Result as SysResult, file, mount};

/// How a pool is to be served.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Its name in requests.
    pub name: PoolName,
    /// Where it is.
    pub directory: PathBuf,
    /// Whether sizes are to be enforced.
    pub quota: QuotaMode,
    /// How much of the capacity may be promised, in thousandths.
    pub overcommit_permille: u64,
    /// What is never promised.
    pub reserve: Reserve,
    /// How many volumes with filesystems of their own there may be; 0 if it is not configured for them.
    pub filesystems: usize,
    /// The most extents that a volume may have when it is copied.
    pub extents: u64,
}

/// How many volumes with filesystems of their own a pool may have unless a number is given: each that is mounted takes
/// memory of the kernel, and threads.
pub const FILESYSTEMS: usize = 300;
/// How many extents a volume may have when it is copied unless a number is given: the kernel takes 20 to 30 microseconds for
/// each, during which nobody can write to the volume.
const EXTENTS: u64 = 200_000;

impl PoolConfig {
    /// One without options.
    pub fn new(name: PoolName, directory: PathBuf) -> Self {
        Self {
            name,
            directory,
            quota: QuotaMode::Enforced,
            overcommit_permille: 1000,
            reserve: Reserve::NONE,
            filesystems: 0,
            extents: EXTENTS,
        }
    }
}

/// A configured pool.
#[derive(Debug)]
pub struct Pool {
    /// As configured.
    pub config: PoolConfig,
    /// What is needed to serve it, or why it is not served.
    pub state: Result<Served, String>,
    /// Why it is not served although it could be: its volumes are not all known.
    pub trouble: OnceLock<String>,
}

/// A pool that is served.
#[derive(Debug)]
pub struct Served {
    /// Its directory, open for reading (only such a descriptor can be synced).
    pub directory: OwnedFd,
    /// Its filesystem.
    pub filesystem: Arc<Filesystem>,
    /// Where it is on its filesystem.
    pub place: Place,
    /// The flags that every mount of its volumes inherits from the pool's own mount.
    pub inherited: MountFlags,
    /// The numbers in the names of its deleted volumes.
    pub deleted_numbers: DeletedNumbers,
    /// What is recorded on its files.
    pub attributes: Attributes,
    /// The marker, locked: no other helper can serve the pool at the same time.
    marker: OwnedFd,
    /// Whether a power cut may lose names of its entries, because the last sync failed.
    unsynced: Mutex<bool>,
    syncs: AtomicU64,
    /// How many numbers of loop devices the marker says have been used.
    numbers: Mutex<u64>,
}

/// How many numbers of loop devices are recorded as used in advance.
const NUMBERS: u64 = 16;

/// Where a pool is on its filesystem.
#[derive(Debug)]
pub struct Place {
    /// The device of the filesystem, major and minor.
    pub device: (u32, u32),
    /// The pool's directory when it was opened.
    pub inner: PathBuf,
    /// Its path on the host, without symbolic links.
    pub outside: PathBuf,
    /// Whether that was on another filesystem when the host was last looked at.
    pub is_unmounted: AtomicBool,
    /// The jail's mount of it, on kernels that have unique ids of mounts.
    pub copy: Option<NonZeroU64>,
}

/// A loop device whose number is noted, beside what [`Attached`] says: a node of it may be handed out. Only
/// [`Served::lend`] makes one.
#[derive(Debug)]
pub struct Lent(Device);

impl Lent {
    /// The device.
    pub fn device(&self) -> Device {
        self.0
    }
}

impl Pool {
    /// The pool, if it is served.
    ///
    /// # Errors
    /// `PoolBroken` if not.
    pub fn served(&self) -> Result<&Served, Error> {
        let complaint = self.trouble.get().or(self.state.as_ref().err());
        match (&self.state, complaint) {
            (Ok(served), None) => Ok(served),
            (_, complaint) => {
                let why = complaint.map_or("it has no state", String::as_str);
                Err(broken(format!("pool {} is not served: {why}", self.config.name)))
            }
        }
    }

    /// Lets an operation begin that may have to wait for the pool's filesystem, and for this. One that is not served needs no such
    /// permission.
    ///
    /// # Errors
    /// `Busy` when too many are in progress there.
    pub fn admit(&self, pace: Pace) -> Result<Option<Admitted>, Error> {
        let served = self.state.as_ref().ok();
        served.map(|served| served.filesystem.in_progress.admit(pace, &self.config.name)).transpose()
    }

    /// The device of its filesystem.
    pub fn filesystem(&self) -> (u32, u32) {
        self.state.as_ref().map(|served| served.place.device).unwrap_or_default()
    }

    /// Returns whether its sizes are enforced by quotas.
    pub fn has_quotas(&self) -> bool {
        self.config.quota == QuotaMode::Enforced
    }

    /// Returns what each inode that is promised to one of its volumes takes. Where nothing limits them, none are
    /// promised.
    pub fn inode_size(&self) -> u64 {
        let served = self.state.as_ref().ok().filter(|_| self.has_quotas());
        served.map_or(0, |served| served.filesystem.inode_size())
    }
}

impl Served {
    /// A pool with these parts.
    pub fn new(
        (directory, marker): (OwnedFd, OwnedFd),
        (filesystem, attributes): (Arc<Filesystem>, Attributes),
        place: Place,
        inherited: MountFlags,
    ) -> Self {
        let (deleted_numbers, unsynced) = (DeletedNumbers::default(), Mutex::default());
        let (syncs, numbers) = (AtomicU64::default(), Mutex::default());
        Self { directory, filesystem, place, inherited, deleted_numbers, attributes, marker, unsynced, syncs, numbers }
    }

    /// Returns how many numbers of loop devices earlier helpers may have used for volumes of this pool, if one has
    /// served it. At start only.
    pub fn recorded_numbers(&self) -> SysResult<Option<u64>> {
        layout::recorded_numbers(&self.attributes)
    }

    /// Records that so many numbers of loop devices have been used, that of this device among them: the next helper
    /// continues after them. Only then is the device of any use.
    ///
    /// # Errors
    /// As [`Self::record_numbers`].
    pub fn lend(&self, attached: &Attached, used: u64) -> SysResult<Lent> {
        self.record_numbers(used)?;
        Ok(Lent(attached.device()))
    }

    /// Records that so many numbers of loop devices have been used.
    ///
    /// # Errors
    /// `BUSY` when another thread has been at it for two seconds.
    pub fn record_numbers(&self, used: u64) -> SysResult<()> {
        let mut recorded = lock_in_time(&self.numbers)?;
        if used > *recorded {
            let next = used.saturating_add(NUMBERS);
            layout::record_numbers(&self.attributes, next)?;
            *recorded = next;
        }
        Ok(())
    }

    /// Makes changes to a file, and all that were made before, survive a power cut. When the disk has died, fsync(2) of
    /// a directory returns success on XFS, and on ext4 until it has noticed: only a change after it tells the truth.
    pub fn sync(&self, file: impl AsFd) -> SysResult<()> {
        file::sync(file)?;
        layout::try_journal(&self.attributes, self.syncs.fetch_add(1, Relaxed))
    }

    /// Makes the names of the pool's entries survive a power cut, as [`Self::sync`] does for a file.
    pub fn sync_names(&self) -> SysResult<()> {
        self.noting_failure(self.sync(&self.directory))
    }

    /// Has names synced again before a reply rests on them, if this sync of one failed.
    pub fn noting_failure(&self, synced: SysResult<()>) -> SysResult<()> {
        if synced.is_err() {
            *lock(&self.unsynced) = true;
        }
        synced
    }

    /// Makes everything that was ever changed survive a power cut, whoever changed it: syncing a file or directory does
    /// nothing for what others have changed elsewhere, unless it has changed after that itself.
    pub fn sync_all(&self) -> SysResult<()> {
        // This is a later change to the same journal.
        layout::try_journal(&self.attributes, self.syncs.fetch_add(1, Relaxed))?;
        self.sync(&self.marker)
    }

    /// Syncs its names again if the last sync failed: a reply that changes nothing itself may rest on a change that was
    /// not synced.
    ///
    /// # Errors
    /// `BUSY` when another thread has been at it for two seconds, and may be forever.
    pub fn sync_names_again(&self) -> SysResult<()> {
        let mut unsynced = lock_in_time(&self.unsynced)?;
        if *unsynced {
            self.sync_all()?;
            *unsynced = false;
        }
        Ok(())
    }

    /// The state that an error has left its filesystem in. Neither statfs(2) nor what some filesystems remember reveals
    /// it, but XFS and ext4 refuse to open any file once they have shut down, and ext4 refuses to open one for writing
    /// once it is read-only (since Linux 6.14 that is not a flag of the mount).
    pub fn failure(&self) -> Option<Condition> {
        match file::open(&self.directory, layout::MARKER, OFlags::RDWR) {
            Err(SysError { errno: Errno::IO, .. }) => Some(Condition::ShutDown),
            Err(SysError { errno: Errno::ROFS, .. }) => Some(Condition::ReadOnly),
            _ => None,
        }
    }
}

impl Place {
    /// Returns the device of its filesystem, and its directory there under the names that lead to it now.
    pub fn now(&self) -> PoolAt {
        // KERNEL(6.8): until then, a pool that is renamed while it is served is not found under its new name.
        let now = self.copy.and_then(|copy| mount::root_of(copy).ok());
        (self.device, now.unwrap_or_else(|| self.inner.clone()))
    }
}
