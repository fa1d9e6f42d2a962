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
    /// Its deleted volumes of which something is left.
    pub deletions: Deletions,
    /// Room for deleting when it is full.
    pub ballast: Ballast,
    /// Whether the names of its entries may not survive a power cut: the last sync failed.
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
    /// Gives an entry a name under which it is deleted, and returns that name.
    pub fn put_aside(&self, name: &str) -> SysResult<String> {
        let aside = layout::deleted_name(self.deletions.new_number(), name);
        let rename = || file::rename_new(&self.directory, name, &self.directory, &aside);
        match rename() {
            Err(Errno::NOSPC) => self.ballast.give().and_then(|()| rename())?,
            result => result?,
        }
        Ok(aside)
    }

    /// Makes sure that what was done to a file survives a power cut if anything does that is done later, in whatever
    /// process. A journal keeps that order by itself: XFS and ext4 commit changes of inodes, names, extended attributes
    /// and quotas in the order in which they were made, and the sync of any of them all that came before. Blocks that
    /// were allocated and not written read as zeros until the change that says otherwise is committed as well.
    pub fn keep_order(&self, file: impl AsFd) -> SysResult<()> {
        if self.journal { Ok(()) } else { file::sync(file) }
    }

    /// Writes the names of its entries through to the disk.
    pub fn sync(&self) -> SysResult<()> {
        let synced = file::sync(&self.directory);
        if synced.is_err() {
            *lock(&self.unsynced) = true;
        }
        synced
    }

    /// Does so again if it failed: what is answered without a change of its own may rest on one that was not synced.
    ///
    /// # Errors
    /// `BUSY` when another thread has been at it for two seconds, and may be for ever.
    pub fn sync_again(&self) -> SysResult<()> {
        let mut unsynced = lock_in_time(&self.unsynced)?;
        if *unsynced {
            file::sync(&self.directory)?;
            *unsynced = false;
        }
        Ok(())
    }

    /// What its filesystem has become after an error. Neither statfs(2) nor what some filesystems remember says so, but XFS
    /// and ext4 open no file once they have shut down, and ext4 none for writing once it is read-only (from Linux 6.14 on
    /// that is no flag of the mount).
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
