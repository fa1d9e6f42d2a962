//! The table of volumes and of the targets at which they are published.
//!
//! The helper has to keep track itself: the kernel allows a bind-mounted directory to be renamed and removed, so a
//! deletion must look here.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

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
    /// What is recorded about it.
    pub record: Record,
    /// The directory that is published, or the image; what is mounted or attached is compared with it.
    pub content: FileId,
    /// Where it is published. Most volumes have one target, for which a map would take ten times the memory.
    pub targets: Box<[(Arc<TargetPath>, Published)]>,
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
    /// The directory that held the target when it was mounted there.
    pub parent: FileId,
    /// The mount's unique id, on kernels that have such ids.
    pub mount: Option<NonZeroU64>,
}

impl Volume {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.record.spec.kind.into()
    }

    /// What is mounted at a target, if it is published there.
    pub fn published_at(&self, target: &TargetPath) -> Option<&Published> {
        self.targets.iter().find(|(path, _)| **path == *target).map(|(_, published)| published)
    }

    /// What it takes up on its filesystem.
    pub fn share(&self) -> Share {
        Share::of(&self.record.spec, self.project)
    }
}

/// All volumes of all pools.
#[derive(Debug, Default)]
pub struct Volumes(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    volumes: BTreeMap<VolumeId, Arc<Volume>>,
    targets: BTreeMap<Arc<TargetPath>, VolumeId>,
}

impl Volumes {
    /// What is known about a volume. It stays true while the caller holds the volume's lock.
    pub fn get(&self, id: &VolumeId) -> Option<Arc<Volume>> {
        lock(&self.0).volumes.get(id).cloned()
    }

    /// The index of a volume's pool.
    pub fn pool(&self, id: &VolumeId) -> Option<usize> {
        lock(&self.0).volumes.get(id).map(|volume| volume.pool)
    }

    /// Adds a volume; `false` if there already is one with that id.
    pub fn insert(&self, id: VolumeId, volume: Volume) -> bool {
        let mut table = lock(&self.0);
        if table.volumes.contains_key(&id) {
            return false;
        }
        table.volumes.insert(id, Arc::new(volume));
        true
    }

    /// Forgets a volume that is published nowhere.
    pub fn remove(&self, id: &VolumeId) {
        lock(&self.0).volumes.remove(id);
    }

    /// Changes what is known about a volume, except its targets.
    pub fn update(&self, id: &VolumeId, change: impl FnOnce(&mut Volume)) {
        if let Some(volume) = lock(&self.0).volumes.get_mut(id) {
            change(Arc::make_mut(volume));
        }
    }

    /// Notes that a volume is published at a target.
    pub fn add_target(&self, id: &VolumeId, target: TargetPath, published: Published) {
        let mut table = lock(&self.0);
        let target = Arc::new(target);
        // Use the table's own id, so that its text is stored only once.
        let own = table.volumes.get_key_value(id).map(|(own, _)| own.clone());
        if let (Some(own), Some(volume)) = (own, table.volumes.get_mut(id)) {
            let others = volume.targets.iter().filter(|(path, _)| *path != target).cloned();
            Arc::make_mut(volume).targets = others.chain([(Arc::clone(&target), published)]).collect();
            table.targets.insert(target, own);
        }
    }

    /// Notes that a volume is no longer published at a target.
    pub fn remove_target(&self, id: &VolumeId, target: &TargetPath) {
        let mut table = lock(&self.0);
        if let Some(volume) = table.volumes.get_mut(id) {
            let others = volume.targets.iter().filter(|(path, _)| **path != *target).cloned();
            Arc::make_mut(volume).targets = others.collect();
        }
        if table.targets.get(target) == Some(id) {
            table.targets.remove(target);
        }
    }

    /// Which volume is published at a target.
    pub fn at(&self, target: &TargetPath) -> Option<VolumeId> {
        lock(&self.0).targets.get(target).cloned()
    }

    /// At most `limit` volumes after `after`, in the order of their ids, each as `show` presents it.
    pub fn page<T>(
        &self,
        after: Option<&VolumeId>,
        limit: usize,
        show: impl Fn(&VolumeId, &Volume) -> Option<T>,
    ) -> Vec<T> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let table = lock(&self.0);
        let volumes = table.volumes.range((from, Bound::Unbounded)).take(limit);
        volumes.filter_map(|(id, volume)| show(id, volume)).collect()
    }

    /// The block volumes of a pool that no project accounts for.
    pub fn uncounted_images(&self, pool: usize) -> Vec<VolumeId> {
        let table = lock(&self.0);
        let is_uncounted =
            |volume: &Volume| volume.pool == pool && volume.project.is_none() && volume.kind() == Kind::Block;
        table.volumes.iter().filter(|(_, volume)| is_uncounted(volume)).map(|(id, _)| id.clone()).collect()
    }

    /// How many volumes there are.
    pub fn number(&self) -> usize {
        lock(&self.0).volumes.len()
    }

    /// At how many targets they are published.
    pub fn number_of_targets(&self) -> usize {
        lock(&self.0).targets.len()
    }

    /// How many volumes a pool has.
    pub fn count(&self, pool: usize) -> usize {
        lock(&self.0).volumes.values().filter(|volume| volume.pool == pool).count()
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::{BlockSize, Bytes, NameHash, VolumeKind, VolumeSpec};

    use super::*;

    fn id(text: &str) -> VolumeId {
        text.parse().expect("a volume id")
    }

    fn target(path: &str) -> TargetPath {
        TargetPath { directory: "work".parse().expect("a name"), path: path.parse().expect("a path") }
    }

    fn volume(pool: usize) -> Volume {
        let kind = VolumeKind::Image { sparse: true, block_size: BlockSize::B512 };
        let spec = VolumeSpec { size: Bytes::MAX, kind, name_hash: NameHash([0; 32]) };
        Volume {
            pool,
            project: None,
            record: Record { spec, unused: true },
            content: FileId { device: (0, 0), inode: 1 },
            targets: Box::default(),
            device: None,
        }
    }

    fn table(ids: &[&str]) -> Volumes {
        let volumes = Volumes::default();
        for (pool, name) in ids.iter().enumerate() {
            assert!(volumes.insert(id(name), volume(pool % 2)));
        }
        volumes
    }

    fn published() -> Published {
        let file = |inode| FileId { device: (0, 0), inode };
        Published { source: file(2), flags: MountFlags::default(), parent: file(3), mount: None }
    }

    #[test]
    fn an_id_is_taken_once() {
        let volumes = table(&["vol-a"]);
        assert!(!volumes.insert(id("vol-a"), volume(7)));
        assert_eq!(volumes.get(&id("vol-a")).map(|volume| volume.pool), Some(0), "the first one stays");
        volumes.remove(&id("vol-a"));
        assert!(volumes.get(&id("vol-a")).is_none());
        assert!(volumes.insert(id("vol-a"), volume(7)));
    }

    #[test]
    fn a_page_begins_after_an_id_and_ends_at_its_limit() {
        let volumes = table(&["vol-c", "vol-a", "vol-d", "vol-b"]);
        let page = |after: Option<&str>, limit| {
            volumes.page(after.map(id).as_ref(), limit, |id, _| Some(id.as_str().to_owned())).join(" ")
        };
        assert_eq!(page(None, 2), "vol-a vol-b");
        assert_eq!(page(Some("vol-b"), 2), "vol-c vol-d");
        assert_eq!(page(Some("vol-bb"), 9), "vol-c vol-d", "the id need not exist");
        assert_eq!(page(Some("vol-d"), 2), "");
        assert_eq!(page(None, 0), "");
    }

    #[test]
    fn volumes_are_counted_by_pool() {
        let volumes = table(&["vol-a", "vol-b", "vol-c"]);
        assert_eq!([volumes.count(0), volumes.count(1), volumes.count(2), volumes.number()], [2, 1, 0, 3]);
    }

    #[test]
    fn the_images_without_a_project_are_known() {
        let volumes = table(&["vol-a", "vol-b", "vol-c"]);
        volumes.update(&id("vol-c"), |volume| volume.project = Some(ProjectId(7)));
        assert_eq!(volumes.uncounted_images(0), [id("vol-a")]);
    }

    #[test]
    fn a_target_belongs_to_one_volume_until_it_is_removed() {
        let volumes = table(&["vol-a", "vol-b"]);
        volumes.add_target(&id("vol-a"), target("a"), published());
        assert_eq!(volumes.at(&target("a")), Some(id("vol-a")));
        assert_eq!(volumes.at(&target("b")), None);
        assert_eq!(volumes.number_of_targets(), 1);
        let volume = volumes.get(&id("vol-a")).expect("it exists");
        assert_eq!((volume.targets.len(), volume.published_at(&target("a"))), (1, Some(&published())));
        assert_eq!(volume.published_at(&target("b")), None);
        volumes.remove_target(&id("vol-b"), &target("a"));
        assert_eq!(volumes.at(&target("a")), Some(id("vol-a")), "another volume's target stays");
        volumes.remove_target(&id("vol-a"), &target("a"));
        assert_eq!(volumes.at(&target("a")), None);
    }

    #[test]
    fn what_is_known_of_a_volume_is_changed_and_its_share_is_that_of_its_record() {
        let volumes = table(&["vol-a", "vol-b"]);
        volumes.update(&id("vol-a"), |volume| volume.project = Some(ProjectId(7)));
        let of = |name| volumes.get(&id(name)).expect("it exists");
        assert_eq!((of("vol-a").project, of("vol-b").project), (Some(ProjectId(7)), None));
        assert_eq!(of("vol-a").share(), Share::of(&of("vol-a").record.spec, Some(ProjectId(7))));
    }

    #[test]
    fn nothing_is_published_of_a_volume_that_does_not_exist() {
        let volumes = Volumes::default();
        volumes.add_target(&id("vol-a"), target("a"), published());
        assert_eq!(volumes.at(&target("a")), None);
        volumes.update(&id("vol-a"), |_| panic!("there is nothing to change"));
    }
}
