//! Replies: a value for each request, or a typed error.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Error, PoolName, Text, UpTo, VolumeId, VolumeSpec};

/// The most volumes in one page of a list.
pub const MAX_LISTED: usize = 16;

/// What a packet from the helper holds, once the connection is welcome.
pub type Response = Result<Reply, Error>;

/// Whether a pool's sizes are enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QuotaMode {
    /// By project quotas.
    Enforced,
    /// Not at all: the pool is configured so.
    None,
}

/// The value a request is answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done; there is nothing to tell.
    Done,
    /// The volume has this size now (create, set quota, grow, resize).
    Size(Bytes),
    /// A volume's use.
    Usage(Usage),
    /// A page of volumes; the last page is empty.
    Volumes(UpTo<Listed, MAX_LISTED>),
    /// A pool's room.
    Pool(PoolStatus),
    /// The listening socket comes with this packet.
    Listening,
}

/// What a volume is and how much of it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The pool it is in.
    pub pool: PoolName,
    /// What was asked for, with the size it has now.
    pub spec: VolumeSpec,
    /// Bytes in use; `None` where nothing counts them.
    pub used_bytes: Option<u64>,
    /// Bytes that can still be written; `None` where nothing counts them.
    pub available_bytes: Option<u64>,
    /// Inodes in use; `None` for a block volume and where nothing counts them.
    pub used_inodes: Option<u64>,
    /// At how many targets it is published.
    pub targets: u32,
    /// What is wrong with the volume or its pool; empty when nothing is.
    pub condition: Text,
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
    /// Whether it is a block volume.
    pub block: bool,
    /// At how many targets it is published.
    pub targets: u32,
}

/// Room and condition of a pool. All sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Whether sizes are enforced.
    pub quota: QuotaMode,
    /// The size of the filesystem.
    pub total: u64,
    /// What new volumes may be promised, in sum.
    pub available: u64,
    /// The largest volume that can be made, of any kind.
    pub largest_volume: u64,
    /// What existing volumes have been promised.
    pub promised: u64,
    /// How many volumes there are.
    pub volumes: u32,
    /// How many deleted volumes are still to be emptied.
    pub emptying: u32,
    /// What is wrong; empty when nothing is.
    pub conditions: UpTo<Text, 4>,
}
