//! Reports: usage of a volume, pages of volumes, room in a pool. Nothing here changes anything.

use std::sync::Arc;

use bulkhead_protocol::{
    Condition, Error, ErrorKind, Listed, MAX_LISTED, MAX_SNAPSHOTS, Pace, PoolName, PoolStatus, Reply, SIZE_STEP,
    TargetPath, UpTo, Usage, VolumeId, VolumeKind,
};
use rustix::fs::OFlags;

use super::conditions::{Finding, conditions, hangs};
use super::create::measure;
use super::filesystem::limits;
use super::limits::{count, too_many_volumes};
use super::room::Room;
use crate::ops::{shows, snapshot};
use crate::state::{Kind, Served, State, Volume, failed, invalid, layout, may_be_looked_at};
use crate::sys::loopdevice::MAJOR;
use crate::sys::quota::ProjectQuota;
use crate::sys::{Errno, Error as SysError, Result as SysResult, file};

/// A volume's settings and usage. If a target is given, the volume must be published there.
pub fn usage(state: &State, id: &VolumeId, target: Option<&TargetPath>) -> Result<Reply, Error> {
    let seen = state.see(id, Pace::Prompt)?;
    let (volume, pool) = (&seen.volume, &seen.volume.pool);
    let served = pool.served()?;
    if let Some(target) = target {
        check_published(state, id, volume, target)?;
    }
    let mut usage = Usage {
        pool: pool.config.name.clone(),
        spec: volume.record.spec,
        used_bytes: None,
        available_bytes: None,
        used_inodes: None,
        available_inodes: None,
        targets: count(volume.published.len()),
        condition: served.failure(),
    };
    let is_same = || state.volumes.get(id).is_some_and(|now| Arc::ptr_eq(&now, volume));
    if usage.condition.is_none() {
        let filled = match volume.record.spec.kind {
            VolumeKind::Directory { .. } => fill_in_directory(&mut usage, volume, served, is_same),
            VolumeKind::Image { .. } | VolumeKind::Snapshot { .. } => fill_in_image(&mut usage, id, served),
            VolumeKind::Filesystem { .. } => fill_in_filesystem(&mut usage, state, id, volume, served),
        };
        filled.map_err(|error| match error.errno {
            Errno::NOENT => changed(state, id, volume).unwrap_or_else(|| failed("inspect volume", id, error)),
            _ => failed("inspect volume", id, error),
        })?;
        // Last, because it is the least: the filesystem may also want larger blocks since files on it share some.
        let is_not_direct = volume.device.is_some_and(|device| !device.direct);
        usage.condition = usage.condition.take().or(is_not_direct.then_some(Condition::NotDirect));
    }
    Ok(Reply::Usage(usage))
}

/// Returns why a volume that is only looked at is not what it was, if that is because it was deleted meanwhile, or is
/// being deleted.
pub fn changed(state: &State, id: &VolumeId, volume: &Arc<Volume>) -> Option<Error> {
    let is_same = || state.volumes.get(id).is_some_and(|now| Arc::ptr_eq(&now, volume));
    match state.locks.volume(id) {
        Ok(_) if is_same() => None,
        Ok(_) => Some(state.unknown(id)),
        Err(busy) => Some(busy),
    }
}

/// What the volume's project uses. What can still be used is limited by what the filesystem has, too. While a volume grows,
/// its limits are not yet, or no longer, what its row said.
fn fill_in_directory(usage: &mut Usage, volume: &Volume, served: &Served, is_same: impl Fn() -> bool) -> SysResult<()> {
    let (Some(project), VolumeKind::Directory { inodes, .. }) = (volume.project, usage.spec.kind) else {
        usage.condition = Some(Condition::NotEnforced);
        return Ok(());
    };
    let (quota, space, size) = (served.filesystem.quota(project)?, served.filesystem.space()?, usage.spec.size);
    // The volume's own directory is not the user's.
    let used_inodes = quota.used_inodes.saturating_sub(1);
    usage.used_bytes = Some(quota.used_bytes);
    usage.available_bytes = Some(size.get().saturating_sub(quota.used_bytes).min(space.free));
    usage.used_inodes = Some(used_inodes);
    usage.available_inodes = Some(inodes.get().saturating_sub(used_inodes).min(space.free_inodes));
    let ProjectQuota { used_bytes: used, limit_bytes: bytes, limit_inodes, soft, .. } = quota;
    let has_other = !quota.is_limited_to(limits(size, inodes)) && volume.growth.is_none() && is_same();
    let other = has_other.then_some(Condition::OtherLimits { bytes, inodes: limit_inodes, soft });
    usage.condition = other.or((used > size.get()).then_some(Condition::Oversized { used }));
    Ok(())
}

fn fill_in_image(usage: &mut Usage, id: &VolumeId, served: &Served) -> SysResult<()> {
    let image = file::status(layout::open_content(&served.directory, id, Kind::Block, OFlags::PATH)?)?;
    let (found, recorded) = (image.size, usage.spec.size.get());
    usage.used_bytes = Some(image.allocated);
    usage.condition = (found != recorded).then_some(Condition::ImageSize { found, recorded });
    Ok(())
}

/// What the filesystem in the volume's image says, if it is mounted.
fn fill_in_filesystem(
    usage: &mut Usage,
    state: &State,
    id: &VolumeId,
    volume: &Volume,
    served: &Served,
) -> SysResult<()> {
    fill_in_image(usage, id, served)?;
    usage.used_bytes = None;
    let not_mountable = |errno: Errno| Condition::NotMountable { errno: errno.raw_os_error() };
    let mut found = volume.unmountable.map(not_mountable);
    let pool = &volume.pool.config;
    if let Some(device) = volume.device.filter(|_| pool.filesystems > 0)
        && let Some(figures) = state.placer.figures(&pool.name, device.number())?
    {
        usage.used_bytes = Some(figures.used);
        usage.available_bytes = Some(figures.free);
        usage.used_inodes = Some(figures.used_inodes);
        usage.available_inodes = Some(figures.free_inodes);
        found = match figures.failure.map(Errno::from_raw_os_error) {
            None => None,
            Some(Errno::IO) => Some(Condition::FilesystemShutDown),
            Some(errno) => return Err(SysError::of(errno)),
        };
    }
    usage.condition = usage.condition.take().or(found);
    Ok(())
}

/// Checks that a volume is published at a target. For a block volume, the kubelet's global map path will do as well:
/// that is where the kubelet binds what we published.
fn check_published(state: &State, id: &VolumeId, volume: &Volume, target: &TargetPath) -> Result<(), Error> {
    let absent = || Error::new(ErrorKind::NotFound, format!("volume {id} is not published at {target}"));
    let directory = state.publish_directory(target).map_err(|_| absent())?;
    if !may_be_looked_at(directory.shape, &target.path, volume.kind()) {
        return Err(absent());
    }
    let or_absent = |error: Error| if error.kind == ErrorKind::Refused { absent() } else { error };
    let published = match volume.kind() {
        Kind::Directory | Kind::Filesystem => {
            let published = volume.published_at(target);
            published.is_some() && shows(state, target, volume, published).map_err(or_absent)?
        }
        Kind::Snapshot => false,
        Kind::Block => {
            let number = volume.device.map(|device| (MAJOR, device.number()));
            let looked = state.placer.look(target, None).map_err(or_absent)?;
            looked.device.is_some() && looked.device == number
        }
    };
    if published { Ok(()) } else { Err(absent()) }
}

/// A page of volumes.
pub fn list(state: &State, after: Option<&VolumeId>, limit: u16) -> Result<Reply, Error> {
    let page = state.volumes.page(after, usize::from(limit).min(MAX_LISTED), |id, volume| {
        (volume.kind() != Kind::Snapshot).then(|| Listed {
            volume: id.clone(),
            pool: volume.pool.config.name.clone(),
            size: volume.record.spec.size,
            block: volume.kind() == Kind::Block,
            targets: count(volume.published.len()),
        })
    });
    UpTo::try_from(page).map(Reply::Volumes).map_err(|error| invalid(error.to_string()))
}

/// A page of snapshots, or of those of one volume.
pub fn list_snapshots(
    state: &State,
    after: Option<&VolumeId>,
    of: Option<&VolumeId>,
    limit: u16,
) -> Result<Reply, Error> {
    // Before anything is copied: there may be very many others, and nobody else gets at the table meanwhile.
    let is_of = |volume: &Volume| of.is_none_or(|of| volume.origin.as_ref().is_some_and(|origin| origin.source == *of));
    let page = state.volumes.page(after, usize::from(limit).min(MAX_SNAPSHOTS), |id, volume| {
        if is_of(volume) { snapshot(id, volume) } else { None }
    });
    UpTo::try_from(page).map(Reply::Snapshots).map_err(|error| invalid(error.to_string()))
}

/// Free space and conditions of a pool.
pub fn pool_status(state: &State, name: &PoolName) -> Result<Reply, Error> {
    let pool = state.pool(name)?;
    let served = pool.served()?;
    let hangs = hangs(served);
    // Held to the end: looking at quotas may take forever as well.
    let _admitted = if hangs.is_none() { pool.admit(Pace::Prompt)? } else { None };
    let promised = state.volumes.promised(pool);
    let finding = match hangs.map_or_else(|| served.failure().map(Finding::Failed), |time| Some(Finding::Hangs(time))) {
        Some(finding) => finding,
        None => {
            let measured = measure(state, pool)?.with_more(OTHERS);
            Finding::Works(measured, measured.room(&pool.config, promised))
        }
    };
    let room = match finding {
        Finding::Works(_, room) => room,
        // There is none. The figures asked for here are in the kernel's memory.
        _ => {
            let total = served.filesystem.space().map_or(0, |space| space.total);
            Room { total, free: 0, limit: 0, promised }
        }
    };
    let available = if too_many_volumes(state).is_some() { 0 } else { whole_steps(room.available()) };
    let (volumes, emptying) = state.volumes.count(name);
    Ok(Reply::Pool(PoolStatus {
        quota: pool.config.quota,
        total: room.total,
        available,
        largest_volume: available.min(whole_steps(room.free)),
        promised: room.promised,
        inode_size: u32::try_from(pool.inode_size()).unwrap_or(u32::MAX),
        volumes: count(volumes),
        emptying: count(emptying),
        conditions: conditions(state, pool, served, &finding),
    }))
}

/// Returns how many filesystems in images a pool may have, and has; how many snapshots; and the same of inodes. XFS
/// makes them from free space, and counts those that it could make as free.
pub fn pool_counts(state: &State, name: &PoolName) -> Result<Reply, Error> {
    let pool = state.pool(name)?;
    let [filesystems, snapshots] = [Kind::Filesystem, Kind::Snapshot].map(|kind| state.volumes.of_kind(kind, pool));
    let extent_limit =
        pool.served().map_or(0, |served| if served.filesystem.can_copy() { pool.config.extents } else { 0 });
    let space = |served: &Served| if hangs(served).is_none() { served.filesystem.space().ok() } else { None };
    let space = pool.served().ok().and_then(space);
    let (used, free_inodes) = space.map_or((0, 0), |space| (space.inodes_in_use, space.free_inodes));
    Ok(Reply::Counts {
        filesystem_limit: count(pool.config.filesystems),
        filesystems: count(filesystems.len()),
        inodes: used.saturating_add(free_inodes),
        free_inodes,
        snapshots: count(snapshots.len()),
        extent_limit,
        snapshot_bytes: snapshots.into_iter().fold(0, u64::saturating_add),
    })
}

/// A pool says how large a volume it has room for beside so many: what it says is still true when the volume is asked for,
/// though the filesystem may have taken some blocks for itself.
const OTHERS: u64 = 8;

/// The largest valid size that does not exceed `bytes`.
fn whole_steps(bytes: u64) -> u64 {
    bytes.saturating_sub(bytes % SIZE_STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_down_to_whole_steps() {
        for (bytes, whole) in [(0, 0), (4095, 0), (4096, 4096), (8191, 4096), (u64::MAX, u64::MAX - 4095)] {
            assert_eq!(whole_steps(bytes), whole, "{bytes}");
        }
        assert_eq!((count(3), count(usize::MAX)), (3, u32::MAX));
    }
}
