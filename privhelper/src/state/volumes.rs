//! The table of volumes: one row for each, from being made to being gone. What is promised, which project ids are taken
//! and how many volumes and targets there are are sums over the rows, kept by the one function that changes a row. Volumes that
//! are not served have no row: what they take up is part of the sums from the start.

mod found;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use bulkhead_protocol::{CallId, Error, MountFlags, Origin, PoolName, SecurityContext, TargetPath, VolumeId};

pub use self::found::FoundVolumes;
use super::layout::creating_name;
use super::{Aside, Device, Kind, Pool, Record, lock};
use crate::bookkeeping::{Emptied, Progress, Released, Share};
use crate::place::wire::{Content, Proof};
use crate::sys::Errno;
use crate::sys::file::FileId;
use crate::sys::quota::ProjectId;

/// A volume.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its pool.
    pub pool: Arc<Pool>,
    /// Its project, in a pool with quotas.
    pub project: Option<ProjectId>,
    /// What is recorded about it.
    pub record: Record,
    /// What it is promised in addition while its settings are being changed, in bytes.
    pub growth: Option<u64>,
    /// The directory that is published, or the image; what is mounted or attached is compared with it.
    pub content: FileId,
    /// Where it is published, or may still be. Most volumes have one target, for which a map would take ten times the
    /// memory.
    pub published: Box<[Published]>,
    /// The loop device its image is attached to.
    pub device: Option<Device>,
    /// The label of all files of the filesystem that is mounted from that device, or is to be, unless each has its own.
    pub label: Option<SecurityContext>,
    /// Whether the start saw it mounted where it is not published. It may not be any more: the host is asked again
    /// before anything depends on it.
    pub seen_elsewhere: bool,
    /// Why its filesystem could not be mounted when that was last tried.
    pub unmountable: Option<Errno>,
    /// What it is a copy of, if it is one.
    pub origin: Option<Arc<Origin>>,
    /// How many bytes a snapshot refers to; 0 for any other volume.
    pub allocated: u64,
    /// Where the allocation of a sparse image, which was requested, continues.
    pub filled: u64,
}

/// What was mounted at a target, until it is proved to be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The target.
    pub target: Arc<TargetPath>,
    /// The directory or device node that was bound there.
    pub source: FileId,
    /// How it is mounted.
    pub flags: MountFlags,
    /// What proves that it is gone.
    pub proof: Proof,
}

/// Its names: the key of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Volume(VolumeId),
    Deleted(Box<(PoolName, String)>),
}

/// A volume from being made to being gone.
#[derive(Clone, Debug)]
enum Row {
    Making(Arc<Pool>, Share),
    Live(Arc<Volume>),
    Deleted(Box<Deleted>),
}

/// A deleted volume, or one whose creation failed: until nothing is left of it, it takes up its share.
#[derive(Clone, Debug)]
pub struct Deleted {
    /// Its pool.
    pub pool: Arc<Pool>,
    /// What it takes up.
    pub share: Share,
    /// How far its end has progressed.
    pub progress: Progress,
    /// The call that has deleted it; none if a helper that was restarted has found it.
    pub call: CallId,
}

/// All volumes of all pools. The row of a volume is changed through [`super::Held`] only; while a start looks for them, there
/// are [`FoundVolumes`] instead.
#[derive(Debug)]
pub struct Volumes(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    rows: BTreeMap<Key, Row>,
    /// By the device of their filesystem.
    sums: BTreeMap<(u32, u32), Sums>,
    targets: usize,
}

/// What the rows of a filesystem take up together.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    promised: u64,
    rows: usize,
    projects: BTreeSet<ProjectId>,
}

impl Volume {
    /// One that is published nowhere, and no copy.
    pub fn new(pool: Arc<Pool>, project: Option<ProjectId>, record: Record, content: FileId) -> Self {
        Self {
            pool,
            project,
            record,
            growth: None,
            content,
            published: Box::default(),
            device: None,
            label: None,
            seen_elsewhere: false,
            unmountable: None,
            origin: None,
            allocated: 0,
            filled: 0,
        }
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.record.spec.kind.into()
    }

    /// Returns whether it is a snapshot of which nobody was told: others that were to be taken along with it may be missing.
    pub fn is_unfinished(&self) -> bool {
        self.kind() == Kind::Snapshot && self.record.unused
    }

    /// Returns whether it is a snapshot that was taken along with another one of its pool, or is that.
    pub fn is_along_with(&self, other: &Volume) -> bool {
        let moment = |volume: &Volume| Some((volume.record.spec.name_hash, volume.origin.as_ref()?.copied));
        let are_snapshots = self.kind() == Kind::Snapshot && other.kind() == Kind::Snapshot;
        are_snapshots && Arc::ptr_eq(&self.pool, &other.pool) && moment(self) == moment(other)
    }

    /// What is bound of it.
    pub fn content(&self) -> Content {
        let device = self.device.map(Device::number);
        Content { pool: self.pool.config.name.clone(), kind: self.kind(), id: self.content, device }
    }

    /// Returns what is mounted at a target, if it is published there.
    pub fn published_at(&self, target: &TargetPath) -> Option<&Published> {
        self.published.iter().find(|published| *published.target == *target)
    }

    /// Adds a target, or changes what is mounted there.
    pub fn publish(&mut self, new: Published) {
        let others = self.published.iter().filter(|published| published.target != new.target).cloned();
        self.published = others.chain([new.clone()]).collect();
    }

    /// Forgets a target at which nothing of the volume is mounted any more.
    pub fn unpublish(&mut self, target: &TargetPath) {
        self.published = self.published.iter().filter(|published| *published.target != *target).cloned().collect();
    }

    /// Returns what it takes up on its filesystem.
    pub fn share(&self) -> Share {
        let share = Share::of(&self.record.spec, self.pool.inode_size(), self.project, self.allocated);
        Share { bytes: share.bytes.saturating_add(self.growth.unwrap_or_default()), ..share }
    }
}

impl Row {
    fn pool(&self) -> &Arc<Pool> {
        match self {
            Self::Making(pool, _) => pool,
            Self::Live(volume) => &volume.pool,
            Self::Deleted(deleted) => &deleted.pool,
        }
    }

    fn share(&self) -> Share {
        match self {
            Self::Making(_, share) => *share,
            Self::Live(volume) => volume.share(),
            Self::Deleted(deleted) => deleted.share,
        }
    }

    fn targets(&self) -> usize {
        if let Self::Live(volume) = self { volume.published.len() } else { 0 }
    }
}

impl Sums {
    fn add(&mut self, share: Share) {
        self.promised = self.promised.saturating_add(share.bytes);
        self.rows = self.rows.saturating_add(1);
        self.projects.extend(share.project);
    }
}

impl Table {
    /// The one place where rows change.
    fn set(&mut self, key: Key, row: Option<Row>) {
        if let Some(old) = self.rows.remove(&key) {
            let (share, sums) = (old.share(), self.sums(old.pool()));
            sums.promised = sums.promised.saturating_sub(share.bytes);
            sums.rows = sums.rows.saturating_sub(1);
            share.project.map(|project| sums.projects.remove(&project));
            self.targets = self.targets.saturating_sub(old.targets());
        }
        if let Some(new) = row {
            self.sums(new.pool()).add(new.share());
            self.targets = self.targets.saturating_add(new.targets());
            self.rows.insert(key, new);
        }
    }

    fn add(&mut self, id: VolumeId, volume: Volume) -> bool {
        let is_new = self.volume(&id).is_none();
        if is_new {
            self.set(Key::Volume(id), Some(Row::Live(Arc::new(volume))));
        }
        is_new
    }

    fn delete(&mut self, id: &VolumeId, name: &str, call: CallId) {
        let key = Key::Volume(id.clone());
        if let Some(row) = self.rows.get(&key).cloned() {
            let (pool, share) = (Arc::clone(row.pool()), row.share());
            self.set(key, None);
            let deleted = Deleted { pool, share, progress: Progress::default(), call };
            self.set(Key::deleted(&deleted.pool.config.name, name), Some(Row::Deleted(Box::new(deleted))));
        }
    }

    fn sums(&mut self, pool: &Pool) -> &mut Sums {
        self.sums.entry(pool.filesystem()).or_default()
    }

    fn promised(&self, pool: &Pool) -> u64 {
        self.sums.get(&pool.filesystem()).map_or(0, |sums| sums.promised)
    }

    fn has(&self, pool: &Pool, project: ProjectId) -> bool {
        self.sums.get(&pool.filesystem()).is_some_and(|sums| sums.projects.contains(&project))
    }

    fn volume(&self, id: &VolumeId) -> Option<&Arc<Volume>> {
        match self.rows.get(&Key::Volume(id.clone())) {
            Some(Row::Live(volume)) => Some(volume),
            _ => None,
        }
    }
}

impl Volumes {
    /// Returns what is known about a volume.
    pub fn get(&self, id: &VolumeId) -> Option<Arc<Volume>> {
        lock(&self.0).volume(id).cloned()
    }

    /// Promises a share to a volume that is to be made, if `check` agrees, given what is promised so far.
    ///
    /// # Errors
    /// Those of `check`.
    pub(super) fn begin(
        &self,
        id: &VolumeId,
        pool: &Arc<Pool>,
        share: Share,
        check: impl FnOnce(u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut table = lock(&self.0);
        check(table.promised(pool))?;
        table.set(Key::Volume(id.clone()), Some(Row::Making(Arc::clone(pool), share)));
        Ok(())
    }

    /// Takes a project for a volume that is being made, unless another has it.
    pub(super) fn claim(&self, id: &VolumeId, project: ProjectId) -> bool {
        let (mut table, key) = (lock(&self.0), Key::Volume(id.clone()));
        let Some(Row::Making(pool, share)) = table.rows.get(&key).cloned() else { return false };
        if table.has(&pool, project) {
            return false;
        }
        table.set(key, Some(Row::Making(pool, Share { project: Some(project), ..share })));
        true
    }

    /// Promises so many bytes to a volume that is being made, in place of what it was promised, if `check` agrees,
    /// given what is promised to all others.
    ///
    /// # Errors
    /// Those of `check`.
    pub(super) fn promise(
        &self,
        id: &VolumeId,
        bytes: u64,
        check: impl FnOnce(u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (mut table, key) = (lock(&self.0), Key::Volume(id.clone()));
        let Some(Row::Making(pool, share)) = table.rows.get(&key).cloned() else { return Ok(()) };
        check(table.promised(&pool).saturating_sub(share.bytes))?;
        table.set(key, Some(Row::Making(pool, Share { bytes, ..share })));
        Ok(())
    }

    /// Forgets a volume of which nothing was made.
    pub(super) fn give_up(&self, id: &VolumeId) {
        lock(&self.0).set(Key::Volume(id.clone()), None);
    }

    /// Adds a volume that is there; `false` if there already is one with that id.
    pub(super) fn add(&self, id: VolumeId, volume: Volume) -> bool {
        lock(&self.0).add(id, volume)
    }

    /// Changes a volume if `check` agrees, given what is promised so far, and returns it as it is now.
    ///
    /// # Errors
    /// Those of `check`.
    pub(super) fn change(
        &self,
        id: &VolumeId,
        check: impl FnOnce(u64) -> Result<(), Error>,
        change: impl FnOnce(&mut Volume),
    ) -> Result<Option<Arc<Volume>>, Error> {
        let mut table = lock(&self.0);
        let Some(mut volume) = table.volume(id).cloned() else { return Ok(None) };
        check(table.promised(&volume.pool))?;
        change(Arc::make_mut(&mut volume));
        table.set(Key::Volume(id.clone()), Some(Row::Live(Arc::clone(&volume))));
        Ok(Some(volume))
    }

    /// Records that a volume, or what was made of one, was put aside to be emptied, and for which call.
    pub(super) fn delete(&self, id: &VolumeId, aside: &Aside, call: CallId) {
        lock(&self.0).delete(id, aside.name(), call);
    }

    /// Records that what was made of a volume, of which there is no more than that, is left under the name that it had then.
    pub(super) fn leave_unfinished(&self, id: &VolumeId) {
        let mut table = lock(&self.0);
        if let Some(Row::Making(..)) = table.rows.get(&Key::Volume(id.clone())) {
            table.delete(id, &creating_name(id), CallId::default());
        }
    }

    /// Records that a deleted volume of a pool, which had this name, was put aside.
    pub(super) fn rename_deleted(&self, pool: &Pool, name: &str, aside: &Aside) {
        let (mut table, key) = (lock(&self.0), Key::deleted(&pool.config.name, name));
        if let Some(row) = table.rows.get(&key).cloned() {
            table.set(key, None);
            table.set(Key::deleted(&pool.config.name, aside.name()), Some(row));
        }
    }

    /// Adds what a helper that was killed has left of a volume: limits of its project, to which nothing is charged.
    /// Unless a volume has that project.
    pub fn add_remains(&self, pool: &Arc<Pool>, project: ProjectId, emptied: Emptied) {
        let mut table = lock(&self.0);
        if !table.has(pool, project) {
            let share = Share { project: Some(project), ..Share::default() };
            let (pool, progress, call) = (Arc::clone(pool), Progress::Emptied(emptied), CallId::default());
            let key = Key::deleted(&pool.config.name, &format!("project {}", project.0));
            table.set(key, Some(Row::Deleted(Box::new(Deleted { pool, share, progress, call }))));
        }
    }

    /// Returns whether a deleted volume of a pool goes by that name.
    pub fn is_deleted(&self, pool: &Pool, name: &str) -> bool {
        lock(&self.0).rows.contains_key(&Key::deleted(&pool.config.name, name))
    }

    /// Records how far the end of a deleted volume has progressed.
    pub fn progress(&self, pool: &PoolName, name: &str, progress: Progress) {
        if let Some(Row::Deleted(deleted)) = lock(&self.0).rows.get_mut(&Key::deleted(pool, name)) {
            deleted.progress = progress;
        }
    }

    /// Forgets a deleted volume that was released: from now on its project may be another's.
    pub fn forget(&self, pool: &PoolName, released: &Released) {
        lock(&self.0).set(Key::deleted(pool, released.name()), None);
    }

    /// The deleted volumes of a pool, each as `show` presents it.
    pub fn deleted<T>(&self, pool: &PoolName, show: impl Fn(&str, &Deleted) -> Option<T>) -> Vec<T> {
        let table = lock(&self.0);
        let of_pool = table.rows.range(Key::deleted(pool, "")..).map_while(|row| match row {
            (Key::Deleted(name), Row::Deleted(deleted)) if name.0 == *pool => Some((&name.1, deleted)),
            _ => None,
        });
        of_pool.filter_map(|(name, deleted)| show(name, deleted)).collect()
    }

    /// At most `limit` volumes after `after`, in the order of their ids, each as `show` presents it, if it does.
    pub fn page<T>(
        &self,
        after: Option<&VolumeId>,
        limit: usize,
        show: impl Fn(&VolumeId, &Volume) -> Option<T>,
    ) -> Vec<T> {
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(Key::Volume(after.clone())));
        let table = lock(&self.0);
        let live = table.rows.range((from, Bound::Unbounded)).filter_map(|(key, row)| match (key, row) {
            (Key::Volume(id), Row::Live(volume)) => show(id, volume),
            _ => None,
        });
        live.take(limit).collect()
    }

    /// The volumes with images on a filesystem that no project accounts for, with their pools, and with the first of
    /// those that were copied in turn: its copies share blocks with it.
    pub fn uncounted_images(&self, filesystem: (u32, u32)) -> Vec<(VolumeId, Arc<Pool>, VolumeId)> {
        let is_uncounted = |volume: &Volume| {
            volume.pool.filesystem() == filesystem && volume.project.is_none() && volume.kind() != Kind::Directory
        };
        self.page(None, usize::MAX, |id, volume| {
            let family = || volume.origin.as_ref().map_or(id, |origin| &origin.family).clone();
            is_uncounted(volume).then(|| (id.clone(), Arc::clone(&volume.pool), family()))
        })
    }

    /// The volumes of a kind that a pool has: what is recorded as allocated for each.
    pub fn of_kind(&self, kind: Kind, pool: &Pool) -> Vec<u64> {
        let is_one = |volume: &Volume| volume.kind() == kind && volume.pool.config.name == pool.config.name;
        self.page(None, usize::MAX, |_, volume| is_one(volume).then_some(volume.allocated))
    }

    /// The volume that is published at a target. Looks at all rows: it is for messages.
    pub fn holder(&self, target: &TargetPath) -> Option<VolumeId> {
        self.page(None, 1, |id, volume| volume.published_at(target).map(|_| id.clone())).pop()
    }

    /// Returns how many there are on the filesystem of a pool, with those that are being made or emptied, or are not served.
    pub fn number_on(&self, pool: &Pool) -> usize {
        lock(&self.0).sums.get(&pool.filesystem()).map_or(0, |sums| sums.rows)
    }

    /// Returns how many bytes are promised on a pool's filesystem.
    pub fn promised(&self, pool: &Pool) -> u64 {
        lock(&self.0).promised(pool)
    }

    /// The projects of all volumes on a pool's filesystem.
    pub fn projects(&self, pool: &Pool) -> BTreeSet<ProjectId> {
        lock(&self.0).sums.get(&pool.filesystem()).map(|sums| sums.projects.clone()).unwrap_or_default()
    }

    /// Returns whether a project belongs to a volume.
    pub fn has_project(&self, pool: &Pool, project: ProjectId) -> bool {
        lock(&self.0).has(pool, project)
    }

    /// Returns how many volumes there are, deleted ones included.
    pub fn number(&self) -> usize {
        lock(&self.0).rows.len()
    }

    /// At how many targets they are published.
    pub fn number_of_targets(&self) -> usize {
        lock(&self.0).targets
    }

    /// Returns how many volumes a pool has, and how many deleted ones.
    pub fn count(&self, pool: &PoolName) -> (usize, usize) {
        let table = lock(&self.0);
        let of_pool = || table.rows.values().filter(|row| row.pool().config.name == *pool);
        let deleted = of_pool().filter(|row| matches!(row, Row::Deleted(_))).count();
        (of_pool().count().saturating_sub(deleted), deleted)
    }
}

impl Key {
    fn deleted(pool: &PoolName, name: &str) -> Self {
        Self::Deleted(Box::new((pool.clone(), name.to_owned())))
    }
}

#[cfg(test)]
mod tests;
