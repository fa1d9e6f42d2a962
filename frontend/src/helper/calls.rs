//! Pairs each request with its reply.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use bulkhead_model::volumes::InodeCount;
use bulkhead_protocol::{
    Bytes, Listed, Origin, OwnerRecord, PoolName, PoolStatus, Range, Reply, Request, Snapshot, Socket, TargetPath,
    Usage, VolumeId,
};

use super::{CallError, Helper, Unreachable};

/// Whose a volume is, as far as is recorded on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// What has been recorded.
    pub owner: Option<OwnerRecord>,
    /// Whether the volume may have been published, and so may hold data.
    pub used: bool,
}

/// What there is a number of in a pool, beside bytes and volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How many volumes with a filesystem in an image there may be; none if the pool is not configured for them.
    pub filesystem_limit: u32,
    /// How many there are.
    pub filesystems: u32,
    /// The inodes of its filesystem, if the helper knows them.
    pub inodes: Option<InodeCount>,
    /// How many snapshots there are.
    pub snapshots: u32,
    /// The most extents that a volume may have when it is copied; 0 where volumes cannot be copied at all.
    pub extent_limit: u64,
    /// How many bytes the snapshots refer to, in total.
    pub snapshot_bytes: u64,
}

/// How the image of a volume occupies its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// How many bytes it shares with others: with its snapshots, its copies, what it is a copy of.
    pub shared: u64,
    /// How many bytes only it has.
    pub own: u64,
}

/// Some of the ranges of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// The ranges, in ascending order.
    pub ranges: Vec<Range>,
    /// The offset at which to continue; `None` if these were the last.
    pub next: Option<u64>,
}

impl Helper {
    /// Sends a request whose reply carries no value.
    ///
    /// # Errors
    /// See [`CallError`]; this holds for all calls here.
    pub async fn done(&self, request: Request) -> Result<(), CallError> {
        match self.reply(&request).await? {
            Reply::Done | Reply::Size(_) => Ok(()),
            _ => Err(CallError::Mismatched(request.name())),
        }
    }

    /// Sends a request whose reply is the volume's size.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn size(&self, request: Request) -> Result<Bytes, CallError> {
        match self.reply(&request).await? {
            Reply::Size(size) => Ok(size),
            _ => Err(CallError::Mismatched(request.name())),
        }
    }

    /// Describes `volume` and its usage. If `target` is given, the volume must be published there.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn usage(&self, volume: &VolumeId, target: Option<TargetPath>) -> Result<Usage, CallError> {
        let request = Request::Usage { volume: volume.clone(), target };
        match self.reply(&request).await? {
            Reply::Usage(usage) => Ok(usage),
            _ => Err(CallError::Mismatched(request.name())),
        }
    }

    /// Lists at most `limit` volumes after `after`. The list is empty when there are no more.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn list(&self, after: Option<VolumeId>, limit: u16) -> Result<Vec<Listed>, CallError> {
        let request = Request::List { after, limit };
        match self.reply(&request).await? {
            Reply::Volumes(volumes) => Ok(volumes.into_vec()),
            _ => Err(CallError::Mismatched(request.name())),
        }
    }

    /// The space and the condition of `pool`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn pool_status(&self, pool: &PoolName) -> Result<PoolStatus, CallError> {
        let request = Request::PoolStatus { pool: pool.clone() };
        match self.reply(&request).await? {
            Reply::Pool(status) => Ok(status),
            _ => Err(CallError::Mismatched(request.name())),
        }
    }

    /// Returns how many filesystems in images, inodes and snapshots `pool` has, and may have.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn counts(&self, pool: &PoolName) -> Result<Counts, CallError> {
        let request = Request::PoolCounts { pool: pool.clone() };
        match self.reply(&request).await? {
            Reply::Counts {
                filesystem_limit,
                filesystems,
                inodes: total,
                free_inodes: free,
                snapshots,
                extent_limit,
                snapshot_bytes,
            } => {
                let inodes = (total > 0).then_some(InodeCount { total, free });
                Ok(Counts { filesystem_limit, filesystems, inodes, snapshots, extent_limit, snapshot_bytes })
            }
            _ => Err(CallError::Mismatched(request.name())),
        }
    }

    /// Whose `volume` is, as far as is recorded on it.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn owner(&self, volume: &VolumeId) -> Result<Owned, CallError> {
        let request = Request::Owner { volume: volume.clone() };
        match self.reply(&request).await? {
            Reply::Owner { owner, used } => Ok(Owned { owner, used }),
            _ => Err(CallError::Mismatched(request.name())),
        }
    }

    /// Sends a request whose reply is a snapshot.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn snapshot(&self, request: Request) -> Result<Snapshot, CallError> {
        match self.reply(&request).await? {
            Reply::Snapshot(snapshot) => Ok(snapshot),
            _ => Err(CallError::Mismatched(request.name())),
        }
    }

    /// Lists at most `limit` snapshots after `after`, all of them or those taken of `of`. The list is empty when there
    /// are no more.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn list_snapshots(
        &self,
        after: Option<VolumeId>,
        of: Option<VolumeId>,
        limit: u16,
    ) -> Result<Vec<Snapshot>, CallError> {
        let request = Request::ListSnapshots { after, of, limit };
        match self.reply(&request).await? {
            Reply::Snapshots(snapshots) => Ok(snapshots.into_vec()),
            _ => Err(CallError::Mismatched(request.name())),
        }
    }

    /// Returns where the content of `volume` comes from, if it did not begin empty.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn origin(&self, volume: &VolumeId) -> Result<Option<Origin>, CallError> {
        let request = Request::Origin { volume: volume.clone() };
        match self.reply(&request).await? {
            Reply::Origin(origin) => Ok(origin),
            _ => Err(CallError::Mismatched(request.name())),
        }
    }

    /// The ranges of `snapshot`, from an offset on, that differ from `base` or, without one, hold data.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn delta(&self, snapshot: &VolumeId, base: Option<&VolumeId>, from: u64) -> Result<Ranges, CallError> {
        let request = Request::Delta { snapshot: snapshot.clone(), base: base.cloned(), from };
        match self.reply(&request).await? {
            Reply::Ranges { ranges, next } => Ok(Ranges { ranges: ranges.into_vec(), next }),
            _ => Err(CallError::Mismatched(request.name())),
        }
    }

    /// Returns how much the image of `volume` occupies, and shares.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn sharing(&self, volume: &VolumeId) -> Result<Sharing, CallError> {
        let (mut sum, mut from) = (0, 0_u64);
        loop {
            let request = Request::Sharing { volume: volume.clone(), from };
            let Reply::Sharing { allocated, shared, next } = self.reply(&request).await? else {
                return Err(CallError::Mismatched(request.name()));
            };
            sum += shared;
            match next.filter(|next| *next > from) {
                Some(next) => from = next,
                None => return Ok(Sharing { shared: sum, own: allocated.saturating_sub(sum) }),
            }
        }
    }

    /// Returns how much the image of `volume`, which has this size, occupies.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn allocated(&self, volume: &VolumeId, size: Bytes) -> Result<u64, CallError> {
        // At its end there is nothing to be looked through.
        let request = Request::Sharing { volume: volume.clone(), from: size.get() };
        match self.reply(&request).await? {
            Reply::Sharing { allocated, .. } => Ok(allocated),
            _ => Err(CallError::Mismatched(request.name())),
        }
    }

    /// One of the two listening sockets that the helper creates. Connections may already be waiting on it.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn listen(&self, socket: Socket) -> Result<UnixListener, CallError> {
        let request = Request::Listen { socket };
        match self.exchange(&request).await? {
            (Ok(Reply::Listening), Some(descriptor)) => Ok(listener(descriptor)?),
            (Ok(_), _) => Err(CallError::Mismatched(request.name())),
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Checks that the helper answers at all, using the cheapest request.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn probe(&self) -> Result<(), CallError> {
        self.exchange(&Request::List { after: None, limit: 1 }).await.map(drop)
    }

    async fn reply(&self, request: &Request) -> Result<Reply, CallError> {
        Ok(self.exchange(request).await?.0?)
    }
}

fn listener(descriptor: OwnedFd) -> Result<UnixListener, Unreachable> {
    let listener = UnixListener::from(descriptor);
    listener.set_nonblocking(true).map_err(|error| Unreachable::Broken(error.into()))?;
    Ok(listener)
}
