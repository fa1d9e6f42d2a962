//! Room and project ids. They belong to a filesystem: two pools on one share them.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use bulkhead_protocol::{Bytes, Error, ErrorKind, VolumeKind, VolumeSpec};
use caps::Capability;

use super::{PoolConfig, failed, lock};
use crate::sys::capability::raise;
use crate::sys::quota::{self, ProjectId, ProjectQuota};
use crate::sys::{Errno, Result as SysResult};

/// The first of the project ids that the kubelet uses itself (its fsquota package).
pub const KUBELET_PROJECTS: u32 = 1_048_577;

/// A filesystem with one or more pools.
#[derive(Debug)]
pub struct Filesystem {
    /// Any directory of it, open.
    root: OwnedFd,
    project_ids: (u32, u32),
    ledger: Mutex<Ledger>,
}

#[derive(Debug)]
struct Ledger {
    /// Projects of our volumes, deleted ones that are not empty yet included.
    projects: BTreeSet<ProjectId>,
    /// What volumes were promised in sum, in bytes.
    promised: u64,
    /// How much of that is allocated for good although no project counts it.
    allocated: u64,
    /// Where the search for a free project id goes on.
    next: u32,
}

/// Room on a filesystem, seen by one pool. All in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Size of the filesystem.
    pub total: u64,
    /// What an ordinary user may still write, less the reserve.
    pub free: u64,
    /// What new volumes may be promised.
    pub available: u64,
}

/// What a volume takes of a filesystem.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    bytes: u64,
    /// Whether they are allocated when the volume is made.
    thick: bool,
    /// Whether a project counts what is used of them.
    metered: bool,
}

/// Room, and perhaps a project id, that is taken for a volume. Given back when dropped, unless kept.
#[derive(Debug)]
pub struct Reservation {
    filesystem: Arc<Filesystem>,
    share: Option<Share>,
    project: Option<ProjectId>,
}

impl Filesystem {
    /// A filesystem without volumes, known by one of its directories.
    pub fn new(root: OwnedFd, project_ids: (u32, u32)) -> Arc<Self> {
        let ledger = Ledger { projects: BTreeSet::new(), promised: 0, allocated: 0, next: project_ids.0 };
        Arc::new(Self { root, project_ids, ledger: Mutex::new(ledger) })
    }

    /// Enters a volume that was found at start.
    pub fn adopt(&self, share: Share, project: Option<ProjectId>) {
        let mut ledger = lock(&self.ledger);
        ledger.add(share);
        ledger.projects.extend(project);
    }

    /// Gives back what a volume was promised, and its project id.
    pub fn release(&self, share: Share, project: Option<ProjectId>) {
        let mut ledger = lock(&self.ledger);
        ledger.take(share);
        if let Some(project) = project {
            ledger.projects.remove(&project);
        }
    }

    /// What is promised in sum, in bytes.
    pub fn promised(&self) -> u64 {
        lock(&self.ledger).promised
    }

    /// The room there is for a pool.
    pub fn room(&self, pool: &PoolConfig) -> SysResult<Room> {
        self.room_in(&lock(&self.ledger), pool)
    }

    /// What an ordinary user may still write, in bytes.
    pub fn writable(&self) -> SysResult<u64> {
        let found = rustix::fs::fstatvfs(&self.root)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Takes room for a share.
    ///
    /// # Errors
    /// `NoSpace` when the pool may not promise that much.
    pub fn reserve(self: &Arc<Self>, pool: &PoolConfig, share: Share) -> Result<Reservation, Error> {
        let mut ledger = lock(&self.ledger);
        let room = self.room_in(&ledger, pool).map_err(|errno| failed("look for room in pool", &pool.name, errno))?;
        // What is allocated at once must be free right now.
        let limit = if share.thick { room.available.min(room.free) } else { room.available };
        if share.bytes > limit {
            let message = format!("pool {} has room for {limit} bytes, {} are wanted", pool.name, share.bytes);
            return Err(Error::new(ErrorKind::NoSpace, message));
        }
        ledger.add(share);
        Ok(Reservation { filesystem: Arc::clone(self), share: Some(share), project: None })
    }

    /// What a project uses and may use.
    pub fn quota(&self, project: ProjectId) -> SysResult<ProjectQuota> {
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        quota::get(&self.root, project)
    }

    /// Limits a project; 0 and 0 for no limit.
    pub fn set_quota(&self, project: ProjectId, bytes: u64, inodes: u64) -> SysResult<()> {
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        quota::set(&self.root, project, bytes, inodes)
    }

    /// Bytes charged to projects of no volume: whoever owns a file can move it into any project, and so out of its quota.
    /// The first such project and the sum, if there is one. The kubelet's own projects are left out.
    pub fn strays(&self) -> SysResult<Option<(ProjectId, u64)>> {
        let ours = lock(&self.ledger).projects.clone();
        let mut strays = None;
        self.walk((1, KUBELET_PROJECTS - 1), |project, found| {
            if found.used_bytes > 0 && !ours.contains(&project) {
                let (first, sum): (ProjectId, u64) = strays.unwrap_or((project, 0));
                strays = Some((first, sum.saturating_add(found.used_bytes)));
            }
            Ok(())
        })?;
        Ok(strays)
    }

    /// Takes the limits off projects of our range that no volume has and nothing is charged to: a helper that was killed
    /// between removing a volume and releasing its quota leaves them.
    pub fn sweep(&self) -> SysResult<()> {
        let ours = lock(&self.ledger).projects.clone();
        self.walk(self.project_ids, |project, found| {
            let idle = found.used_bytes == 0 && found.used_inodes == 0;
            if idle && !found.is_unused() && !ours.contains(&project) {
                quota::set(&self.root, project, 0, 0)?;
            }
            Ok(())
        })
    }

    /// Looks at the projects of a range that the filesystem knows. A hostile pod can make very many: not at all of them.
    fn walk(&self, range: (u32, u32), mut look: impl FnMut(ProjectId, ProjectQuota) -> SysResult<()>) -> SysResult<()> {
        const MOST: usize = 100_000;
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        let mut from = range.0;
        for _ in 0..MOST {
            match quota::get_next(&self.root, ProjectId(from))? {
                Some((project, found)) if project.0 <= range.1 => {
                    look(project, found)?;
                    from = project.0.saturating_add(1);
                }
                _ => break,
            }
        }
        Ok(())
    }

    fn room_in(&self, ledger: &Ledger, pool: &PoolConfig) -> SysResult<Room> {
        let found = rustix::fs::fstatvfs(&self.root)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        // Nothing counts what is written to directories without a project, so it narrows the room twice there: as
        // promised and as used. That is the safe side.
        let mut used = ledger.allocated;
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        for project in &ledger.projects {
            used = used.saturating_add(quota::get(&self.root, *project)?.used_bytes);
        }
        let capacity = bytes(found.f_bavail).saturating_add(used);
        let overcommitted = u128::from(capacity).saturating_mul(pool.overcommit_permille.into()) / 1000;
        Ok(Room {
            total: bytes(found.f_blocks),
            free: bytes(found.f_bavail).saturating_sub(pool.reserve),
            available: u64::try_from(overcommitted)
                .unwrap_or(u64::MAX)
                .saturating_sub(pool.reserve)
                .saturating_sub(ledger.promised),
        })
    }

    /// A project id of the range that no volume has and nothing is charged to.
    fn take_project(&self) -> SysResult<ProjectId> {
        let mut ledger = lock(&self.ledger);
        let (first, last) = self.project_ids;
        for _ in first..=last {
            let candidate = ProjectId(ledger.next);
            ledger.next = if candidate.0 >= last { first } else { candidate.0.saturating_add(1) };
            if !ledger.projects.contains(&candidate) && self.quota(candidate)?.is_unused() {
                ledger.projects.insert(candidate);
                return Ok(candidate);
            }
        }
        Err(Errno::NOSPC)
    }
}

impl Ledger {
    fn add(&mut self, share: Share) {
        self.promised = self.promised.saturating_add(share.bytes);
        self.allocated = self.allocated.saturating_add(share.allocated());
    }

    fn take(&mut self, share: Share) {
        self.promised = self.promised.saturating_sub(share.bytes);
        self.allocated = self.allocated.saturating_sub(share.allocated());
    }
}

impl Share {
    /// What a volume takes.
    pub fn of(spec: &VolumeSpec, metered: bool) -> Self {
        let thick = matches!(spec.kind, VolumeKind::Image { sparse: false, .. });
        Self { bytes: spec.size.get(), thick, metered }
    }

    /// How much more that is than a volume of another size takes.
    pub fn beyond(self, size: Bytes) -> Self {
        Self { bytes: self.bytes.saturating_sub(size.get()), ..self }
    }

    fn allocated(self) -> u64 {
        if self.thick && !self.metered { self.bytes } else { 0 }
    }
}

impl Reservation {
    /// Takes a project id as well.
    pub fn take_project(&mut self) -> SysResult<ProjectId> {
        let project = self.filesystem.take_project()?;
        self.project = Some(project);
        Ok(project)
    }

    /// The room is used: it stays taken until it is released.
    pub fn keep(mut self) {
        self.share = None;
        self.project = None;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(share) = self.share {
            self.filesystem.release(share, self.project);
        }
    }
}
