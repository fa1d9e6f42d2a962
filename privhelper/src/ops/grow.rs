//! Growing volumes. Nothing is ever made smaller.

use std::os::fd::{AsFd, OwnedFd};

use bulkhead_protocol::{Bytes, Error, Inodes, Reply, VolumeId, VolumeKind, VolumeSpec};
use rustix::fs::{FallocateFlags, OFlags};

use super::create::inodes_limit;
use super::record::record;
use super::{existing, existing_image, wrong_kind};
use crate::log;
use crate::state::{IMAGE, Served, Share, State, failed};
use crate::sys::{Result as SysResult, file};

/// Sets a directory volume's quota to more than it has.
pub fn set_quota(state: &State, id: &VolumeId, size: Bytes, inodes: Inodes) -> Result<Reply, Error> {
    let _claimed = state.claims.claim(id, None)?;
    let volume = existing(state, id)?;
    let VolumeKind::Directory { inodes: had, mode } = volume.spec.kind else {
        return Err(wrong_kind(id, "a block volume, not a directory volume"));
    };
    let old = volume.spec;
    let spec =
        VolumeSpec { size: size.max(old.size), kind: VolumeKind::Directory { inodes: inodes.max(had), mode }, ..old };
    if spec == old {
        return Ok(Reply::Size(old.size));
    }
    let pool = state.pool_at(volume.pool)?;
    let share = Share::of(&spec, volume.project.is_some()).beyond(old.size);
    let reservation = pool.filesystem.reserve(&pool.config, share)?;
    let fail = |errno| failed("set the quota of volume", id, errno);
    let limit = |spec: &VolumeSpec, inodes: Inodes| match volume.project {
        Some(project) => pool.filesystem.set_quota(project, spec.size.get(), inodes_limit(inodes.get())),
        None => Ok(()),
    };
    limit(&spec, inodes.max(had)).map_err(fail)?;
    if let Err(errno) = record(pool, id, &spec, volume.unused) {
        // The record is what a restart believes: go back to it.
        let back = limit(&old, had).and_then(|()| record(pool, id, &old, volume.unused));
        if let Err(errno) = back {
            log::error!("a quota could not be set back after a failed growth volume={id} errno={errno}");
        }
        return Err(fail(errno));
    }
    reservation.keep();
    state.volumes.update(id, |volume| volume.spec = spec);
    Ok(Reply::Size(spec.size))
}

/// Grows a block volume's image. Its loop device sees the new length when it is told to.
pub fn grow_image(state: &State, id: &VolumeId, size: Bytes) -> Result<Reply, Error> {
    let _claimed = state.claims.claim(id, None)?;
    let volume = existing_image(state, id)?;
    let old = volume.spec;
    if size <= old.size {
        return Ok(Reply::Size(old.size));
    }
    let VolumeKind::Image { sparse, .. } = old.kind else { return Err(wrong_kind(id, "no block volume")) };
    let pool = state.pool_at(volume.pool)?;
    let spec = VolumeSpec { size, ..old };
    let share = Share::of(&spec, volume.project.is_some()).beyond(old.size);
    let reservation = pool.filesystem.reserve(&pool.config, share)?;
    let fail = |errno| failed("grow the image of volume", id, errno);
    let image = open_image(pool, id, OFlags::RDWR).map_err(fail)?;
    let grown =
        extend(&image, old.size.get(), size.get(), sparse).and_then(|()| record(pool, id, &spec, volume.unused));
    if let Err(errno) = grown {
        let back = rustix::fs::ftruncate(&image, old.size.get()).and_then(|()| record(pool, id, &old, volume.unused));
        if let Err(errno) = back {
            log::error!("an image could not be set back after a failed growth volume={id} errno={errno}");
        }
        return Err(fail(errno));
    }
    reservation.keep();
    state.volumes.update(id, |volume| volume.spec = spec);
    Ok(Reply::Size(size))
}

/// Allocates behind the end first and then moves the end: where the room does not suffice, the length never changed.
fn extend(image: &OwnedFd, old: u64, new: u64, sparse: bool) -> SysResult<()> {
    if !sparse {
        rustix::fs::fallocate(image.as_fd(), FallocateFlags::KEEP_SIZE, old, new.saturating_sub(old))?;
    }
    rustix::fs::ftruncate(image, new)?;
    file::sync(image)
}

/// Opens a block volume's image.
pub fn open_image(pool: &Served, id: &VolumeId, flags: OFlags) -> SysResult<OwnedFd> {
    file::open(&pool.directory, format!("{id}/{IMAGE}"), flags)
}
