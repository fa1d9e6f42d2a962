//! Where volumes are mounted, according to the host's mount table. A mount becomes a target if it can be reached as
//! one; any other that shows a volume pins it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bulkhead_protocol::{MountFlags, RelativePath, TargetPath, VolumeId};
use rustix::fs::FileType;

use super::Recovery;
use crate::log;
use crate::start::directory::Directory;
use crate::start::mountinfo::{Mount, Table};
use crate::state::{Kind, Pin, PublishDirectory, Published};
use crate::sys::loopdevice::MAJOR;
use crate::sys::{Errno, file, mount};

/// Where a directory lies, however its path is written.
#[derive(Debug)]
pub(super) struct Place {
    /// The mount that it was opened on.
    mount: u64,
    /// The peer group whose members show the same mounts.
    peers: Option<u32>,
    /// The directory in that mount's filesystem.
    inner: PathBuf,
}

impl Place {
    /// The place of a directory of the configuration.
    ///
    /// # Errors
    /// A sentence when it is not where it was when it was opened.
    pub(super) fn of(directory: &Directory, mounts: &Table) -> Result<Self, String> {
        let shown = directory.path.display();
        let status = file::status(&directory.descriptor).map_err(|errno| format!("cannot inspect {shown}: {errno}"))?;
        let found = mounts.get(&status.mount_id);
        let inner = found.and_then(|mount| Some((mount.peers, mount.inner(&directory.real_path)?)));
        let (peers, inner) = inner.ok_or_else(|| format!("{shown} was moved or unmounted during the start"))?;
        Ok(Self { mount: status.mount_id, peers, inner })
    }

    /// Which volume a part of a filesystem belongs to, if this is the place of a pool in it.
    pub(super) fn volume_at(&self, root: &Path) -> Option<VolumeId> {
        let below = root.strip_prefix(&self.inner).ok()?;
        below.components().next()?.as_os_str().to_str()?.parse().ok()
    }

    /// The path of a mount point below this directory, if its carrier is this directory's mount, or a peer that may
    /// show the same mounts.
    fn relative(&self, point: &Path, carrier: &Mount) -> Option<RelativePath> {
        let inner = carrier.inner(point).filter(|_| carrier.peers.is_some() && carrier.peers == self.peers)?;
        inner.strip_prefix(&self.inner).ok()?.to_str()?.parse().ok()
    }
}

/// The mount that carries a mount and any others that it covers at the same point; `None` if the jail has no copy of
/// these.
fn carrier<'a>(mounts: &'a Table, mount: &'a Mount) -> Option<(u64, &'a Mount)> {
    let mut covered = mount;
    loop {
        let parent = mounts.get(&covered.parent).filter(|_| !covered.unbindable)?;
        if parent.point != mount.point || parent.parent == covered.parent {
            return Some((covered.parent, parent));
        }
        covered = parent;
    }
}

impl Recovery {
    /// Finds where volumes are mounted.
    ///
    /// # Errors
    /// A sentence when that cannot be determined.
    pub(super) fn find_mounts(&self, mounts: &Table, publish: &[Directory]) -> Result<(), String> {
        let places = publish.iter().map(|directory| Place::of(directory, mounts)).collect::<Result<Vec<_>, _>>()?;
        let mut noted = BTreeSet::new();
        let mut copies = Vec::new();
        for mount in mounts.values().filter(|mount| self.may_be_ours(mount)) {
            let carrier = carrier(mounts, mount);
            let below = places.iter().zip(&self.state.publish_directories).find_map(|(place, directory)| {
                let (id, carrier) = carrier?;
                let path = place.relative(&mount.point, carrier)?;
                Some((place.mount == id, directory, TargetPath { directory: directory.name.clone(), path }))
            });
            match below {
                Some((true, directory, target)) => {
                    noted.extend(self.note(mount, directory, &target)?.map(|id| (id, target)));
                }
                below => copies.push((self.named(mount), mount, below.map(|(.., target)| target))),
            }
        }
        for (named, mount, target) in copies {
            let Some(id) = named else { continue };
            // A copy that the kernel made on a peer goes away with the original.
            if target.is_none_or(|target| !noted.contains(&(id.clone(), target))) {
                self.pin(id, mount, None);
            }
        }
        Ok(())
    }

    /// Whether a mount is worth inspecting: any other may hang.
    fn may_be_ours(&self, mount: &Mount) -> bool {
        device_number(mount).is_some() || self.filesystems.contains_key(&mount.device)
    }

    /// Which volume the table says a mount shows, in whole or in part.
    fn named(&self, mount: &Mount) -> Option<VolumeId> {
        if let Some(number) = device_number(mount) {
            return self.devices.get(&number).cloned();
        }
        let pools = self.places.iter().filter(|(device, _)| *device == mount.device);
        let id = pools.filter_map(|(_, place)| place.volume_at(&mount.root)).next();
        id.filter(|id| self.state.volumes.get(id).is_some())
    }

    /// Notes a mount below a publish directory, and returns the volume it shows.
    fn note(
        &self,
        mount: &Mount,
        directory: &PublishDirectory,
        target: &TargetPath,
    ) -> Result<Option<VolumeId>, String> {
        let named = self.named(mount);
        if named.is_none() && device_number(mount).is_some() {
            self.unmount_outlived(directory, target);
        }
        let found = match self.look(directory, target) {
            Ok(found) => found,
            Err(Errno::NOMEM) => return Err(format!("cannot inspect target {target}: {}", Errno::NOMEM)),
            // Something hides it, or is in the way. The table says enough.
            Err(_) => None,
        };
        match (named, found) {
            // The kubelet binds what we published again, at paths of its own.
            (named, Some((id, kind, published)))
                if named.as_ref().is_none_or(|named| *named == id) && directory.check_shape(target, kind).is_ok() =>
            {
                let device = self.state.volumes.get(&id).and_then(|volume| volume.device);
                let flags = device.map_or_else(
                    || mount.flags(),
                    |device| MountFlags { read_only: device.read_only, ..MountFlags::default() },
                );
                self.state.volumes.add_target(&id, target.clone(), Published { flags, ..published });
                Ok(Some(id))
            }
            (named, found) => {
                let id = named.or(found.map(|(id, ..)| id));
                if let Some(id) = id.clone() {
                    // A mount that is in the table but not in the jail appeared while the jail was being made: looking
                    // at the target says nothing about it.
                    let target = Some(target.clone()).filter(|_| !directory.is_free(&target.path));
                    self.pin(id, mount, target);
                }
                Ok(id)
            }
        }
    }

    /// What the jail shows at a target, if it belongs to a volume: which volume, its kind, and what is mounted, without
    /// its flags.
    fn look(
        &self,
        directory: &PublishDirectory,
        target: &TargetPath,
    ) -> Result<Option<(VolumeId, Kind, Published)>, Errno> {
        let name = target.path.split_last().1;
        let parent = directory.open_parent(&target.path).map_err(|obstacle| obstacle.errno)?;
        let status = file::status_at(&parent, name)?;
        let (id, kind) = match status.file_type {
            FileType::Directory => (self.owners.get(&status.id), Kind::Directory),
            FileType::BlockDevice if status.device.0 == MAJOR => (self.devices.get(&status.device.1), Kind::Block),
            _ => return Ok(None),
        };
        let Some(id) = id.filter(|_| status.mount_root) else { return Ok(None) };
        let (parent, mount) = (file::status(&parent)?.id, mount::unique_id(&parent, name)?);
        let published = Published { source: status.id, flags: MountFlags::default(), parent, mount };
        Ok(Some((id.clone(), kind, published)))
    }

    fn pin(&self, id: VolumeId, mount: &Mount, target: Option<TargetPath>) {
        let point = mount.point.clone();
        match target {
            Some(_) => log::info!("a volume is also mounted volume={id} path={point:?}"),
            None => log::warning!(
                "a volume is mounted where this helper cannot see it; it will not be deleted before the next start volume={id} path={point:?}"
            ),
        }
        self.state.pins.add(id, Pin { point, target });
    }
}

/// The number of the loop device whose node is mounted, if it may be one that a helper made in its tmpfs.
pub(super) fn device_number(mount: &Mount) -> Option<u32> {
    let root = mount.root.to_str().filter(|_| mount.filesystem == "tmpfs")?;
    root.strip_suffix("//deleted").unwrap_or(root).strip_prefix("/loop")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(root: &str, point: &str, peers: Option<u32>) -> Mount {
        Mount {
            parent: 1,
            device: (8, 1),
            root: root.into(),
            point: point.into(),
            options: Vec::new(),
            peers,
            slave: false,
            unbindable: false,
            filesystem: "xfs".to_owned(),
        }
    }

    fn place(inner: &str) -> Place {
        Place { mount: 1, peers: Some(7), inner: inner.into() }
    }

    #[test]
    fn a_mount_below_a_publish_directory_is_found_however_its_path_is_spelled() {
        let place = place("/published");
        let relative = |carrier: &Mount, point: &str| {
            place.relative(Path::new(point), carrier).map(|path| path.as_str().to_owned())
        };
        let disk = mount("/", "/srv", Some(7));
        assert_eq!(relative(&disk, "/srv/published/a"), Some("a".to_owned()));
        assert_eq!(relative(&disk, "/srv/published/a b/c"), Some("a b/c".to_owned()));
        for point in ["/srv/published", "/srv/published2/a", "/srv", "/published/a", "/", "/a"] {
            assert_eq!(relative(&disk, point), None, "{point}");
        }
        let alias = mount("/published", "/mnt", Some(7));
        assert_eq!(relative(&alias, "/mnt/a"), Some("a".to_owned()));
        for other in [mount("/", "/srv", Some(8)), mount("/", "/srv", None)] {
            assert_eq!(relative(&other, "/srv/published/a"), None, "{other:?} is no peer");
        }
    }

    #[test]
    fn mounts_at_one_point_have_one_carrier() {
        let at = |parent: u64, point: &str| Mount { parent, ..mount("/", point, None) };
        let mut mounts = Table::from([(1, at(0, "/")), (2, at(1, "/a")), (3, at(2, "/a")), (4, at(3, "/a/b"))]);
        let of = |mounts: &Table, id: u64| carrier(mounts, &mounts[&id]).map(|(id, _)| id);
        assert_eq!([1, 2, 3, 4].map(|id| of(&mounts, id)), [None, Some(1), Some(1), Some(3)]);
        mounts.get_mut(&2).expect("a mount").unbindable = true;
        assert_eq!([2, 3, 4].map(|id| of(&mounts, id)), [None, None, Some(3)], "the jail has no copy of it");
    }

    #[test]
    fn every_part_of_a_volume_names_it_and_nothing_else_does() {
        let pool = place("/srv/pool/");
        let volume = |root: &str| pool.volume_at(Path::new(root)).map(|id| id.as_str().to_owned());
        for part in ["", "/data", "/data/sub/deep", "/data//deleted", "/renamed", "//deleted"] {
            assert_eq!(volume(&format!("/srv/pool/vol-a{part}")), Some("vol-a".to_owned()), "{part}");
        }
        for other in ["/", "/srv", "/srv/pool", "/srv/pool/", "/srv/pool2/vol-a", "/srv/pool/.deleted.1.vol-a/data"] {
            assert_eq!(volume(other), None, "{other}");
        }
        assert_eq!(place("/").volume_at(Path::new("/vol-a/data")), Some("vol-a".parse().expect("an id")));
    }

    #[test]
    fn a_helpers_node_is_known_by_its_name_also_when_it_was_removed() {
        let number = |filesystem: &str, root: &str| {
            device_number(&Mount { filesystem: filesystem.to_owned(), ..mount(root, "/t", None) })
        };
        assert_eq!(number("tmpfs", "/loop7"), Some(7));
        assert_eq!(number("tmpfs", "/loop7//deleted"), Some(7));
        for (filesystem, root) in
            [("xfs", "/loop7"), ("tmpfs", "/"), ("tmpfs", "/loop"), ("tmpfs", "/loop7/x"), ("tmpfs", "/x/loop7")]
        {
            assert_eq!(number(filesystem, root), None, "{filesystem} {root}");
        }
    }
}
