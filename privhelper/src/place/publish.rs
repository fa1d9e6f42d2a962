//! Binding what volumes show to targets, unmounting it, and looking at what is there. Whatever the keeper asks, only
//! volumes' content is bound, where the kubelet has recorded that it belongs; and only what shows such content is unmounted.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use bulkhead_protocol::{MountFlags, TargetPath, VolumeId};
use rustix::fs::{FileType, OFlags};

use super::attributes::{self, Attribute};
use super::kind::{DATA, Kind, open_content};
use super::target::{Mounted, Target, proof};
use super::wire::{
    Access, Answer, Claims, Content, Failure, Found, Looked, Proof, Refusal, Shown, Unbound, Unreadable,
};
use super::{Place, PoolPlace};
use crate::sys::loopdevice::{self, MAJOR, OURS};
use crate::sys::mount::{self, MountAttrFlags};
use crate::sys::{Errno, Error as SysError, failed_with, file, xfs};

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
            return Ok(Answer::Unbound(Unbound::Apart));
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
        if file::status(&image)?.id == bound && is_marked == (kind == Kind::Filesystem) {
            return Ok(());
        }
        Err(Refusal::Replaced.into())
    }

    /// Unmounts everything at the target that is proved to be this volume, then removes the target if it was made for a
    /// volume.
    pub fn unbind(&self, at: &TargetPath, shown: &Shown, claims: Claims) -> Result<Unbound, Failure> {
        let below = self.below_for(at, shown.content.kind)?;
        let target = match Target::open(below, &at.path) {
            Err(Failure::Refused(Refusal::NoParent)) => None,
            target => Some(target?),
        };
        let is_apart = || !claims.is_joined || below.is_moved();
        let mut ours = false;
        if let Some(target) = &target {
            while let Some(mount) = target.mount()? {
                match self.shows(target, mount, shown)? {
                    None => return Ok(Unbound::Unreadable),
                    Some(false) if !self.is_vacant(mount, shown.content.kind) => return Ok(Unbound::Other),
                    // Otherwise the host would keep what is unmounted here.
                    Some(_) if is_apart() => return Ok(Unbound::Apart),
                    Some(_) => self.check_ours(target, mount)?,
                }
                target.unmount()?;
                ours = true;
            }
        }
        if claims.proof.is_some_and(|proof| !self.is_gone(at, proof)) {
            return Ok(Unbound::Moved);
        }
        if let Some(target) = target
            && (ours || target.is_marked()?)
        {
            // Removing it would tear off what is mounted there on a host that it is apart from.
            if is_apart() {
                return Ok(Unbound::Apart);
            }
            target.clear(None)?;
        }
        Ok(Unbound::Done)
    }

    /// Looks at what is at a target.
    pub fn look(
        &self,
        at: &TargetPath,
        shown: Option<&Shown>,
        to_publish: Option<&(VolumeId, Kind)>,
    ) -> Result<Looked, Failure> {
        if let Some((volume, kind)) = to_publish {
            self.below_for(at, *kind)?.check_vol_data(&at.path, volume, &self.driver)?;
        }
        let target = Target::open(self.below(&at.directory)?, &at.path)?;
        let parent = target.parent_id()?;
        let mount = match target.mount()? {
            None => None,
            Some(Mounted::Unreadable) => {
                let shows = shown.map(|shown| self.shows(&target, Mounted::Unreadable, shown));
                Some(Found::Unreadable(shows.transpose()?.flatten()))
            }
            Some(mount @ Mounted::Seen(status)) => {
                let shows = shown.map(|shown| self.shows(&target, mount, shown)).transpose()?.flatten();
                Some(Found::Seen(status.id, proof(target.unique_id()?, parent), shows.unwrap_or(false)))
            }
        };
        let node = |status: file::Status| (status.file_type == FileType::BlockDevice).then_some(status.device);
        let device = if let Some(Found::Unreadable(_)) = mount { None } else { target.status()?.and_then(node) };
        Ok(Looked { parent, mount, device })
    }

    /// Returns whether a mount shows the volume: its directory, the node of its loop device, or what was published there;
    /// `None` if it cannot be inspected, and nothing is known of it. If its filesystem has shut down, that must be the one of
    /// the volume's pool, and the volume must have been published.
    fn shows(&self, target: &Target<'_>, mount: Mounted, shown: &Shown) -> Result<Option<bool>, Failure> {
        let Content { kind, id, device, .. } = shown.content;
        let device = device.map(|number| (MAJOR, number));
        let Mounted::Seen(status) = mount else {
            return match shown.unreadable {
                None => Ok(None),
                Some(Unreadable::IsOnDevice(is_on_device)) => Ok(Some(is_on_device)),
                Some(Unreadable::PoolShutDown) if shown.published.is_some() => {
                    let pool = file::filesystem_id(&self.pool(&shown.content.pool)?.directory)?;
                    Ok(Some(target.filesystem_id()? == pool))
                }
                Some(_) => Ok(Some(false)),
            };
        };
        let own = match kind {
            Kind::Directory => status.id == id,
            Kind::Block => status.file_type == FileType::BlockDevice && Some(status.device) == device,
            Kind::Filesystem => Some(status.id.device) == device,
            Kind::Snapshot => false,
        };
        Ok(Some(own || shown.published == Some(status.id)))
    }

    /// Returns whether a mount shows a node that a helper has made, of a device that is bound to nothing any more.
    fn is_vacant(&self, mount: Mounted, kind: Kind) -> bool {
        let Mounted::Seen(status) = mount else { return false };
        let (major, number) = status.device;
        let is_node = kind == Kind::Block && status.file_type == FileType::BlockDevice && major == MAJOR;
        is_node && OURS.contains(&number) && self.nodes.is_vacant(number)
    }

    /// Checks that a mount shows something of ours, whatever the keeper says of it: a node or the filesystem of a loop device
    /// of ours, or a part of a pool. Of one that cannot be inspected, the kernel still says which filesystem it is.
    fn check_ours(&self, target: &Target<'_>, mount: Mounted) -> Result<(), Failure> {
        let Mounted::Seen(status) = mount else {
            let found = target.filesystem_id()?;
            let is_device = xfs::loop_device_of(found).is_some_and(|number| OURS.contains(&number));
            let is_pool = |pool: &PoolPlace| file::filesystem_id(&pool.directory).is_ok_and(|own| own == found);
            return if is_device || self.pools.iter().any(is_pool) { Ok(()) } else { Err(Refusal::OfNobody.into()) };
        };
        let is_device = |(major, number): (u32, u32)| major == MAJOR && OURS.contains(&number);
        let is_node = status.file_type == FileType::BlockDevice && is_device(status.device);
        if is_node || is_device(status.id.device) {
            return Ok(());
        }
        let root = target.unique_id()?.and_then(|id| mount::root_of(id).ok());
        let is_below = |pool: &PoolPlace| {
            let own = mount::unique_id(&pool.directory, "").ok().flatten().and_then(|id| mount::root_of(id).ok());
            // KERNEL(6.8): until then, only the filesystem is known.
            root.as_ref().zip(own).is_none_or(|(root, own)| root.starts_with(own))
        };
        let is_part = |pool: &&PoolPlace| pool.device == status.id.device && is_below(pool);
        if self.pools.iter().any(|pool| is_part(&pool)) {
            return Ok(());
        }
        Err(Refusal::OfNobody.into())
    }

    /// Returns whether what was published at a target is certainly no longer mounted, neither there nor anywhere it was
    /// moved to. A directory can be renamed while there is a mount in it, so the path alone proves nothing: what the kernel
    /// says about the mount itself does or, where it cannot be asked, that nothing is mounted in the directory in which it
    /// was.
    fn is_gone(&self, at: &TargetPath, proof: Proof) -> bool {
        match proof {
            Proof::Id(id) => is_mount_gone(id),
            Proof::Place(parent) => {
                self.look(at, None, None).is_ok_and(|found| found.mount.is_none() && found.parent == parent)
            }
        }
    }
}

/// Returns whether a mount is certainly gone.
pub fn is_mount_gone(id: NonZeroU64) -> bool {
    failed_with(&mount::find(id), Errno::NOENT)
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
