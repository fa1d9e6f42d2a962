//! How much of a filesystem is promised, and which project ids are in use. No system calls are made here.

use std::collections::BTreeSet;
use std::sync::Mutex;

use bulkhead_protocol::{Bytes, VolumeKind, VolumeSpec};

use super::{PoolConfig, lock};
use crate::sys::Result as SysResult;
use crate::sys::quota::ProjectId;

/// What a volume takes up on a filesystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// How many bytes it was promised.
    pub bytes: u64,
    /// Whether they are allocated when the volume is created.
    pub preallocated: bool,
    /// Its project.
    pub project: Option<ProjectId>,
}

/// Space on a filesystem, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Its size.
    pub total: u64,
    /// What an ordinary user may still write.
    pub free: u64,
}

/// What a filesystem has to share out, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// What there is right now.
    pub space: Space,
    /// What is free plus what volumes occupy.
    pub capacity: u64,
}

/// Room on a filesystem as one pool sees it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Size of the filesystem.
    pub total: u64,
    /// What an ordinary user may still write, less the reserve.
    pub free: u64,
    /// What is promised to volumes.
    pub promised: u64,
    /// What may still be promised to new ones.
    pub available: u64,
}

/// The sums over all volumes of a filesystem, including deleted ones until they are empty.
#[derive(Debug)]
pub struct Ledger {
    project_ids: (u32, u32),
    /// The projects of all volumes.
    pub projects: BTreeSet<ProjectId>,
    /// How many bytes are promised.
    pub promised: u64,
    /// Where the search for a free project id begins.
    next: u32,
}

/// The distance from one project id that is tried to the next. It is a prime greater than any range of ids, so that all
/// ids in a range are tried before any is tried again; and consecutive tries lie far apart, so that a run of ids taken
/// by a hostile pod is soon left behind.
const STRIDE: u64 = 1_456_241;
/// How many project ids are tried at most, if something is charged to all of them.
const TRIES: usize = 1000;

impl Share {
    /// What a volume with these settings takes.
    pub fn of(spec: &VolumeSpec, project: Option<ProjectId>) -> Self {
        let bytes = spec.size.get();
        let preallocated = matches!(spec.kind, VolumeKind::Image { sparse: false, .. });
        Self { bytes, preallocated, project }
    }

    /// How much more this is than the same volume took at a smaller size.
    pub fn growth_from(self, size: Bytes) -> Self {
        Self { bytes: self.bytes.saturating_sub(size.get()), project: None, ..self }
    }
}

impl Room {
    /// How large a volume may be. What is allocated on creation must also be free right now.
    pub fn limit(&self, preallocated: bool) -> u64 {
        if preallocated { self.available.min(self.free) } else { self.available }
    }
}

impl Ledger {
    /// No volumes yet. New projects are taken from this range, both ends included.
    pub fn new(project_ids: (u32, u32)) -> Self {
        Self { project_ids, projects: BTreeSet::new(), promised: 0, next: project_ids.0 }
    }

    /// Adds a share.
    pub fn add(&mut self, share: Share) {
        self.promised = self.promised.saturating_add(share.bytes);
        self.projects.extend(share.project);
    }

    /// Removes a share that was added before.
    pub fn remove(&mut self, share: Share) {
        self.promised = self.promised.saturating_sub(share.bytes);
        if let Some(project) = share.project {
            self.projects.remove(&project);
        }
    }

    /// The room there is for a pool.
    ///
    /// What is written to directories without a project is not counted anywhere, so it reduces the room twice: as
    /// promised and as used. This errs on the safe side.
    pub fn room(&self, Measured { space, capacity }: Measured, pool: &PoolConfig) -> Room {
        let overcommitted = u128::from(capacity).saturating_mul(pool.overcommit_permille.into()) / 1000;
        let overcommitted = u64::try_from(overcommitted).unwrap_or(u64::MAX);
        Room {
            total: space.total,
            free: space.free.saturating_sub(pool.reserve),
            promised: self.promised,
            available: overcommitted.saturating_sub(pool.reserve).saturating_sub(self.promised),
        }
    }

    /// All project ids in the range, in the order in which they are to be tried.
    fn candidates(&self) -> impl Iterator<Item = ProjectId> + use<> {
        let (first, last) = self.project_ids;
        let size = u64::from(last.saturating_sub(first)).saturating_add(1);
        let start = u64::from(self.next.saturating_sub(first));
        (0..size).filter_map(move |step| {
            let offset = start.saturating_add(step.saturating_mul(STRIDE)).checked_rem(size)?;
            Some(ProjectId(first.saturating_add(u32::try_from(offset).ok()?)))
        })
    }

    /// Takes a project id unless a volume has it. The next search continues after it, so that an id that was just given
    /// back is the last to be taken again.
    fn claim(&mut self, candidate: ProjectId) -> bool {
        let (first, last) = self.project_ids;
        self.next = if candidate.0 >= last { first } else { candidate.0.saturating_add(1) };
        self.projects.insert(candidate)
    }
}

/// Takes a project id that no volume has and nothing is charged to; `None` if none of those tried is free. The ledger
/// is not locked while the filesystem is queried.
pub fn take_project(
    ledger: &Mutex<Ledger>,
    is_unused: impl Fn(ProjectId) -> SysResult<bool>,
) -> SysResult<Option<ProjectId>> {
    let candidates = lock(ledger).candidates();
    for candidate in candidates.filter(|candidate| lock(ledger).claim(*candidate)).take(TRIES) {
        let unused = is_unused(candidate);
        if unused != Ok(true) {
            lock(ledger).projects.remove(&candidate);
        }
        if unused? {
            return Ok(Some(candidate));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
