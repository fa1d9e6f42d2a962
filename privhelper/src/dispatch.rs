//! One exhaustive match from requests to operations. Each operation takes what it acts on as values that hold it, made
//! here.

use std::os::fd::OwnedFd;

use bulkhead_protocol::{CallId, Error, Pace, Reply, Request};

use crate::bookkeeping;
use crate::ops::{self, Deletable};
use crate::state::{Kind, State};

/// How a request ended. A `Listening` reply comes with the socket to pass on.
pub type Answer = Result<(Reply, Option<OwnedFd>), Error>;

/// Carries out a request that came over a connection, as part of a call.
pub fn dispatch(state: &State, connection: &OwnedFd, request: &Request, call: CallId) -> Answer {
    let pace = request.row().pace;
    let hold = |volume| state.hold(volume, pace);
    let reply = match request {
        Request::Create { volume, pool, spec } => {
            let (held, pool) = state.hold_new(volume, pool, pace)?;
            bookkeeping::create(held, pool, *spec)
        }
        Request::SetQuota { volume, size, inodes } => bookkeeping::set_quota(hold(volume)?, *size, *inodes),
        Request::GrowImage { volume, size } => bookkeeping::grow_image(&mut hold(volume)?, Kind::Block, *size),
        Request::BindMount { volume, target, flags, exclusive } => {
            ops::bind_mount(hold(volume)?, state.hold_target(target)?, *flags, *exclusive)
        }
        Request::Unmount { volume, target } => ops::unmount(hold(volume)?, state.hold_target(target)?),
        Request::LoopAttach { volume, read_only } => ops::loop_attach(hold(volume)?, *read_only),
        Request::LoopDetach { volume } => ops::loop_detach(hold(volume)?, Kind::Block),
        Request::LoopResize { volume } => ops::loop_resize(&hold(volume)?),
        Request::MakeDevice { volume, target, exclusive } => {
            ops::make_device(hold(volume)?, state.hold_target(target)?, *exclusive)
        }
        Request::RemoveDevice { volume, target } => ops::remove_device(hold(volume)?, state.hold_target(target)?),
        Request::Usage { volume, target } => bookkeeping::usage(state, volume, target.as_ref()),
        Request::List { after, limit } => bookkeeping::list(state, after.as_ref(), *limit),
        Request::Delete { volume } => ops::delete(hold(volume)?, Deletable::Any, call),
        Request::PoolStatus { pool } => bookkeeping::pool_status(state, pool),
        Request::Listen { socket } => {
            let listener = state.sockets.listening(*socket, connection)?;
            return Ok((Reply::Listening, Some(listener)));
        }
        Request::DeleteUnused { volume } => ops::delete(hold(volume)?, Deletable::OnlyUnused, call),
        Request::SetOwner { volume, owner } => bookkeeping::set_owner(&hold(volume)?, owner),
        Request::Owner { volume } => bookkeeping::owner(state, volume),
        Request::MountFilesystem { volume } => ops::mount_filesystem(hold(volume)?, None),
        Request::UnmountFilesystem { volume } => ops::loop_detach(hold(volume)?, Kind::Filesystem),
        Request::GrowFilesystem { volume, size } => ops::grow_filesystem(hold(volume)?, *size),
        Request::PoolCounts { pool } => bookkeeping::pool_counts(state, pool),
        Request::CreateSnapshot { volume, snapshot, name_hash } => {
            ops::create_snapshot(hold(volume)?, state.hold(snapshot, Pace::Prompt)?, *name_hash)
        }
        Request::CreateFrom { volume, pool, spec, source } => {
            let source = hold(source)?;
            let (held, pool) = state.hold_new(volume, pool, Pace::Disk)?;
            ops::create_from(source, held, pool, *spec)
        }
        Request::DeleteSnapshot { snapshot } => ops::delete(hold(snapshot)?, Deletable::Snapshot, call),
        Request::ListSnapshots { after, of, limit } => {
            bookkeeping::list_snapshots(state, after.as_ref(), of.as_ref(), *limit)
        }
        Request::Origin { volume } => ops::origin(state, volume),
        Request::Delta { snapshot, base, from } => bookkeeping::delta(state, snapshot, base.as_ref(), *from),
        Request::SetInodes { volume, inodes } => bookkeeping::set_inodes(hold(volume)?, *inodes),
        Request::Allocate { volume } => bookkeeping::allocate(hold(volume)?),
        Request::Sharing { volume, from } => bookkeeping::sharing(state, volume, *from),
        Request::CreateGroup { members, name_hash } => ops::create_group(state, members.as_slice(), *name_hash, call),
        Request::MountLabelled { volume, context } => ops::mount_filesystem(hold(volume)?, Some(context)),
    };
    reply.map(|reply| (reply, None))
}

#[cfg(test)]
pub mod tests;
