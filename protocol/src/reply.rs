//! Replies: a value for each request, or a typed error.

use serde::{Deserialize, Serialize};

use crate::{
    Bytes, Condition, Conditions, Error, ErrorKind, Origin, OwnerRecord, PoolName, UpTo, VolumeId, VolumeSpec,
};

/// The most volumes in one page of a list.
pub const MAX_LISTED: usize = 16;

/// The most snapshots in one page of a list.
pub const MAX_SNAPSHOTS: usize = 7;

/// The most ranges in one reply.
pub const MAX_RANGES: usize = 200;

/// The content of a packet from the helper, once it has welcomed the connection.
pub type Response = Result<Reply, Error>;

/// Whether a pool's sizes are enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QuotaMode {
    /// They are enforced by project quotas.
    Enforced,
    /// They are not enforced: the pool is configured that way.
    None,
}

/// The answer to a request that succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done, with nothing to report.
    Done,
    /// The size that the volume has now (create, set quota, grow, resize).
    Size(Bytes),
    /// How much of a volume is used.
    Usage(Usage),
    /// A page of volumes; the last page is empty.
    Volumes(UpTo<Listed, MAX_LISTED>),
    /// A pool's free space and conditions.
    Pool(PoolStatus),
    /// The listening socket comes with this packet.
    Listening,
    /// Whose a volume is.
    Owner {
        /// What a client has recorded.
        owner: Option<OwnerRecord>,
        /// Whether the volume may have been published, and so may hold data.
        used: bool,
    },
    /// What there is a number of in a pool, beside bytes and volumes. Since version 4.
    Counts {
        /// How many volumes with a filesystem in an image there may be; 0 where the pool is not configured for them.
        filesystem_limit: u32,
        /// How many there are, deleted ones not included.
        filesystems: u32,
        /// The inodes that its filesystem has or could still make; 0 where the pool is not served, or does not answer.
        inodes: u64,
        /// Those that an ordinary user may still have.
        free_inodes: u64,
        /// How many snapshots there are.
        snapshots: u32,
        /// The most extents that a volume may have when it is copied; 0 where volumes cannot be copied at all.
        extent_limit: u64,
        /// How many bytes the snapshots refer to, in total.
        snapshot_bytes: u64,
    },
    /// A snapshot. Since version 4.
    Snapshot(Snapshot),
    /// A page of snapshots; the last page is empty. Since version 4.
    Snapshots(UpTo<Snapshot, MAX_SNAPSHOTS>),
    /// Where the content of a volume comes from; `None` if it did not begin as a copy. Since version 4.
    Origin(Option<Origin>),
    /// Ranges of a snapshot, in ascending order. Since version 4.
    Ranges {
        /// The ranges.
        ranges: UpTo<Range, MAX_RANGES>,
        /// The offset at which to continue; `None` if these were the last.
        next: Option<u64>,
    },
    /// How much of an image is shared with others. Since version 4.
    Sharing {
        /// How many bytes the whole image occupies.
        allocated: u64,
        /// How many of those that were looked at are shared.
        shared: u64,
        /// The offset at which to continue; `None` if these were the last.
        next: Option<u64>,
    },
}

impl Reply {
    /// As a client of this version can know it.
    ///
    /// # Errors
    /// `Unsupported` when it cannot know it at all.
    pub fn at_version(self, version: u16) -> Result<Self, Error> {
        match self {
            Self::Usage(usage) => {
                let needed = usage.spec.kind.since_version();
                if needed > version {
                    let message =
                        format!("such a volume needs protocol version {needed}, but this connection uses {version}");
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
                let condition = usage.condition.map(|condition| condition.at_version(version));
                Ok(Self::Usage(Usage { condition, ..usage }))
            }
            Self::Pool(status) => {
                let conditions = status.conditions.map(|condition| condition.at_version(version));
                Ok(Self::Pool(PoolStatus { conditions, ..status }))
            }
            known => Ok(known),
        }
    }
}

/// A volume's settings and how much of it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The pool it is in.
    pub pool: PoolName,
    /// Its settings, with the size it has now.
    pub spec: VolumeSpec,
    /// Bytes in use; `None` where nothing counts them.
    pub used_bytes: Option<u64>,
    /// Bytes that can still be written; `None` where nothing counts them.
    pub available_bytes: Option<u64>,
    /// Inodes in use; `None` for a block volume and where nothing counts them. Of a filesystem in an image, all four
    /// figures are what that filesystem says; `None` while it is not mounted.
    pub used_inodes: Option<u64>,
    /// Inodes that can still be made; `None` for a block volume and where nothing counts them.
    pub available_inodes: Option<u64>,
    /// The number of targets at which it is published.
    pub targets: u32,
    /// What is wrong with the volume or its pool.
    pub condition: Option<Condition>,
}

/// A volume in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its id.
    pub volume: VolumeId,
    /// The pool it is in.
    pub pool: PoolName,
    /// Its size.
    pub size: Bytes,
    /// Whether it is a block volume: published as a device, and not as a directory.
    pub block: bool,
    /// The number of targets at which it is published.
    pub targets: u32,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its id.
    pub snapshot: VolumeId,
    /// The pool it is in.
    pub pool: PoolName,
    /// The size of the volume that it was taken of, at that moment.
    pub size: Bytes,
    /// Whether it is of a block volume.
    pub block: bool,
    /// How many bytes it refers to. It shares them with its source until that writes to them.
    pub allocated: u64,
    /// What it is a copy of.
    pub origin: Origin,
}

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Where it begins.
    pub offset: u64,
    /// How many bytes it has.
    pub length: u64,
}

/// Free space and conditions of a pool. All sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Whether sizes are enforced.
    pub quota: QuotaMode,
    /// The size of the filesystem.
    pub total: u64,
    /// How much may still be promised to new volumes, in total.
    pub available: u64,
    /// The size of the largest volume of any kind that can be created, before what its inodes add.
    pub largest_volume: u64,
    /// How much has been promised to existing volumes.
    pub promised: u64,
    /// What each inode that is promised to a directory volume adds to what the volume is promised.
    pub inode_size: u32,
    /// The number of volumes.
    pub volumes: u32,
    /// The number of deleted volumes that are still being emptied.
    pub emptying: u32,
    /// What is wrong; empty when nothing is.
    pub conditions: Conditions,
}
