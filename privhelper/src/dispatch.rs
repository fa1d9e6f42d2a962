//! One exhaustive match from requests to operations, each with its locks and the capabilities that it may raise.

use std::os::fd::OwnedFd;

use bulkhead_protocol::{Error, Reply, Request};

use crate::capabilities;
use crate::ops::{self, Deletable};
use crate::state::{Served, State};
use crate::sys::capability;

/// Carries out a request. A `Listening` reply comes with the socket to pass on.
pub fn dispatch(state: &State, request: &Request) -> Result<(Reply, Option<OwnedFd>), Error> {
    let _allowed = capability::allow(capabilities::of(request));
    let _locked = match (request, request.volume()) {
        // It only reads.
        (Request::Usage { .. }, _) | (_, None) => None,
        (_, Some(volume)) => Some(state.locks.lock(volume, request.target())?),
    };
    let pool = pool_of(state, request);
    let _admitted = pool.map(|pool| pool.filesystem.in_progress.admit(&pool.config.name)).transpose()?;
    let reply = match request {
        Request::Create { volume, pool, spec } => ops::create(state, volume, pool, *spec),
        Request::SetQuota { volume, size, inodes } => ops::set_quota(state, volume, *size, *inodes),
        Request::GrowImage { volume, size } => ops::grow_image(state, volume, *size),
        Request::BindMount { volume, target, flags, exclusive } => {
            ops::bind_mount(state, volume, target, *flags, *exclusive)
        }
        Request::Unmount { volume, target } => ops::unmount(state, volume, target),
        Request::LoopAttach { volume, read_only } => ops::loop_attach(state, volume, *read_only),
        Request::LoopDetach { volume } => ops::loop_detach(state, volume),
        Request::LoopResize { volume } => ops::loop_resize(state, volume),
        Request::MakeDevice { volume, target, exclusive } => ops::make_device(state, volume, target, *exclusive),
        Request::RemoveDevice { volume, target } => ops::remove_device(state, volume, target),
        Request::Usage { volume, target } => ops::usage(state, volume, target.as_ref()),
        Request::List { after, limit } => ops::list(state, after.as_ref(), *limit),
        Request::Delete { volume } => ops::delete(state, volume, Deletable::Any),
        Request::PoolStatus { pool } => ops::pool_status(state, pool),
        Request::Listen { socket } => {
            return state.sockets.listening(*socket).map(|listener| (Reply::Listening, Some(listener)));
        }
        Request::DeleteUnused { volume } => ops::delete(state, volume, Deletable::OnlyUnused),
    };
    reply.map(|reply| (reply, None))
}

/// The pool whose filesystem a request may have to wait for. `PoolStatus` does not wait for one that is known to hang.
fn pool_of<'a>(state: &'a State, request: &Request) -> Option<&'a Served> {
    match request {
        Request::Create { pool, .. } => state.pool(pool).ok().map(|(_, pool)| pool),
        _ => request.volume().and_then(|id| state.volumes.pool(id)).and_then(|index| state.pool_at(index).ok()),
    }
}

#[cfg(test)]
pub mod tests;
