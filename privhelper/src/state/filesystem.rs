//! Room, quotas and project ids. They belong to a filesystem: two pools on one share them.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use bulkhead_protocol::{Bytes, Error, ErrorKind, Inodes, QuotaMode, VolumeSpec};
use caps::Capability;

use super::ledger::{Ledger, Room, Share, Space};
use super::{PoolConfig, failed, lock};
use crate::sys::Result as SysResult;
use crate::sys::capability::raise;
use crate::sys::quota::{self, ProjectId, ProjectQuota};

/// The first of the project ids that the kubelet itself uses (its fsquota package).
pub const KUBELET_PROJECTS: u32 = 1_048_577;

/// A filesystem with one or more pools.
#[derive(Debug)]
pub struct Filesystem {
    /// Any directory of it, open.
    root: OwnedFd,
    project_ids: (u32, u32),
    ledger: Mutex<Ledger>,
}

/// A share that is taken for a volume. It is given back when this is dropped, unless it is kept.
#[derive(Debug)]
pub struct Reservation {
    filesystem: Arc<Filesystem>,
    share: Option<Share>,
}

impl Filesystem {
    /// A filesystem without volumes, by one of its directories.
    pub fn new(root: OwnedFd, project_ids: (u32, u32)) -> Arc<Self> {
        Arc::new(Self { root, project_ids, ledger: Mutex::new(Ledger::new(project_ids)) })
    }

    /// Adds the share of a volume that was found at start.
    pub fn adopt(&self, share: Share) {
        lock(&self.ledger).add(share);
    }

    /// Gives a volume's share back.
    pub fn release(&self, share: Share) {
        lock(&self.ledger).remove(share);
    }

    /// The room there is for a pool.
    pub fn room(&self, pool: &PoolConfig) -> SysResult<Room> {
        self.room_in(&lock(&self.ledger), pool)
    }

    /// Space on the filesystem.
    pub fn space(&self) -> SysResult<Space> {
        let found = rustix::fs::fstatvfs(&self.root)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Space { total: bytes(found.f_blocks), free: bytes(found.f_bavail) })
    }

    /// Takes the share of a new volume, with a project of its own in a pool with quotas.
    ///
    /// # Errors
    /// `NoSpace` when the pool may not promise that much, or no project id is free.
    pub fn reserve(self: &Arc<Self>, pool: &PoolConfig, spec: &VolumeSpec) -> Result<Reservation, Error> {
        let mut ledger = lock(&self.ledger);
        self.check_room(&ledger, pool, Share::of(spec, None))?;
        let project = match pool.quota {
            QuotaMode::Enforced => Some(ledger.take_project(|candidate| Ok(self.quota(candidate)?.is_unused()))),
            QuotaMode::None => None,
        };
        let project = project.transpose().map_err(|errno| failed("take a project id in pool", &pool.name, errno))?;
        let share = Share::of(spec, project);
        ledger.add(share);
        Ok(Reservation { filesystem: Arc::clone(self), share: Some(share) })
    }

    /// Takes what a volume needs in addition to grow.
    ///
    /// # Errors
    /// `NoSpace` when the pool may not promise that much.
    pub fn reserve_growth(self: &Arc<Self>, pool: &PoolConfig, growth: Share) -> Result<Reservation, Error> {
        let mut ledger = lock(&self.ledger);
        self.check_room(&ledger, pool, growth)?;
        ledger.add(growth);
        Ok(Reservation { filesystem: Arc::clone(self), share: Some(growth) })
    }

    fn check_room(&self, ledger: &Ledger, pool: &PoolConfig, share: Share) -> Result<(), Error> {
        let room = self
            .room_in(ledger, pool)
            .map_err(|errno| failed("determine the free space of pool", &pool.name, errno))?;
        let limit = room.limit(share.preallocated);
        if share.bytes <= limit {
            return Ok(());
        }
        let message = format!(
            "pool {} has room for {limit} bytes, but {} bytes are requested; delete volumes or enlarge the pool",
            pool.name, share.bytes
        );
        Err(Error::new(ErrorKind::NoSpace, message))
    }

    /// What a project uses and may use.
    pub fn quota(&self, project: ProjectId) -> SysResult<ProjectQuota> {
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        quota::get(&self.root, project)
    }

    /// Limits a project to so many bytes and inodes; 0 and 0 for no limits.
    pub fn set_quota(&self, project: ProjectId, (bytes, inodes): (u64, u64)) -> SysResult<()> {
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        quota::set(&self.root, project, bytes, inodes)
    }

    /// Bytes charged to projects that no volume has: the owner of a file can move it into any project, and so out of its
    /// quota. The first such project and the sum, if there is one. The kubelet's own projects are left out.
    pub fn strays(&self) -> SysResult<Option<(ProjectId, u64)>> {
        const LAST: u32 = KUBELET_PROJECTS - 1;
        let ours = lock(&self.ledger).projects.clone();
        let mut strays = None;
        self.walk((1, LAST), |project, found| {
            if found.used_bytes > 0 && !ours.contains(&project) {
                let (first, sum): (ProjectId, u64) = strays.unwrap_or((project, 0));
                strays = Some((first, sum.saturating_add(found.used_bytes)));
            }
            Ok(())
        })?;
        Ok(strays)
    }

    /// Takes the limits off projects of our range that no volume has and nothing is charged to. A helper that was killed
    /// between removing a volume and releasing its quota leaves such projects.
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

    /// Looks at the projects of a range that the filesystem knows, up to a bound: a hostile pod can make very many.
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
        // Before the quotas: what is freed meanwhile is then counted in neither, rather than in both.
        let space = self.space()?;
        let mut counted = 0_u64;
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        for project in &ledger.projects {
            counted = counted.saturating_add(quota::get(&self.root, *project)?.used_bytes);
        }
        Ok(ledger.room(space, counted, pool))
    }
}

/// The limits of a directory volume, in bytes and inodes. The volume's own directory counts as an inode.
pub fn limits(size: Bytes, inodes: Inodes) -> (u64, u64) {
    (size.get(), inodes.get().saturating_add(1))
}

impl Reservation {
    /// The project that was taken with the share.
    pub fn project(&self) -> Option<ProjectId> {
        self.share.and_then(|share| share.project)
    }

    /// Keeps the share until it is released.
    pub fn keep(mut self) {
        self.share = None;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(share) = self.share {
            self.filesystem.release(share);
        }
    }
}
