//! Publishing directory volumes.

use bulkhead_protocol::{Error, MountFlags, Reply, TargetPath, VolumeId, VolumeKind};
use rustix::fs::OFlags;

use super::record::mark_used;
use super::target::{Form, hold, is_published, note, unpublish};
use super::{absent, existing, wrong_kind};
use crate::state::{DATA, Purpose, Served, State, failed};
use crate::sys::file;
use crate::sys::mount::MountAttrFlags;

/// Binds a directory volume to a target.
pub fn bind_mount(
    state: &State,
    id: &VolumeId,
    target: &TargetPath,
    flags: MountFlags,
    exclusive: bool,
) -> Result<Reply, Error> {
    let _claimed = state.claims.claim(id, Some(target))?;
    let volume = existing(state, id)?;
    if !matches!(volume.spec.kind, VolumeKind::Directory { .. }) {
        return Err(wrong_kind(id, "a block volume, not a directory volume"));
    }
    let pool = state.pool_at(volume.pool)?;
    let directory = state.publish_directory(target)?;
    directory.check_shape(target, Purpose::Directory)?;
    directory.check_record(target, id, &state.driver)?;
    let held = hold(state, target)?;
    // What the pool's own mount has cannot be taken off, and is found again after a restart.
    let flags = MountFlags {
        read_only: flags.read_only,
        no_atime: flags.no_atime,
        no_exec: flags.no_exec || pool.inherited.no_exec,
        no_diratime: flags.no_diratime || pool.inherited.no_diratime,
    };
    if is_published(state, id, &volume, &held, flags, exclusive)? {
        return Ok(Reply::Done);
    }
    let data = open_data(pool, id)?;
    mark_used(state, pool, id, &volume)?;
    held.make(Form::Directory)?;
    let source = held.bind(&data, mount_flags(flags))?;
    note(state, id, &held, source, flags);
    Ok(Reply::Done)
}

/// Unmounts a directory volume from a target and removes the target.
pub fn unmount(state: &State, id: &VolumeId, target: &TargetPath) -> Result<Reply, Error> {
    let _claimed = state.claims.claim(id, Some(target))?;
    let Some(volume) = state.volumes.get(id) else { return absent(state, id, Some(target)) };
    if !matches!(volume.spec.kind, VolumeKind::Directory { .. }) {
        return Err(wrong_kind(id, "a block volume, not a directory volume"));
    }
    unpublish(state, id, &volume, target, Purpose::Directory, |status| status.id == volume.content)
}

fn open_data(pool: &Served, id: &VolumeId) -> Result<std::os::fd::OwnedFd, Error> {
    file::open(&pool.directory, format!("{id}/{DATA}"), OFlags::PATH | OFlags::DIRECTORY)
        .map_err(|errno| failed("open the data of volume", id, errno))
}

fn mount_flags(flags: MountFlags) -> MountAttrFlags {
    let wanted = [
        (true, MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV),
        (flags.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (flags.no_exec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (flags.no_atime, MountAttrFlags::MOUNT_ATTR_NOATIME),
        (flags.no_diratime, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
    ];
    wanted.iter().filter(|(wanted, _)| *wanted).map(|(_, flag)| *flag).collect()
}
