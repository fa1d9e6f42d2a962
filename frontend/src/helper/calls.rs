//! Requests with the replies that belong to them.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use bulkhead_protocol::{Bytes, Listed, PoolName, PoolStatus, Reply, Request, Socket, TargetPath, Usage, VolumeId};

use super::{CallError, Helper, Unreachable};

impl Helper {
    /// Asks for something whose outcome needs no telling.
    ///
    /// # Errors
    /// See [`CallError`]; so for all calls here.
    pub async fn done(&self, request: Request) -> Result<(), CallError> {
        match self.reply(&request).await? {
            Reply::Done | Reply::Size(_) => Ok(()),
            _ => Err(CallError::Mismatched(name(&request))),
        }
    }

    /// Asks for something that leaves a volume with a size.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn size(&self, request: Request) -> Result<Bytes, CallError> {
        match self.reply(&request).await? {
            Reply::Size(size) => Ok(size),
            _ => Err(CallError::Mismatched(name(&request))),
        }
    }

    /// What `volume` is, how much of it is used, and that it is published at `target` if one is given.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn usage(&self, volume: &VolumeId, target: Option<TargetPath>) -> Result<Usage, CallError> {
        let request = Request::Usage { volume: volume.clone(), target };
        match self.reply(&request).await? {
            Reply::Usage(usage) => Ok(usage),
            _ => Err(CallError::Mismatched(name(&request))),
        }
    }

    /// Volumes behind `after`, at most `limit`. None when there are no more.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn list(&self, after: Option<VolumeId>, limit: u16) -> Result<Vec<Listed>, CallError> {
        let request = Request::List { after, limit };
        match self.reply(&request).await? {
            Reply::Volumes(volumes) => Ok(volumes.into_vec()),
            _ => Err(CallError::Mismatched(name(&request))),
        }
    }

    /// Room and condition of `pool`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn pool_status(&self, pool: &PoolName) -> Result<PoolStatus, CallError> {
        let request = Request::PoolStatus { pool: pool.clone() };
        match self.reply(&request).await? {
            Reply::Pool(status) => Ok(status),
            _ => Err(CallError::Mismatched(name(&request))),
        }
    }

    /// One of the two sockets that the helper makes. Connections may be waiting in it already.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn listen(&self, socket: Socket) -> Result<UnixListener, CallError> {
        let request = Request::Listen { socket };
        match self.exchange(&request).await? {
            (Ok(Reply::Listening), Some(descriptor)) => Ok(listener(descriptor)?),
            (Ok(_), _) => Err(CallError::Mismatched(name(&request))),
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Whether the helper answers at all, in the cheapest way there is.
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

/// The request's name, for messages.
pub(super) fn name(request: &Request) -> &'static str {
    match request {
        Request::Create { .. } => "create",
        Request::SetQuota { .. } => "set quota",
        Request::GrowImage { .. } => "grow image",
        Request::BindMount { .. } => "bind mount",
        Request::Unmount { .. } => "unmount",
        Request::LoopAttach { .. } => "loop attach",
        Request::LoopDetach { .. } => "loop detach",
        Request::LoopResize { .. } => "loop resize",
        Request::MakeDevice { .. } => "make device",
        Request::RemoveDevice { .. } => "remove device",
        Request::Usage { .. } => "usage",
        Request::List { .. } => "list",
        Request::Delete { .. } => "delete",
        Request::PoolStatus { .. } => "pool status",
        Request::Listen { .. } => "listen",
        Request::DeleteUnused { .. } => "delete unused",
    }
}

/// The protocol version that brought the request. A helper that speaks a lower one is never sent it.
pub(super) fn since_version(request: &Request) -> u16 {
    match request {
        Request::Create { .. }
        | Request::SetQuota { .. }
        | Request::GrowImage { .. }
        | Request::BindMount { .. }
        | Request::Unmount { .. }
        | Request::LoopAttach { .. }
        | Request::LoopDetach { .. }
        | Request::LoopResize { .. }
        | Request::MakeDevice { .. }
        | Request::RemoveDevice { .. }
        | Request::Usage { .. }
        | Request::List { .. }
        | Request::Delete { .. }
        | Request::PoolStatus { .. }
        | Request::Listen { .. } => 1,
        Request::DeleteUnused { .. } => 2,
    }
}
