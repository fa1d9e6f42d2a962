//! The table of volumes and of the targets at which they are published.
//!
//! The helper keeps it itself: the kernel lets a bound directory be renamed and removed, so a deletion must look here.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Mutex;

use bulkhead_protocol::{MountFlags, TargetPath, VolumeId};

use super::{Device, Kind, Record, Share, lock};
use crate::sys::file::FileId;
use crate::sys::quota::ProjectId;

/// A volume.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Index of its pool.
    pub pool: usize,
    /// Its project, in a pool with quotas.
    pub project: Option<ProjectId>,
    /// What is written down about it.
    pub record: Record,
    /// The directory that is published, or the image: what is mounted or attached is compared with it.
    pub content: FileId,
    /// Where it is published.
    pub targets: BTreeMap<TargetPath, Published>,
    /// The loop device its image is attached to.
    pub device: Option<Device>,
}

/// What is mounted at a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The directory or device node that was bound there.
    pub source: FileId,
    /// How it is mounted.
    pub flags: MountFlags,
}

impl Volume {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.record.spec.kind.into()
    }

    /// What it takes of its filesystem.
    pub fn share(&self) -> Share {
        Share::of(&self.record.spec, self.project)
    }
}

/// All volumes of all pools.
#[derive(Debug, Default)]
pub struct Volumes(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    volumes: BTreeMap<VolumeId, Volume>,
    targets: BTreeMap<TargetPath, VolumeId>,
}

impl Volumes {
    /// A copy of what is known of a volume. It stays true while the caller holds the volume's lock.
    pub fn get(&self, id: &VolumeId) -> Option<Volume> {
        lock(&self.0).volumes.get(id).cloned()
    }

    /// Adds a volume; `false` if one of that id is there.
    pub fn insert(&self, id: VolumeId, volume: Volume) -> bool {
        let mut table = lock(&self.0);
        if table.volumes.contains_key(&id) {
            return false;
        }
        table.volumes.insert(id, volume);
        true
    }

    /// Forgets a volume that is published nowhere.
    pub fn remove(&self, id: &VolumeId) {
        lock(&self.0).volumes.remove(id);
    }

    /// Changes what is known of a volume, targets aside.
    pub fn update(&self, id: &VolumeId, change: impl FnOnce(&mut Volume)) {
        if let Some(volume) = lock(&self.0).volumes.get_mut(id) {
            change(volume);
        }
    }

    /// Notes that a volume is published at a target.
    pub fn add_target(&self, id: &VolumeId, target: TargetPath, published: Published) {
        let mut table = lock(&self.0);
        if let Some(volume) = table.volumes.get_mut(id) {
            volume.targets.insert(target.clone(), published);
            table.targets.insert(target, id.clone());
        }
    }

    /// Notes that a volume is no longer published at a target.
    pub fn remove_target(&self, id: &VolumeId, target: &TargetPath) {
        let mut table = lock(&self.0);
        if let Some(volume) = table.volumes.get_mut(id) {
            volume.targets.remove(target);
        }
        if table.targets.get(target) == Some(id) {
            table.targets.remove(target);
        }
    }

    /// Which volume is published at a target.
    pub fn at(&self, target: &TargetPath) -> Option<VolumeId> {
        lock(&self.0).targets.get(target).cloned()
    }

    /// The volumes after `after` in the order of their ids, each as `page` makes it, until it returns `None`.
    pub fn page<T>(&self, after: Option<&VolumeId>, mut page: impl FnMut(&VolumeId, &Volume) -> Option<T>) -> Vec<T> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        lock(&self.0).volumes.range((from, Bound::Unbounded)).map_while(|(id, volume)| page(id, volume)).collect()
    }

    /// How many volumes a pool has.
    pub fn count(&self, pool: usize) -> usize {
        lock(&self.0).volumes.values().filter(|volume| volume.pool == pool).count()
    }
}
