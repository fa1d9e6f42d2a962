//! Where volumes are published, according to the host's mount table. Any other mount of a volume need not be known: the
//! table is asked again when it matters.

use std::path::Path;

use bulkhead_protocol::{ErrorKind, MountFlags, RelativePath, TargetPath, VolumeId};

use super::Recovery;
use crate::ops;
use crate::start::mounts::{Mounts, Position};
use crate::start::refusal::Refusal;
use crate::state::{PublishDirectory, Published, Volume, node, volume_in};
use crate::sys::loopdevice::MAJOR;
use crate::sys::mountinfo::Mount;

impl Recovery {
    /// Finds the targets at which volumes are published. `positions` are those of the publish directories.
    ///
    /// # Errors
    /// A sentence when it cannot be determined what is mounted at one.
    pub(super) fn find_published(&mut self, mounts: &Mounts, positions: &[Position]) -> Result<(), Refusal> {
        for mount in mounts.values() {
            let Some(id) = self.named(mount) else { continue };
            let directories = positions.iter().zip(&self.publish_directories);
            let target = carrier(mounts, mount).and_then(|carrier| {
                directories
                    .filter_map(|(position, directory)| {
                        let path = relative(position, carrier, &mount.point)?;
                        Some((directory, TargetPath { directory: directory.name.clone(), path }))
                    })
                    .next()
            });
            let published = match target {
                Some((directory, target)) => self.find(mount, &id, directory, &target)?,
                None => None,
            };
            let is_its_own = mount.device.0 == MAJOR && self.devices.get(&mount.device.1) == Some(&id);
            let note = |volume: &mut Volume| {
                // All mounts of its own filesystem say the same, and others nothing of it.
                if is_its_own {
                    volume.label = mount.label();
                }
                match published {
                    Some(published) => volume.publish(published),
                    None => volume.seen_elsewhere = true,
                }
            };
            self.volumes.change(&id, note);
        }
        Ok(())
    }

    /// Returns which volume the table says a mount shows, in whole or in part.
    fn named(&self, mount: &Mount) -> Option<VolumeId> {
        // A filesystem on its device.
        let (major, minor) = mount.device;
        if let Some(id) = self.devices.get(&minor).filter(|_| major == MAJOR) {
            return Some(id.clone());
        }
        if let Some(number) = node(&self.nodes, mount) {
            return self.devices.get(&number).cloned();
        }
        let places = self.pools.iter().filter_map(|pool| Some(&pool.state.as_ref().ok()?.place));
        let id = places.filter_map(|place| volume_in(place.device, &place.inner, mount)).next();
        id.filter(|id| self.volumes.get(id).is_some())
    }

    /// Returns what is published at a target, if the jail shows that it is the volume.
    fn find(
        &self,
        mount: &Mount,
        id: &VolumeId,
        directory: &PublishDirectory,
        target: &TargetPath,
    ) -> Result<Option<Published>, Refusal> {
        let Some(volume) = self.volumes.get(id) else { return Ok(None) };
        // The kubelet binds what we published again, at paths of its own.
        if directory.check(target, volume.kind()).is_err() {
            return Ok(None);
        }
        let of_device = |read_only| MountFlags { read_only, ..MountFlags::default() };
        let device = volume.device.filter(|_| volume.kind().is_device());
        let flags = device.map_or_else(|| mount.flags(), |device| of_device(device.read_only));
        match ops::find(&self.placer, (directory, target), &volume, flags) {
            // It cannot be reached as a target: something is in the way, or hides it.
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Refused) => Ok(None),
            found => found.map_err(|error| Refusal::from(error.to_string())),
        }
    }
}

/// The path of a mount point below a publish directory, if its carrier is that directory's mount.
fn relative(directory: &Position, carrier: &Mount, point: &Path) -> Option<RelativePath> {
    let inner = carrier.inner(point).filter(|_| carrier.id == directory.mount)?;
    inner.strip_prefix(&directory.inner).ok()?.to_str()?.parse().ok()
}

/// The mount that carries a mount and any others that it covers at the same point; `None` if the jail has no copy of
/// these.
fn carrier<'a>(mounts: &'a Mounts, mount: &'a Mount) -> Option<&'a Mount> {
    let mut covered = mount;
    loop {
        let parent = mounts.get(&covered.parent).filter(|_| !covered.unbindable)?;
        if parent.point != mount.point || parent.parent == covered.parent {
            return Some(parent);
        }
        covered = parent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::start::mounts::tests::mount;

    #[test]
    fn mounts_at_one_point_have_one_carrier() {
        let at = |id: u64, parent: u64, point: &str| (id, Mount { id, parent, ..mount("/", point) });
        let mut mounts = Mounts::from([at(1, 0, "/"), at(2, 1, "/a"), at(3, 2, "/a"), at(4, 3, "/a/b")]);
        let of = |mounts: &Mounts, id: u64| carrier(mounts, &mounts[&id]).map(|mount| mount.id);
        assert_eq!([1, 2, 3, 4].map(|id| of(&mounts, id)), [None, Some(1), Some(1), Some(3)]);
        mounts.get_mut(&2).expect("a mount").unbindable = true;
        assert_eq!([2, 3, 4].map(|id| of(&mounts, id)), [None, None, Some(3)], "the jail has no copy of it");
    }

    #[test]
    fn a_mount_below_a_publish_directory_is_found_by_its_path_there() {
        let directory = Position { mount: 7, device: (8, 1), inner: "/published".into() };
        let path = |carrier: &Mount, point: &str| {
            relative(&directory, carrier, Path::new(point)).map(|path| path.as_str().to_owned())
        };
        let disk = Mount { id: 7, ..mount("/", "/srv") };
        assert_eq!(path(&disk, "/srv/published/a"), Some("a".to_owned()));
        assert_eq!(path(&disk, "/srv/published/a b/c"), Some("a b/c".to_owned()));
        for point in ["/srv/published", "/srv/published2/a", "/srv", "/published/a", "/", "/a"] {
            assert_eq!(path(&disk, point), None, "{point}");
        }
        assert_eq!(path(&Mount { id: 8, ..disk }, "/srv/published/a"), None, "another mount of the same disk");
    }
}
