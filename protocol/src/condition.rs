//! Conditions: what is wrong with a pool or a volume, in facts. The frontend turns them into words.

use serde::{Deserialize, Serialize};

use crate::{PublishName, UpTo};

/// The most conditions that a pool can have: each kind once.
pub const MAX_CONDITIONS: usize = 25;

/// The conditions of a pool.
pub type Conditions = UpTo<Condition, MAX_CONDITIONS>;

/// A condition of a pool or of a volume. Sizes are in bytes. A released variant never changes; a client whose version
/// is older than a variant gets `Other` in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// The helper is not confined: system calls that are not allowed are only logged.
    Unconfined,
    /// The pool's filesystem has shut down after an error.
    ShutDown,
    /// The pool's filesystem has become read-only.
    ReadOnly,
    /// The pool's filesystem does not answer.
    NotAnswering {
        /// For how long.
        seconds: u64,
    },
    /// What is mounted in a publish directory no longer reaches the host.
    Apart {
        /// The directory, or the first of several.
        directory: PublishName,
        /// Why.
        cause: Separation,
    },
    /// The pool has volumes that are not served; the helper's log says why.
    NotServed {
        /// How many.
        volumes: u32,
    },
    /// More is promised to volumes than there is, multiplied by the configured overcommit.
    Overpromised {
        /// What is promised.
        promised: u64,
        /// What may be promised.
        limit: u64,
    },
    /// Quotas are not enforced any more: they were switched off.
    QuotasOff,
    /// The filesystem limits projects that have no limit of their own (`xfs_quota limit -d`).
    DefaultLimits,
    /// Something is charged to projects that belong to no volume of this helper.
    QuotaEvasion {
        /// How many bytes.
        bytes: u64,
        /// How many inodes.
        inodes: u64,
        /// The first of the projects.
        first: u32,
        /// Whether there are more than were looked at.
        more: bool,
    },
    /// The files in which the filesystem keeps quotas have grown beyond a hundredth of it.
    QuotaFiles {
        /// Their size.
        bytes: u64,
    },
    /// The filesystem has no inode left for a new volume.
    NoInodes,
    /// Deleted volumes keep space, because something is still charged to their projects.
    NotReleased {
        /// How many.
        volumes: u32,
        /// The first project.
        project: u32,
    },
    /// There are as many volumes as are allowed.
    VolumeLimit {
        /// How many there are.
        volumes: u32,
        /// How many may be.
        limit: u32,
    },
    /// The pool is mounted `noexec`: no program can be run from its volumes.
    NoExec,
    /// Sizes are not enforced: the pool is configured that way.
    NotEnforced,
    /// Projects cannot be looked at.
    NotInspected {
        /// The system's error number.
        errno: i32,
    },
    /// A block volume's image has another length than is recorded.
    ImageSize {
        /// Its length.
        found: u64,
        /// The recorded one.
        recorded: u64,
    },
    /// More is used of a volume than its size: its limit does not bind who writes to it.
    Oversized {
        /// What is used.
        used: u64,
    },
    /// The filesystem has other limits for a volume than it should have.
    OtherLimits {
        /// How many bytes the volume may use; 0 for any number.
        bytes: u64,
        /// How many inodes, its own directory among them; 0 for any number.
        inodes: u64,
        /// Whether there are soft limits as well, which bind once their time is over.
        soft: bool,
    },
    /// Something that a client of this version does not know.
    Other,
    /// The filesystem in a volume's image has shut down after an error. Since version 4.
    FilesystemShutDown,
    /// The filesystem in a volume's image could not be mounted when that was last tried. Since version 4.
    NotMountable {
        /// The system's error number.
        errno: i32,
    },
    /// A volume's image is read and written through the page cache, so its content is cached twice: the pool's filesystem
    /// does not support direct I/O with the block size of the volume's device. Since version 4.
    NotDirect,
    /// What is served is not mounted at the pool's directory on the host any more. Since version 4.
    Unmounted,
}

impl Condition {
    /// As a client of this version can know it.
    pub fn at_version(self, version: u16) -> Self {
        match self {
            Self::FilesystemShutDown | Self::NotMountable { .. } | Self::NotDirect | Self::Unmounted if version < 4 => {
                Self::Other
            }
            known => known,
        }
    }
}

/// Why a publish directory is apart from the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Separation {
    /// The mount that it was on is gone.
    Unmounted,
    /// Its mount is not shared any more.
    NotShared,
    /// Another mount hides it.
    Covered,
    /// It was renamed, or replaced by another directory.
    Moved,
}
