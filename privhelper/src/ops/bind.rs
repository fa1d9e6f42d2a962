//! Publishing directory volumes.

use bulkhead_protocol::{Error, MountFlags, Reply, TargetPath, VolumeId};
use rustix::fs::OFlags;

use super::target::{Target, publish};
use super::{existing_of, mark_used};
use crate::state::{Kind, State, failed, layout};
use crate::sys::mount::MountAttrFlags;

/// Binds a directory volume to a target.
pub fn bind_mount(
    state: &State,
    id: &VolumeId,
    path: &TargetPath,
    flags: MountFlags,
    exclusive: bool,
) -> Result<Reply, Error> {
    let volume = existing_of(state, id, Kind::Directory)?;
    let pool = state.pool_at(volume.pool)?;
    let target = Target::open_to_publish(state, path, id, Kind::Directory)?;
    // What the pool's own mount has cannot be taken off, and is found again after a restart.
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
