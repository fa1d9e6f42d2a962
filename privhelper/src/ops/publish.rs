//! Publishing volumes at targets.

use std::os::fd::OwnedFd;

use bulkhead_protocol::{Error, MountFlags, Reply};

use super::filesystem::directory;
use super::loops::{attached, record_numbers};
use super::target::{Target, is_gone, moved, still_published};
use super::use_first;
use crate::bookkeeping::{check_number_of_targets, put_back};
use crate::state::{Held, HeldTarget, Kind, exists, failed, in_use, invalid};
use crate::sys::mount::MountAttrFlags;

/// Binds a directory volume, or the directory in a volume's mounted filesystem, to a target.
pub fn bind_mount(held: Held<'_>, at: HeldTarget<'_>, flags: MountFlags, exclusive: bool) -> Result<Reply, Error> {
    let has_filesystem = held.known().is_some_and(|volume| volume.kind() == Kind::Filesystem);
    let kind = if has_filesystem { Kind::Filesystem } else { Kind::Directory };
    let (_, pool) = held.existing(kind)?;
    // Flags of the pool's own mount cannot be cleared, and a restart will find them on this mount.
    let inherited = if has_filesystem { MountFlags::default() } else { pool.inherited };
    let flags = MountFlags {
        read_only: flags.read_only,
        no_atime: flags.no_atime,
        no_exec: flags.no_exec || inherited.no_exec,
        no_diratime: flags.no_diratime || inherited.no_diratime,
    };
    let target = Target::open_to_publish(&at, &held, kind)?;
    publish(held, &target, flags, exclusive, |held| {
        let data = if has_filesystem { directory(held)? } else { put_back(held)? };
        Ok((data, mount_flags(flags)))
    })
}

/// Binds the node of a block volume's attached loop device to a target.
pub fn make_device(mut held: Held<'_>, at: HeldTarget<'_>, exclusive: bool) -> Result<Reply, Error> {
    held.existing(Kind::Block)?;
    let target = Target::open_to_publish(&at, &held, Kind::Block)?;
    let Some(device) = attached(&mut held)? else {
        return Err(invalid(format!("volume {} is not attached to a loop device; attach it first", held.id)));
    };
    record_numbers(&held)?;
    let flags = MountFlags { read_only: device.read_only, ..MountFlags::default() };
    publish(held, &target, flags, exclusive, |held| {
        let node = held.state.loops.node(device.number);
        let node = node.map_err(|error| failed("open the device of volume", held.id, error))?;
        // Read-only is a property of the device: a read-only mount of its node would not prevent writes.
        Ok((node, MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC))
    })
}

/// Publishes a volume at a target, unless it is already published there in the same way. `content` opens what is to be
/// bound there, and returns it with the flags for the mount.
///
/// # Errors
/// `AlreadyExists` when the target holds something else, or this volume in another way; `InUse` when the volume is
/// mounted elsewhere and `exclusive` forbids that.
fn publish(
    mut held: Held<'_>,
    target: &Target<'_>,
    flags: MountFlags,
    exclusive: bool,
    content: impl FnOnce(&mut Held<'_>) -> Result<(OwnedFd, MountAttrFlags), Error>,
) -> Result<Reply, Error> {
    let path = target.path;
    let Some(volume) = held.known() else { return Err(held.state.unknown(held.id)) };
    let kind = volume.kind();
    if let Some(published) = volume.published_at(path) {
        if target.mount(held.state, Some(volume))?.is_some_and(|mount| mount.is_of(volume, Some(published))) {
            if published.flags == flags {
                return Ok(Reply::Done);
            }
            let id = held.id;
            return Err(exists(format!(
                "volume {id} is published at {path} with other flags; unpublish it there first"
            )));
        }
        // Somebody privileged has unmounted it or moved it away.
        if !is_gone(held.state, published) {
            return Err(moved(&held, path));
        }
        held.change(|volume| volume.unpublish(path));
    }
    if target.mount(held.state, None)?.is_some()
        && let Some(holder) = held.state.volumes.holder(path)
    {
        return Err(exists(format!("volume {holder} is published at {path}; unpublish it there first")));
    }
    if exclusive {
        if let Some(other) = still_published(&mut held, Some(path)) {
            let id = held.id;
            return Err(in_use(format!(
                "volume {id} is published at {other}, and the access mode allows one target only"
            )));
        }
        held.check_unmounted()?;
    }
    check_number_of_targets(&held)?;
    let (content, mount_flags) = content(&mut held)?;
    let published = use_first(&mut held, |_| target.bind(kind, &content, mount_flags, flags))?;
    held.change(|volume| volume.publish(published));
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
