//! What volumes are promised, what there is to promise, and in which order project ids are tried: arithmetic only, no
//! system call is made here.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use bulkhead_protocol::{VolumeKind, VolumeSpec};

use crate::state::PoolConfig;
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

/// What a filesystem says of itself, in bytes and inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Its size.
    pub total: u64,
    /// What is in use, by whomever.
    pub in_use: u64,
    /// What an ordinary user may still write.
    pub free: u64,
    /// Inodes in use.
    pub inodes_in_use: u64,
    /// Inodes that an ordinary user may still make.
    pub free_inodes: u64,
}

/// What volumes occupy on a filesystem, seen from two sides, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupied {
    /// What is charged to them. This may be more than they occupy: all who share a block are charged for it.
    pub charged: u64,
    /// What is in use and is not known to be anything else, if that is known. This may be more than they occupy as well.
    pub unexplained: Option<u64>,
}

/// What a filesystem has to share out, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// What there is right now.
    pub space: Space,
    /// What is free plus what volumes occupy.
    pub capacity: u64,
    /// How much of that is not promised: see [`notes`].
    pub notes: u64,
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
    /// What may be promised in all.
    pub limit: u64,
}

/// The inodes that the smallest volume takes.
const INODES_OF_A_VOLUME: u64 = 4;
/// What a snapshot takes that refers to nothing, in bytes, or as many as one likes could be taken of an empty volume.
const EMPTY: u64 = 8192;
/// What any volume takes besides what it holds, in bytes: a directory, what is in it, and what is recorded of them. XFS has
/// most of that in inodes, and makes those by the block; ext4 has a block for the entries of each directory, and one for the
/// records.
const OWN: u64 = 12 << 10;
/// The distance from one project id that is tried to the next. It is a prime greater than any range of ids, so that all
/// ids in a range are tried before any is tried again; and consecutive tries lie far apart, so that a run of ids taken
/// by a hostile pod is soon left behind.
const STRIDE: u64 = 1_456_241;
/// How many project ids are tried at most, if something is charged to all of them.
const TRIES: usize = 1000;

impl Share {
    /// Returns what a volume with these settings takes, where each inode that is promised takes `inode_size` bytes. A
    /// snapshot takes the bytes that it refers to, `allocated`, as its source is to be able to replace all of them; a
    /// hundredth more for what the filesystem notes of that; and something if there are none.
    pub fn of(spec: &VolumeSpec, inode_size: u64, project: Option<ProjectId>, allocated: u64) -> Self {
        let (bytes, inodes, preallocated) = match spec.kind {
            VolumeKind::Directory { inodes, .. } => (spec.size.get(), inodes.get(), false),
            VolumeKind::Image { sparse, .. } | VolumeKind::Filesystem { sparse, .. } => (spec.size.get(), 0, !sparse),
            VolumeKind::Snapshot { .. } => (allocated.saturating_add(allocated / 100).saturating_add(EMPTY), 0, false),
        };
        Self { bytes: bytes.saturating_add(inodes.saturating_mul(inode_size)), preallocated, project }
    }
}

impl Space {
    /// Returns whether there are too few inodes for another volume. XFS makes them as it needs them, and says how many
    /// more it could make.
    pub fn lacks_inodes(&self) -> bool {
        self.free_inodes < INODES_OF_A_VOLUME
    }
}

impl Occupied {
    /// Returns what volumes certainly do not exceed.
    pub fn at_most(&self) -> u64 {
        self.unexplained.map_or(self.charged, |unexplained| unexplained.min(self.charged))
    }
}

/// Returns what a filesystem may need for itself, so that what is promised can be written in any order: to note where the parts
/// of files are, as each block that is written or replaced may become a part of its own (for parts of 4096 bytes that is at most
/// a page of 125 notes of them, less than a hundredth); and so many volumes, whatever is in them.
pub fn notes(capacity: u64, volumes: usize) -> u64 {
    let volumes = u64::try_from(volumes).unwrap_or(u64::MAX);
    (capacity / 101).saturating_add(volumes.saturating_mul(OWN))
}

impl Measured {
    /// Returns the same, with so many more volumes to be there.
    pub fn with_more(self, volumes: u64) -> Self {
        Self { notes: self.notes.saturating_add(volumes.saturating_mul(OWN)), ..self }
    }

    /// The room there is for a pool, if that much is promised on its filesystem.
    pub fn room(&self, pool: &PoolConfig, promised: u64) -> Room {
        let capacity = self.capacity.saturating_sub(self.notes);
        let overcommitted = u128::from(capacity).saturating_mul(pool.overcommit_permille.into()) / 1000;
        let overcommitted = u64::try_from(overcommitted).unwrap_or(u64::MAX);
        let (mut free, mut limit) = (self.space.free, overcommitted);
        if self.space.lacks_inodes() {
            (free, limit) = (0, 0);
        }
        let (total, free) = (self.space.total, free.saturating_sub(self.notes));
        let reserve = pool.reserve.of(total);
        Room { total, free: free.saturating_sub(reserve), promised, limit: limit.saturating_sub(reserve) }
    }
}

impl Room {
    /// Returns what may still be promised.
    pub fn available(&self) -> u64 {
        self.limit.saturating_sub(self.promised)
    }

    /// Returns how much a volume may be promised. What is allocated on creation must also be free right now.
    pub fn for_volume(&self, preallocated: bool) -> u64 {
        if preallocated { self.available().min(self.free) } else { self.available() }
    }
}

/// The project ids for volumes, and where the search for a free one continues.
#[derive(Debug)]
pub struct ProjectIds {
    range: (u32, u32),
    /// How many steps of [`STRIDE`] lie between the first id that is tried and the second. Nobody else knows it, or a pod
    /// that takes a thousand ids could choose just those that are tried next.
    leap: u64,
    next: AtomicU32,
}

impl ProjectIds {
    /// Those from the first to the last, both included, with a random leap.
    pub fn new(range: (u32, u32), leap: u32) -> Self {
        Self { range, leap: leap.into(), next: AtomicU32::new(range.0) }
    }

    /// Takes one that no volume has and nothing is charged to; `None` if none of those that were tried is free. `claim`
    /// takes a candidate unless another volume has it, so that no two operations look at the same one.
    pub fn take(
        &self,
        mut claim: impl FnMut(ProjectId) -> bool,
        is_unused: impl Fn(ProjectId) -> SysResult<bool>,
    ) -> SysResult<Option<ProjectId>> {
        for candidate in self.candidates().filter(|candidate| claim(*candidate)).take(TRIES) {
            // The next search continues after it: one that was just given back is the last to be taken again.
            let (first, last) = self.range;
            self.next.store(if candidate.0 >= last { first } else { candidate.0.saturating_add(1) }, Relaxed);
            if is_unused(candidate)? {
                return Ok(Some(candidate));
            }
        }
        Ok(None)
    }

    /// All of them, in the order in which they are to be tried.
    fn candidates(&self) -> impl Iterator<Item = ProjectId> + use<> {
        let (first, last) = self.range;
        let size = u64::from(last.saturating_sub(first)).saturating_add(1);
        let start = u64::from(self.next.load(Relaxed).saturating_sub(first));
        let leap = self.leap;
        // All steps after the leap lead to all ids, and once more to the first.
        (0..=size).filter_map(move |step| {
            let steps = if step == 0 { 0 } else { step.saturating_add(leap) };
            let offset = start.saturating_add(steps.saturating_mul(STRIDE)).checked_rem(size)?;
            Some(ProjectId(first.saturating_add(u32::try_from(offset).ok()?)))
        })
    }
}

#[cfg(test)]
mod tests;
