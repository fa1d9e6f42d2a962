//! Binding what volumes show to targets, unmounting it, and looking at what is there. Whatever the keeper asks, only
//! volumes' content is bound, where the kubelet has recorded that it belongs; and only what shows such content is unmounted.

use std::os::fd::OwnedFd;

use bulkhead_protocol::{MountFlags, TargetPath, VolumeId};
use rustix::fs::{FileType, OFlags};

use super::attributes::{self, Attribute};
use super::kind::{DATA, Kind, open_content};
use super::target::{Mounted, Target};
use super::wire::{Access, Answer, Content, Failure, Found, Looked, Refusal};
use super::{Place, PoolPlace};
use crate::sys::loopdevice::{self, MAJOR, OURS};
use crate::sys::mount::{self, MountAttrFlags};
use crate::sys::{Errno, Error as SysError, file, xfs};

impl Place {
    /// Binds a volume's content to a target, which is made.
    pub fn bind(
        &self,
        volume: &VolumeId,
        content: &Content,
        at: &TargetPath,
        flags: MountFlags,
    ) -> Result<Answer, Failure> {
        let below = self.below_for(at, content.kind)?;
        below.check_vol_data(&at.path, volume, &self.driver)?;
        if below.is_moved() {
            return Err(Refusal::Apart.into());
        }
        let target = Target::open(below, &at.path)?;
        let source = self.source(volume, content)?;
        let (source, proof) = target.bind(content.kind, source, mount_flags(content.kind, flags))?;
        Ok(Answer::Bound(source, proof))
    }

    /// Opens what is bound.
    fn source(&self, volume: &VolumeId, content: &Content) -> Result<OwnedFd, Failure> {
        let pool = self.pool(&content.pool)?;
        if content.kind == Kind::Directory {
            let directory = open_content(&pool.directory, volume, Kind::Directory, OFlags::PATH)?;
            let is_same = file::status(&directory)?.id == content.id;
            return if is_same { Ok(directory) } else { Err(Refusal::Replaced.into()) };
        }
        if content.kind == Kind::Block {
            let number = content.device.ok_or(SysError::of(Errno::NXIO))?;
            self.check_device(volume, pool, content.kind, number)?;
            return Ok(self.nodes.lasting(number)?);
        }
        // What it was mounted as, whatever the image's name leads to by now.
        let number = content.device.ok_or(Refusal::NotMounted)?;
        let root = pool.mounting()?.root_of(number, volume)?.ok_or(Refusal::NotMounted)?;
        Ok(file::open(root, DATA, OFlags::PATH | OFlags::DIRECTORY)?)
    }

    /// Checks that a loop device is bound to the image of this volume, and that the image is marked if a filesystem was made
    /// in it, before that is mounted: what a tenant could write as a device never is.
    pub fn check_device(&self, volume: &VolumeId, pool: &PoolPlace, kind: Kind, number: u32) -> Result<(), Failure> {
        let bound = loopdevice::image_of(self.nodes.open(number, Access::Look)?)?;
        let image = open_content(&pool.directory, volume, Kind::Block, OFlags::RDONLY)?;
        let is_marked = attributes::get(&image, Attribute::Filesystem)?.is_some();
        let is_its_own = file::status(&image)?.id == bound && is_marked == (kind == Kind::Filesystem);
        if is_its_own { Ok(()) } else { Err(Refusal::Replaced.into()) }
    }

    /// Unmounts what is at a target, if it is what the keeper takes it for, and then removes the target if nothing else is
    /// mounted there; one at which nothing is mounted, if it was made for a volume. Returns whether nothing is left to be done.
    pub fn unbind(
        &self,
        at: &TargetPath,
        kind: Kind,
        expected: Option<Found>,
        is_joined: bool,
    ) -> Result<bool, Failure> {
        let below = self.below_for(at, kind)?;
        let target = Target::open(below, &at.path)?;
        let mount = target.mount()?;
        if target.found(mount)? != expected {
            return Ok(false);
        }
        if mount.is_none() && !target.is_marked()? {
            return Ok(true);
        }
        // Otherwise the host would keep what is unmounted here; and removing a target would tear off what is mounted there.
        if !is_joined || below.is_moved() {
            return Err(Refusal::Apart.into());
        }
        if let Some(mount) = mount {
            self.check_ours(&target, mount)?;
            target.unmount()?;
            if target.mount()?.is_some() {
                return Ok(false);
            }
        }
        target.clear(None).map(|()| true)
    }

    /// Looks at what is at a target.
    pub fn look(&self, at: &TargetPath, to_publish: Option<&(VolumeId, Kind)>) -> Result<Looked, Failure> {
        if let Some((volume, kind)) = to_publish {
            self.below_for(at, *kind)?.check_vol_data(&at.path, volume, &self.driver)?;
        }
        let target = Target::open(self.below(&at.directory)?, &at.path)?;
        let mount = target.mount()?;
        let status = if let Some(Mounted::Unreadable) = mount { None } else { target.status()? };
        let device = status.filter(|status| status.file_type == FileType::BlockDevice).map(|node| node.device);
        Ok(Looked { parent: target.parent_id()?, mount: target.found(mount)?, device })
    }

    /// Checks that a mount shows something of ours, whatever the keeper says of it: a node or the filesystem of a loop device
    /// of ours, or a part of a pool. Of one that cannot be inspected, the kernel still says which filesystem it is.
    fn check_ours(&self, target: &Target<'_>, mount: Mounted) -> Result<(), Failure> {
        let is_device = |(major, number): (u32, u32)| major == MAJOR && OURS.contains(&number);
        let is_ours = match mount {
            Mounted::Unreadable => {
                let found = target.filesystem_id()?;
                let is_pool = |pool: &PoolPlace| file::filesystem_id(&pool.directory).is_ok_and(|own| own == found);
                xfs::loop_device_of(found).is_some_and(|number| OURS.contains(&number))
                    || self.pools.iter().any(is_pool)
            }
            Mounted::Seen(status) => {
                let is_node = status.file_type == FileType::BlockDevice && is_device(status.device);
                let root = target.unique_id()?.and_then(|id| mount::root_of(id).ok());
                let is_below = |pool: &PoolPlace| {
                    let own =
                        mount::unique_id(&pool.directory, "").ok().flatten().and_then(|id| mount::root_of(id).ok());
                    // KERNEL(6.8): until then, only the filesystem is known.
                    root.as_ref().zip(own).is_none_or(|(root, own)| root.starts_with(own))
                };
                let is_part = |pool: &PoolPlace| pool.device == status.id.device && is_below(pool);
                is_node || is_device(status.id.device) || self.pools.iter().any(is_part)
            }
        };
        if is_ours { Ok(()) } else { Err(Refusal::OfNobody.into()) }
    }
}

/// The flags of a mount. Read-only is a property of a device: a read-only mount of its node would not prevent writes.
fn mount_flags(kind: Kind, flags: MountFlags) -> MountAttrFlags {
    let is_device = kind == Kind::Block;
    let wanted = [
        (true, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (!is_device, MountAttrFlags::MOUNT_ATTR_NODEV),
        (is_device || flags.no_exec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (!is_device && flags.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (!is_device && flags.no_atime, MountAttrFlags::MOUNT_ATTR_NOATIME),
        (!is_device && flags.no_diratime, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
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
            assert_eq!(mount_flags(Kind::Directory, flags), always | added, "{flags:?}");
            let of_a_node = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            assert_eq!(mount_flags(Kind::Block, flags), of_a_node, "{flags:?}");
        }
    }
}
