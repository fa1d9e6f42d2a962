//! What is promised of a filesystem, and which project ids are in use. No system calls are made here.

use std::collections::BTreeSet;

use bulkhead_protocol::{Bytes, VolumeKind, VolumeSpec};

use super::PoolConfig;
use crate::sys::quota::ProjectId;
use crate::sys::{Errno, Result as SysResult};

/// What a volume takes of a filesystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// How many bytes it was promised.
    pub bytes: u64,
    /// Whether they are allocated when the volume is created.
    pub preallocated: bool,
    /// How many of them are allocated although no project counts them.
    uncounted: u64,
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

/// The sums over all volumes of a filesystem, deleted ones included until they are empty.
#[derive(Debug)]
pub struct Ledger {
    project_ids: (u32, u32),
    /// The projects of all volumes.
    pub projects: BTreeSet<ProjectId>,
    /// How many bytes are promised.
    pub promised: u64,
    uncounted: u64,
    /// Where the search for a free project id continues.
    next: u32,
}

impl Share {
    /// What a volume with these settings takes.
    pub fn of(spec: &VolumeSpec, project: Option<ProjectId>) -> Self {
        let bytes = spec.size.get();
        let preallocated = matches!(spec.kind, VolumeKind::Image { sparse: false, .. });
        let uncounted = if preallocated && project.is_none() { bytes } else { 0 };
        Self { bytes, preallocated, uncounted, project }
    }

    /// How much more that is than the same volume took with a smaller size.
    pub fn growth_from(self, size: Bytes) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(size.get()),
            uncounted: self.uncounted.saturating_sub(size.get()),
            project: None,
            ..self
        }
    }
}

impl Room {
    /// How large a volume may be. What is allocated at once must also be free right now.
    pub fn limit(&self, preallocated: bool) -> u64 {
        if preallocated { self.available.min(self.free) } else { self.available }
    }
}

impl Ledger {
    /// No volumes yet. New projects are taken from this range, its ends included.
    pub fn new(project_ids: (u32, u32)) -> Self {
        Self { project_ids, projects: BTreeSet::new(), promised: 0, uncounted: 0, next: project_ids.0 }
    }

    /// Adds a share.
    pub fn add(&mut self, share: Share) {
        self.promised = self.promised.saturating_add(share.bytes);
        self.uncounted = self.uncounted.saturating_add(share.uncounted);
        self.projects.extend(share.project);
    }

    /// Takes a share away, which was added before.
    pub fn remove(&mut self, share: Share) {
        self.promised = self.promised.saturating_sub(share.bytes);
        self.uncounted = self.uncounted.saturating_sub(share.uncounted);
        if let Some(project) = share.project {
            self.projects.remove(&project);
        }
    }

    /// The room there is for a pool, when the volumes' projects use `counted` bytes of the filesystem.
    ///
    /// What is written to directories without a project is counted nowhere, so it narrows the room twice: as promised
    /// and as used. That errs on the safe side.
    pub fn room(&self, space: Space, counted: u64, pool: &PoolConfig) -> Room {
        let capacity = space.free.saturating_add(counted).saturating_add(self.uncounted);
        let overcommitted = u128::from(capacity).saturating_mul(pool.overcommit_permille.into()) / 1000;
        let overcommitted = u64::try_from(overcommitted).unwrap_or(u64::MAX);
        Room {
            total: space.total,
            free: space.free.saturating_sub(pool.reserve),
            promised: self.promised,
            available: overcommitted.saturating_sub(pool.reserve).saturating_sub(self.promised),
        }
    }

    /// Takes a project id of the range that no volume has and nothing is charged to.
    ///
    /// # Errors
    /// `NOSPC` when there is none, or the error of `is_unused`.
    pub fn take_project(&mut self, mut is_unused: impl FnMut(ProjectId) -> SysResult<bool>) -> SysResult<ProjectId> {
        let (first, last) = self.project_ids;
        for _ in first..=last {
            let candidate = ProjectId(self.next);
            self.next = if candidate.0 >= last { first } else { candidate.0.saturating_add(1) };
            if !self.projects.contains(&candidate) && is_unused(candidate)? {
                self.projects.insert(candidate);
                return Ok(candidate);
            }
        }
        Err(Errno::NOSPC)
    }
}

#[cfg(test)]
mod tests;
