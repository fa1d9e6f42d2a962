//! Growing volumes. Nothing is ever made smaller.

use std::os::fd::OwnedFd;

use bulkhead_protocol::{Bytes, Error, Inodes, Reply, VolumeId, VolumeKind, VolumeSpec};
use rustix::fs::{FallocateFlags, OFlags};

use super::{existing, wrong_kind};
use crate::log;
use crate::state::{Kind, Record, Served, Share, State, failed, layout, limits};
use crate::sys::Result as SysResult;

/// Raises a directory volume's quota.
pub fn set_quota(state: &State, id: &VolumeId, size: Bytes, inodes: Inodes) -> Result<Reply, Error> {
    let volume = existing(state, id, Kind::Directory)?;
    let old = volume.record;
    let VolumeKind::Directory { inodes: had, mode } = old.spec.kind else {
        return Err(wrong_kind(id, Kind::Directory));
    };
    let (size, inodes) = (size.max(old.spec.size), inodes.max(had));
    let new = Record { spec: VolumeSpec { size, kind: VolumeKind::Directory { inodes, mode }, ..old.spec }, ..old };
    if new == old {
        return Ok(Reply::Size(size));
    }
    let pool = state.pool_at(volume.pool)?;
    let growth = Share::of(&new.spec, volume.project).growth_from(old.spec.size);
    let reservation = pool.filesystem.reserve_growth(&pool.config, growth, state.measure(pool)?)?;
    let limit = |size: Bytes, inodes: Inodes| match volume.project {
        Some(project) => pool.filesystem.set_quota(project, limits(size, inodes)),
        None => Ok(()),
    };
    let cannot = |errno| failed("set the quota of volume", id, errno);
    limit(size, inodes).map_err(cannot)?;
    if let Err(errno) = new.replace(&pool.directory, id) {
        // A restart goes by the record, so limit and record must agree: restore both.
        if let Err(errno) = limit(old.spec.size, had).and_then(|()| old.replace(&pool.directory, id)) {
            log::error!("cannot restore a quota after a failed expansion volume={id} errno={errno}");
        }
        return Err(cannot(errno));
    }
    reservation.keep();
    state.volumes.update(id, |volume| volume.record = new);
    Ok(Reply::Size(size))
}

/// Grows a block volume's image. Its loop device keeps the old size until it is resized too.
pub fn grow_image(state: &State, id: &VolumeId, size: Bytes) -> Result<Reply, Error> {
    let volume = existing(state, id, Kind::Block)?;
    let old = volume.record;
    if size <= old.spec.size {
        return Ok(Reply::Size(old.spec.size));
    }
    let pool = state.pool_at(volume.pool)?;
    let new = Record { spec: VolumeSpec { size, ..old.spec }, ..old };
    let growth = Share::of(&new.spec, volume.project).growth_from(old.spec.size);
    let reservation = pool.filesystem.reserve_growth(&pool.config, growth, state.measure(pool)?)?;
    let cannot = |errno| failed("grow the image of volume", id, errno);
    let image = layout::open_content(&pool.directory, id, Kind::Block, OFlags::RDWR).map_err(cannot)?;
    let extended = extend(pool, &image, old.spec.size.get(), size.get(), growth.preallocated);
    if let Err(errno) = extended.and_then(|()| new.replace(&pool.directory, id)) {
        let back = rustix::fs::ftruncate(&image, old.spec.size.get());
        if let Err(errno) = back.and_then(|()| old.replace(&pool.directory, id)) {
            log::error!("cannot restore an image's size after a failed expansion volume={id} errno={errno}");
        }
        return Err(cannot(errno));
    }
    reservation.keep();
    state.volumes.update(id, |volume| volume.record = new);
    Ok(Reply::Size(size))
}

/// Allocates blocks beyond the end before moving the end: if there is not enough room, the length never changes.
fn extend(pool: &Served, image: &OwnedFd, old: u64, new: u64, preallocate: bool) -> SysResult<()> {
    if preallocate {
        rustix::fs::fallocate(image, FallocateFlags::KEEP_SIZE, old, new.saturating_sub(old))?;
    }
    rustix::fs::ftruncate(image, new)?;
    pool.keep_order(image)
}
