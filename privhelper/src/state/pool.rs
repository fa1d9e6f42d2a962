//! A configured pool, served or not.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bulkhead_protocol::{Condition, ConditionKind, Error, ErrorKind, MountFlags, PoolName, QuotaMode};

use rustix::fs::OFlags;

use super::{Ballast, Deletions, Filesystem, layout, lock, lock_in_time};
use crate::sys::{Errno, Result as SysResult, file};

const SHUT_DOWN: &str = "the pool's filesystem has shut down after an error, and nothing in it can be read or written; see dmesg, and docs/operate.md for the way out";
const READ_ONLY: &str = "the pool's filesystem has become read-only, perhaps after an error; see dmesg, and docs/operate.md for the way out";

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
    /// How many bytes are never promised.
    pub reserve: u64,
}

/// A configured pool.
#[derive(Debug)]
pub struct Pool {
    /// As configured.
    pub config: PoolConfig,
    /// What is needed to serve it, or why it is not served.
    pub state: Result<Served, String>,
}

/// A pool that is served.
#[derive(Debug)]
pub struct Served {
    /// As configured.
    pub config: PoolConfig,
    /// Its directory, open for reading (only such a descriptor can be synced).
    pub directory: OwnedFd,
    /// Its filesystem.
    pub filesystem: Arc<Filesystem>,
    /// The flags that every mount of its volumes inherits from the pool's own mount.
    pub inherited: MountFlags,
    /// Whether its filesystem has a journal.
    pub journal: bool,
    /// Its deleted volumes, until nothing is left of them.
    pub deletions: Deletions,
    /// Space reserved for deletions when it is full.
    pub ballast: Ballast,
    /// Whether a power cut may lose names of its entries, because the last sync failed.
    pub unsynced: Mutex<bool>,
    /// Problems that do not keep it from being served.
    pub warnings: Vec<String>,
    /// The marker, locked: no other helper can serve the pool at the same time.
    pub _marker: OwnedFd,
}

impl Pool {
    /// The pool, if it is served.
    pub fn served(&self) -> Result<&Served, Error> {
        self.state.as_ref().map_err(|condition| {
            Error::new(ErrorKind::PoolBroken, format!("pool {} is not served: {condition}", self.config.name))
        })
    }
}

impl Served {
    /// Renames an entry for deletion, and returns its new name.
    pub fn put_aside(&self, name: &str) -> SysResult<String> {
        let aside = layout::deleted_name(self.deletions.new_number(), name);
        let rename = || file::rename_new(&self.directory, name, &self.directory, &aside);
        match rename() {
            Err(Errno::NOSPC) => self.ballast.give().and_then(|()| rename())?,
            result => result?,
        }
        Ok(aside)
    }

    /// Ensures that changes made to a file survive a power cut if any later change does, by whatever process. A journal
    /// preserves this order by itself: XFS and ext4 commit changes to inodes, names, extended attributes and quotas in
    /// the order in which they were made, and syncing any of them commits all that came before. Blocks that were
    /// allocated but not written read as zeros until the change that says otherwise is committed as well.
    pub fn keep_order(&self, file: impl AsFd) -> SysResult<()> {
        if self.journal { Ok(()) } else { file::sync(file) }
    }

    /// Syncs the names of its entries to disk.
    pub fn sync(&self) -> SysResult<()> {
        let synced = file::sync(&self.directory);
        if synced.is_err() {
            *lock(&self.unsynced) = true;
        }
        synced
    }

    /// Syncs again if the last sync failed: a reply that changes nothing itself may rest on a change that was not
    /// synced.
    ///
    /// # Errors
    /// `BUSY` when another thread has been at it for two seconds, and may be forever.
    pub fn sync_again(&self) -> SysResult<()> {
        let mut unsynced = lock_in_time(&self.unsynced)?;
        if *unsynced {
            file::sync(&self.directory)?;
            *unsynced = false;
        }
        Ok(())
    }

    /// The state that an error has left its filesystem in. Neither statfs(2) nor what some filesystems remember reveals
    /// it, but XFS and ext4 refuse to open any file once they have shut down, and ext4 refuses to open one for writing
    /// once it is read-only (since Linux 6.14 that is not a flag of the mount).
    pub fn failure(&self) -> Option<Condition> {
        match file::open(&self.directory, layout::MARKER, OFlags::RDWR) {
            Err(Errno::IO) => Some(Condition::new(ConditionKind::ShutDown, SHUT_DOWN)),
            Err(Errno::ROFS) => Some(Condition::new(ConditionKind::ReadOnly, READ_ONLY)),
            _ => None,
        }
    }

    /// Whether the pool's sizes are enforced by quotas.
    pub fn has_quotas(&self) -> bool {
        self.config.quota == QuotaMode::Enforced
    }
}
