//! Publishing volumes at targets.

use std::os::fd::OwnedFd;

use bulkhead_protocol::{Error, ErrorKind, MountFlags, Reply, TargetPath, VolumeId};
use rustix::fs::OFlags;

use super::loops::attached;
use super::pins::check_unpinned;
use super::target::{Target, is_gone, moved, still_published};
use super::{existing, mark_used};
use crate::state::{Kind, State, Volume, failed, layout};
use crate::sys::mount::MountAttrFlags;

/// Binds a directory volume to a target.
pub fn bind_mount(
    state: &State,
    id: &VolumeId,
    path: &TargetPath,
    flags: MountFlags,
    exclusive: bool,
) -> Result<Reply, Error> {
    let volume = existing(state, id, Kind::Directory)?;
    let pool = state.pool_at(volume.pool)?;
    let target = Target::open_to_publish(state, path, id, Kind::Directory)?;
    // Flags of the pool's own mount cannot be cleared, and a restart will find them on this mount.
    let flags = MountFlags {
        read_only: flags.read_only,
        no_atime: flags.no_atime,
        no_exec: flags.no_exec || pool.inherited.no_exec,
        no_diratime: flags.no_diratime || pool.inherited.no_diratime,
    };
    publish(state, id, &volume, &target, flags, exclusive, || {
        let data = layout::open_content(&pool.directory, id, Kind::Directory, OFlags::PATH)
            .map_err(|errno| failed("open the data of volume", id, errno))?;
        mark_used(state, pool, id, &volume)?;
        Ok((data, mount_flags(flags)))
    })
}

/// Binds the node of a block volume's attached loop device to a target.
pub fn make_device(state: &State, id: &VolumeId, path: &TargetPath, exclusive: bool) -> Result<Reply, Error> {
    let volume = existing(state, id, Kind::Block)?;
    let target = Target::open_to_publish(state, path, id, Kind::Block)?;
    let Some(device) = attached(state, id, &volume)? else {
        let message = format!("volume {id} is not attached to a loop device; attach it first");
        return Err(Error::new(ErrorKind::Invalid, message));
    };
    let flags = MountFlags { read_only: device.read_only, ..MountFlags::default() };
    publish(state, id, &volume, &target, flags, exclusive, || {
        let node = state.loops.node(device.number).map_err(|errno| failed("open the device of volume", id, errno))?;
        // Read-only is a property of the device: a read-only mount of its node would not prevent writes.
        Ok((node, MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC))
    })
}

/// Publishes a volume at a target, unless it is already published there in the same way. `content` opens what is to be
/// bound there, and returns it with the flags for the mount.
///
/// # Errors
/// `AlreadyExists` when the target holds another volume, or this one in another way; `InUse` when the volume is
/// published at another target and `exclusive` forbids that.
fn publish(
    state: &State,
    id: &VolumeId,
    volume: &Volume,
    target: &Target<'_>,
    flags: MountFlags,
    exclusive: bool,
    content: impl FnOnce() -> Result<(OwnedFd, MountAttrFlags), Error>,
) -> Result<Reply, Error> {
    let path = target.path;
    if let Some(published) = volume.published_at(path) {
        if target.mount()?.is_some_and(|mount| mount.is(published, volume, state)) {
            if published.flags == flags {
                return Ok(Reply::Done);
            }
            let message = format!("volume {id} is published at {path} with other flags; unpublish it there first");
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        // Somebody privileged has unmounted it or moved it away.
        if !is_gone(state, path, published) {
            return Err(moved(id, path));
        }
        state.volumes.remove_target(id, path);
    } else if let Some(other) = state.volumes.at(path) {
        return Err(Error::new(ErrorKind::AlreadyExists, format!("target {path} holds volume {other}")));
    }
    if exclusive && let Some(other) = still_published(state, id, volume, Some(path)) {
        let message = format!("volume {id} is published at {other}, and the access mode allows one target only");
        return Err(Error::new(ErrorKind::InUse, message));
    }
    if exclusive {
        check_unpinned(state, id, Some(path))?;
    }
    state.check_number_of_targets(volume)?;
    // Use the configured directory's own name, so that its text is stored only once.
    let noted = TargetPath { directory: state.publish_directory(path)?.name.clone(), path: path.path.clone() };
    let (content, mount_flags) = content()?;
    target.make(volume.kind())?;
    let published = target.bind(&content, mount_flags, flags)?;
    state.volumes.add_target(id, noted, published);
    Ok(Reply::Done)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_is_its_own_and_setuid_and_devices_are_never_allowed() {
        let always = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let none = MountFlags::default();
        for (flags, added) in [
            (none, MountAttrFlags::empty()),
            (MountFlags { read_only: true, ..none }, MountAttrFlags::MOUNT_ATTR_RDONLY),
            (MountFlags { no_exec: true, ..none }, MountAttrFlags::MOUNT_ATTR_NOEXEC),
            (MountFlags { no_atime: true, ..none }, MountAttrFlags::MOUNT_ATTR_NOATIME),
            (MountFlags { no_diratime: true, ..none }, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
        ] {
            assert_eq!(mount_flags(flags), always | added, "{flags:?}");
        }
    }
}
