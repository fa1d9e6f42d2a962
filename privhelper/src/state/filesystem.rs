//! Room, quotas and project ids. They belong to a filesystem: two pools on the same one share them.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bulkhead_protocol::{Bytes, Error, ErrorKind, Inodes, QuotaMode, VolumeSpec};
use caps::Capability;
use linux_raw_sys::general::XFS_SUPER_MAGIC;

use super::cached::Cached;
use super::ledger::{Ledger, Measured, Room, Share, Space, take_project};
use super::{InProgress, PoolConfig, failed, lock};
use crate::sys::Result as SysResult;
use crate::sys::capability::raise;
use crate::sys::quota::{self, Look, ProjectId, ProjectQuota};

/// The first of the project ids that the kubelet itself uses (its fsquota package).
pub const KUBELET_PROJECTS: u32 = 1_048_577;

/// A filesystem with one or more pools.
#[derive(Debug)]
pub struct Filesystem {
    /// Any directory on it, open.
    root: OwnedFd,
    project_ids: (u32, u32),
    /// How to look at quotas while serving: only XFS never complains.
    look: Look,
    ledger: Mutex<Ledger>,
    capacity: Cached<u64>,
    strays: Cached<Strays>,
    /// The operations that may wait for it.
    pub in_progress: InProgress,
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
    pub cut: bool,
}

/// A share taken for a volume. Dropping this gives it back, unless it is kept.
#[derive(Debug)]
pub struct Reservation {
    filesystem: Arc<Filesystem>,
    /// The share, with the project that was taken with it.
    pub share: Share,
    kept: bool,
}

/// How long the sum over all volumes stays valid. It does not change with what volumes write, free or are given.
const CAPACITY_LASTS: Duration = Duration::from_secs(1);
/// How long a scan of all projects stays valid.
const STRAYS_LAST: Duration = Duration::from_secs(60);

impl Filesystem {
    /// A filesystem without volumes, given one of its directories.
    pub fn new(root: OwnedFd, project_ids: (u32, u32)) -> Arc<Self> {
        let ledger = Mutex::new(Ledger::new(project_ids));
        let (capacity, strays) = (Cached::new(CAPACITY_LASTS), Cached::new(STRAYS_LAST));
        let is_xfs = rustix::fs::fstatfs(&root).is_ok_and(|found| found.f_type == XFS_SUPER_MAGIC.into());
        let look = if is_xfs { Look::AtOnce } else { Look::Waiting };
        Arc::new(Self { root, project_ids, look, ledger, capacity, strays, in_progress: InProgress::default() })
    }

    /// Its type; startup refuses any other.
    pub fn kind(&self) -> &'static str {
        if matches!(self.look, Look::AtOnce) { "xfs" } else { "ext4" }
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
    pub fn room(&self, pool: &PoolConfig, measured: Measured) -> Room {
        lock(&self.ledger).room(measured, pool)
    }

    /// Measures the filesystem. `images` sums up what is occupied by images that no project accounts for.
    pub fn measure(&self, images: impl FnOnce() -> SysResult<u64>) -> SysResult<Measured> {
        let capacity = self.capacity.get(|| {
            let projects = lock(&self.ledger).projects.clone();
            let before = self.space()?.free;
            let mut occupied = images()?;
            let _raised = raise(Capability::CAP_SYS_ADMIN)?;
            for project in projects {
                occupied = occupied.saturating_add(quota::get(&self.root, self.look, project)?.used_bytes);
            }
            // This way, what is written or freed meanwhile is counted in neither, rather than in both.
            Ok(self.space()?.free.min(before).saturating_add(occupied))
        })?;
        Ok(Measured { space: self.space()?, capacity })
    }

    /// The room there is while the filesystem hangs: none. The figures asked for here are in the kernel's memory.
    pub fn no_room(&self) -> Room {
        let total = self.space().map_or(0, |space| space.total);
        let promised = lock(&self.ledger).promised;
        Room { total, free: 0, promised, available: 0 }
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
    pub fn reserve(
        self: &Arc<Self>,
        pool: &PoolConfig,
        spec: &VolumeSpec,
        measured: Measured,
    ) -> Result<Reservation, Error> {
        let mut reservation = self.reserve_growth(pool, Share::of(spec, None), measured)?;
        if pool.quota == QuotaMode::Enforced {
            let taken = take_project(&self.ledger, |candidate| Ok(self.quota(candidate)?.is_unused()));
            let taken = taken.map_err(|errno| failed("take a project id in pool", &pool.name, errno))?;
            reservation.share.project = Some(taken.ok_or_else(|| self.no_project(pool))?);
        }
        Ok(reservation)
    }

    /// Takes the additional share that a volume needs in order to grow.
    ///
    /// # Errors
    /// `NoSpace` when the pool may not promise that much.
    pub fn reserve_growth(
        self: &Arc<Self>,
        pool: &PoolConfig,
        share: Share,
        measured: Measured,
    ) -> Result<Reservation, Error> {
        let mut ledger = lock(&self.ledger);
        let limit = ledger.room(measured, pool).limit(share.preallocated);
        if share.bytes > limit {
            let message = format!(
                "pool {} has room for {limit} bytes, but {} bytes are requested; delete volumes or enlarge the pool",
                pool.name, share.bytes
            );
            return Err(Error::new(ErrorKind::NoSpace, message));
        }
        ledger.add(share);
        Ok(Reservation { filesystem: Arc::clone(self), share, kept: false })
    }

    fn no_project(&self, pool: &PoolConfig) -> Error {
        let (first, last) = self.project_ids;
        let message = format!(
            "pool {} has no free project id: of {first} to {last}, all that were tried belong to volumes or have files charged to them; see the pool's conditions, or widen --project-ids",
            pool.name
        );
        Error::new(ErrorKind::NoSpace, message)
    }

    /// What a project uses and may use.
    pub fn quota(&self, project: ProjectId) -> SysResult<ProjectQuota> {
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        quota::get(&self.root, self.look, project)
    }

    /// The same at start, when a frozen filesystem must not keep the others from being served.
    pub fn quota_at_start(&self, project: ProjectId) -> SysResult<ProjectQuota> {
        quota::get(&self.root, Look::AtOnce, project)
    }

    /// Sets the limits of a project in bytes and inodes; 0 and 0 for no limits.
    pub fn set_quota(&self, project: ProjectId, (bytes, inodes): (u64, u64)) -> SysResult<()> {
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        quota::set(&self.root, project, bytes, inodes)
    }

    /// What is charged to projects that belong to no volume: the owner of a file can move it into any project, and so
    /// out of its quota. The kubelet's own projects are not included.
    pub fn strays(&self) -> SysResult<Strays> {
        const LAST: u32 = KUBELET_PROJECTS - 1;
        self.strays.get(|| {
            let mut strays = Strays::default();
            strays.cut = self.walk(self.look, (1, LAST), |project, found| {
                let used = found.used_bytes > 0 || found.used_inodes > 0;
                if used && !lock(&self.ledger).projects.contains(&project) {
                    strays.first.get_or_insert(project);
                    strays.bytes = strays.bytes.saturating_add(found.used_bytes);
                    strays.inodes = strays.inodes.saturating_add(found.used_inodes);
                }
                Ok(())
            })?;
            Ok(strays)
        })
    }

    /// Removes the limits of projects in our range that belong to no volume and have nothing charged to them. A helper
    /// killed between removing a volume and releasing its quota leaves such projects behind.
    pub fn sweep(&self) -> SysResult<()> {
        let ours = lock(&self.ledger).projects.clone();
        self.walk(Look::AtOnce, self.project_ids, |project, found| {
            let idle = found.used_bytes == 0 && found.used_inodes == 0;
            if idle && !found.is_unused() && !ours.contains(&project) {
                quota::set(&self.root, project, 0, 0)?;
            }
            Ok(())
        })
        .map(drop)
    }

    /// Visits the projects in a range that the filesystem knows, up to a bound, since a hostile pod can create very
    /// many. Returns `true` if there are more.
    fn walk(
        &self,
        look: Look,
        range: (u32, u32),
        mut visit: impl FnMut(ProjectId, ProjectQuota) -> SysResult<()>,
    ) -> SysResult<bool> {
        const MOST: usize = 100_000;
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        let mut from = range.0;
        for _ in 0..MOST {
            match quota::get_next(&self.root, look, ProjectId(from))? {
                Some((project, found)) if project.0 <= range.1 => {
                    visit(project, found)?;
                    from = project.0.saturating_add(1);
                }
                _ => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// The limits of a directory volume, in bytes and inodes. The volume's own directory counts as one inode.
pub fn limits(size: Bytes, inodes: Inodes) -> (u64, u64) {
    (size.get(), inodes.get().saturating_add(1))
}

impl Reservation {
    /// Keeps the share until it is released.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.kept {
            self.filesystem.release(self.share);
        }
    }
}
