//! Room, quotas and project ids. They belong to a filesystem: two pools on the same one share them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bulkhead_protocol::{Bytes, Inodes, PoolName};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::cached::Cached;
use super::release::Emptied;
use super::room::{Measured, Occupied, ProjectIds, Space, notes};
use crate::state::{InProgress, Kind, Placer, Pool, Volumes, layout, lock};
use crate::sys::quota::{Look, ProjectId, ProjectQuota};
use crate::sys::quotastate::Enforcement;
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, file, quotastate, random};

/// The first of the project ids that the kubelet itself uses (its fsquota package).
pub const KUBELET_PROJECTS: u32 = 1_048_577;

/// A filesystem with one or more pools.
#[derive(Debug)]
pub struct Filesystem {
    /// Any directory on it, open.
    root: OwnedFd,
    /// Who reads and sets quotas, by the pool that has this directory.
    placer: (Arc<Placer>, PoolName),
    facts: Facts,
    /// What keeps other helpers from it: two would promise its room twice.
    _claim: Option<OwnedFd>,
    projects: ProjectIds,
    capacity: Cached<u64>,
    strays: Mutex<SysResult<Strays>>,
    /// When the search for strays that is in progress began.
    searching: Mutex<Option<Instant>>,
    /// The operations that may wait for it.
    pub in_progress: InProgress,
    /// Held by whoever allocates what is not set aside, from looking what is free until it is taken.
    pub allocating: Mutex<()>,
}

/// What is known of a filesystem from the start.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Its device, major and minor.
    pub device: (u32, u32),
    /// Its type: XFS, or else ext4.
    pub is_xfs: bool,
    /// The first and the last project id for volumes.
    pub project_ids: (u32, u32),
    /// Whether projects are charged for what they use.
    pub counts_projects: bool,
    /// Whether it holds one pool and nothing else.
    pub is_whole_pool: bool,
    /// What an empty pool had in use, if that is known.
    pub overhead: Option<Overhead>,
    /// Whether files can share blocks.
    pub shares_blocks: bool,
}

/// What a filesystem had in use when its pool was empty, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Overhead {
    /// How much.
    pub bytes: u64,
    /// How large the filesystem was then, if that was recorded.
    pub of: Option<u64>,
}

impl Overhead {
    /// Returns what it may be now that the filesystem is so large. What XFS sets aside when it is made larger was a
    /// fiftieth at most, where it was measured.
    fn at(self, total: u64) -> u64 {
        let growth = self.of.map_or(0, |of| total.saturating_sub(of));
        self.bytes.saturating_add(growth / 32)
    }
}

/// What is charged to projects that belong to no volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strays {
    /// The first of them.
    pub first: Option<ProjectId>,
    /// How many bytes.
    pub bytes: u64,
    /// How many inodes.
    pub inodes: u64,
    /// Whether there are more projects than were looked at.
    pub more: bool,
}

/// How long the sum over all volumes stays valid. It does not change with what volumes write, free or are given.
const CAPACITY_LASTS: Duration = Duration::from_secs(1);
/// What an inode takes on XFS, unless mkfs was told otherwise. ext4 has set all inodes aside.
const XFS_INODE: u64 = 512;
/// How many projects are looked at in search of strays: a hostile pod can create very many.
const MOST_STRAYS: usize = 100_000;

impl Filesystem {
    /// A filesystem, given one of its directories, and who reads and sets quotas in the pool that has it.
    pub fn new(root: OwnedFd, placer: (Arc<Placer>, PoolName), facts: Facts, claim: Option<OwnedFd>) -> Self {
        let (capacity, strays) = (Cached::new(CAPACITY_LASTS), Mutex::new(Ok(Strays::default())));
        let projects = ProjectIds::new(facts.project_ids, random::number().unwrap_or_default());
        let (searching, in_progress, allocating) = (Mutex::default(), InProgress::default(), Mutex::default());
        Self { root, placer, facts, _claim: claim, projects, capacity, strays, searching, in_progress, allocating }
    }

    /// Returns what is known of it.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Its type.
    pub fn kind(&self) -> &'static str {
        if self.facts.is_xfs { "xfs" } else { "ext4" }
    }

    /// Returns how many bytes are used up by each inode that is made.
    pub fn inode_size(&self) -> u64 {
        if self.facts.is_xfs { XFS_INODE } else { 0 }
    }

    /// How to look at quotas while serving: only XFS never complains.
    fn look(&self) -> Look {
        if self.facts.is_xfs { Look::AtOnce } else { Look::Waiting }
    }

    /// Measures the filesystem of a pool.
    pub fn measure(&self, volumes: &Volumes, pool: &Pool) -> SysResult<Measured> {
        let capacity = self.capacity.get(|| {
            let before = self.space()?;
            let occupied = self.occupied(volumes, pool, &before)?.at_most();
            // This way, what is written or freed meanwhile is counted in neither, rather than in both.
            Ok(self.space()?.free.min(before.free).saturating_add(occupied))
        })?;
        let notes = notes(capacity, volumes.number_on(pool));
        Ok(Measured { space: self.space()?, capacity, notes })
    }

    fn occupied(&self, volumes: &Volumes, pool: &Pool, space: &Space) -> SysResult<Occupied> {
        let mut charged = self.uncounted_images(volumes)?;
        let mut others = space.inodes_in_use.saturating_mul(self.inode_size());
        if self.facts.counts_projects {
            let strays = lock(&self.strays).clone()?;
            let occupied = |bytes: u64, inodes: u64| bytes.saturating_add(inodes.saturating_mul(self.inode_size()));
            let system = self.quota(ProjectId(0))?;
            let system = occupied(system.used_bytes, system.used_inodes);
            let strays = occupied(strays.bytes, strays.inodes);
            others = [system, strays, self.quotas()?.1].iter().fold(0, |sum: u64, next| sum.saturating_add(*next));
            let (placer, name) = &self.placer;
            let projects: Vec<_> = volumes.projects(pool).into_iter().collect();
            for quota in placer.quotas(name, self.look(), &projects)? {
                charged = charged.saturating_add(occupied(quota.used_bytes, quota.used_inodes));
            }
        }
        let overhead = self.facts.overhead.filter(|_| self.facts.counts_projects || self.facts.is_whole_pool);
        let unexplained =
            overhead.map(|overhead| space.in_use.saturating_sub(overhead.at(space.total)).saturating_sub(others));
        // Without projects, nothing is charged for directories. What is in use beyond all promises is not theirs.
        let is_charged = self.facts.counts_projects || unexplained.is_none();
        let charged = if is_charged { charged } else { volumes.promised(pool) };
        Ok(Occupied { charged, unexplained })
    }

    /// Returns what is occupied by images that no project accounts for. This is not what was allocated for them: their
    /// users discard blocks. Of those that may share blocks only the largest is counted.
    fn uncounted_images(&self, volumes: &Volumes) -> SysResult<u64> {
        let mut largest = BTreeMap::<_, u64>::new();
        for (id, pool, family) in volumes.uncounted_images(self.facts.device) {
            let Ok(served) = pool.served() else { continue };
            match layout::open_content(&served.directory, &id, Kind::Block, OFlags::PATH).and_then(file::status) {
                Ok(image) => {
                    let known = largest.entry(family).or_default();
                    *known = image.allocated.max(*known);
                }
                // It was deleted meanwhile.
                Err(SysError { errno: Errno::NOENT, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(largest.into_values().fold(0, u64::saturating_add))
    }

    /// Returns whether files can be copied by sharing their blocks, and what they really occupy is known then: where
    /// all who share a block are charged for it, that is what is in use and is not known to be anything else.
    pub fn can_copy(&self) -> bool {
        self.facts.shares_blocks && (self.facts.overhead.is_some() || !self.facts.counts_projects)
    }

    /// Returns what the filesystem says of itself. The figures are in the kernel's memory, so this does not wait for a
    /// disk.
    pub fn space(&self) -> SysResult<Space> {
        let found = rustix::fs::fstatvfs(&self.root).by("fstatfs")?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Space {
            total: bytes(found.f_blocks),
            in_use: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
            free: bytes(found.f_bavail),
            inodes_in_use: found.f_files.saturating_sub(found.f_ffree),
            free_inodes: found.f_favail,
        })
    }

    /// Returns how far quotas are switched on, and how many bytes they take.
    pub fn quotas(&self) -> SysResult<(Enforcement, u64)> {
        let (enforcement, blocks) = quotastate::state(&self.root)?;
        let block = if self.facts.is_xfs { rustix::fs::fstatvfs(&self.root).by("fstatfs")?.f_frsize } else { 512 };
        Ok((enforcement, blocks.saturating_mul(block)))
    }

    /// Takes a project for a volume, and removes the limits that a helper which was killed may have left on it. `claim`
    /// takes a candidate unless another volume has it.
    pub fn take_project(&self, claim: impl FnMut(ProjectId) -> bool) -> SysResult<Option<ProjectId>> {
        self.projects.take(claim, |candidate| {
            let quota = self.quota(candidate)?;
            if quota.is_unused() && !quota.is_limited_to((0, 0)) {
                self.set_quota(candidate, (0, 0))?;
            }
            Ok(quota.is_unused())
        })
    }

    /// Returns what a project uses and may use.
    pub fn quota(&self, project: ProjectId) -> SysResult<ProjectQuota> {
        let (placer, name) = &self.placer;
        placer.quota(name, self.look(), project)
    }

    /// Returns what a project uses and may use, at start, when a frozen filesystem must not keep the others from being
    /// served.
    pub fn quota_at_start(&self, project: ProjectId) -> SysResult<ProjectQuota> {
        let (placer, name) = &self.placer;
        placer.quota(name, Look::AtOnce, project)
    }

    /// Sets the limits of a project in bytes and inodes; 0 and 0 for no limits.
    pub fn set_quota(&self, project: ProjectId, limits: (u64, u64)) -> SysResult<()> {
        let (placer, name) = &self.placer;
        placer.set_quota(name, project, limits)
    }

    /// Returns what was charged to projects that belong to no volume when it was last looked at.
    pub fn strays(&self) -> SysResult<Strays> {
        lock(&self.strays).clone()
    }

    /// Looks for what is charged to projects that belong to no volume: the owner of a file can move it into any
    /// project, and so out of its quota. Only the range for volumes is looked at, in the background: the kernel walks
    /// through every block that such owners have made the quota file grow by, in one call. The project after the range
    /// gets a limit, so that there is always one where the walk ends.
    pub fn look_for_strays(&self, volumes: &Volumes, pool: &Arc<Pool>) {
        *lock(&self.searching) = Some(Instant::now());
        let found = self.find_strays(volumes, pool);
        (*lock(&self.strays), *lock(&self.searching)) = (found, None);
    }

    /// Returns since when the oldest of what may wait for it has been in progress.
    pub fn busy_since(&self) -> Option<Instant> {
        self.in_progress.oldest().into_iter().chain(*lock(&self.searching)).min()
    }

    fn find_strays(&self, volumes: &Volumes, pool: &Arc<Pool>) -> SysResult<Strays> {
        let ((placer, name), (first, last)) = (&self.placer, self.facts.project_ids);
        let sentinel = ProjectId(last.saturating_add(1));
        if self.quota(sentinel)?.is_limited_to((0, 0)) {
            self.set_quota(sentinel, (u64::MAX >> 12, 0))?;
        }
        let (mut strays, mut from) = (Strays { more: true, ..Strays::default() }, first);
        for _ in 0..MOST_STRAYS {
            let found = placer.next_quota(name, self.look(), ProjectId(from))?;
            let Some((project, quota)) = found.filter(|(project, _)| *project < sentinel) else {
                return Ok(Strays { more: false, ..strays });
            };
            match Emptied::by_quota(&quota) {
                Some(emptied) if !quota.is_limited_to((0, 0)) => volumes.add_remains(pool, project, emptied),
                None if !volumes.has_project(pool, project) => {
                    strays.first.get_or_insert(project);
                    strays.bytes = strays.bytes.saturating_add(quota.used_bytes);
                    strays.inodes = strays.inodes.saturating_add(quota.used_inodes);
                }
                _ => {}
            }
            from = project.0.saturating_add(1);
        }
        Ok(strays)
    }
}

/// The limits of a directory volume, in bytes and inodes. The volume's own directory counts as one inode.
pub fn limits(size: Bytes, inodes: Inodes) -> (u64, u64) {
    (size.get(), inodes.get().saturating_add(1))
}
