//! Project quotas through quotactl_fd(2) (Linux 5.14), which works on any descriptor on the filesystem.

use std::os::fd::AsFd;

use nix::libc;

use super::file::raw_fd;
use super::{Errno, Error, Result, checked};

/// A project id (xfs_quota(8)); 0 is the filesystem's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProjectId(pub u32);

/// What a project uses and may use. Limits of 0 mean none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProjectQuota {
    /// Bytes in use.
    pub used_bytes: u64,
    /// Inodes in use.
    pub used_inodes: u64,
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// The limit on inodes.
    pub limit_inodes: u64,
    /// Whether there is a soft limit on either, which binds as well once its time is over.
    pub soft: bool,
}

impl ProjectQuota {
    /// Returns whether nothing is charged to the project.
    pub fn is_unused(&self) -> bool {
        (self.used_bytes, self.used_inodes) == (0, 0)
    }

    /// Returns whether exactly these limits bind, in bytes and inodes.
    pub fn is_limited_to(&self, limits: (u64, u64)) -> bool {
        (self.limit_bytes, self.limit_inodes) == limits && !self.soft
    }
}

/// How looking at a quota behaves on a frozen filesystem. On any other there is no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It waits until the filesystem is thawed, as a write would.
    Waiting,
    /// It does not wait. ext4 then complains in the kernel log about each project that it does not have in memory.
    AtOnce,
}

/// How far project quotas are switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// Not at all.
    Off,
    /// Use is counted; limits are not enforced.
    Accounted,
    /// Use is counted and limits are enforced.
    Enforced,
}

/// `PRJQUOTA` of linux/quota.h, the quota type that every command carries in its low byte (`QCMD`).
const PROJECT: u32 = 2;
/// `Q_SETQUOTA`: sets limits.
pub const SET: u32 = (0x80_0008 << 8) | PROJECT;
/// `Q_GETQUOTA`: a project's usage and limits.
pub const GET: u32 = (0x80_0007 << 8) | PROJECT;
/// `Q_XGETQUOTA` of linux/dqblk_xfs.h, which ext4 supports too: the same.
pub const XFS_GET: u32 = (0x5803 << 8) | PROJECT;
/// `Q_GETNEXTQUOTA`: the next project that the filesystem knows, with its usage and limits.
pub const GET_NEXT: u32 = (0x80_0009 << 8) | PROJECT;
/// `Q_XGETNEXTQUOTA` of linux/dqblk_xfs.h, which ext4 supports too: the same.
pub const XFS_GET_NEXT: u32 = (0x5809 << 8) | PROJECT;
/// `Q_XGETQSTATV` of linux/dqblk_xfs.h, which ext4 supports too: how far quotas are switched on.
pub const GET_XFS_STATE: u32 = (0x5808 << 8) | PROJECT;

/// `QIF_LIMITS` of linux/quota.h: block and inode limits are valid.
const LIMITS: u32 = 1 | 4;
/// `FS_QUOTA_PDQ_ACCT` and `FS_QUOTA_PDQ_ENFD`.
const ACCOUNTED: u16 = 0x10;
const ENFORCED: u16 = 0x20;
/// Limits are counted in blocks of this size (`QIF_DQBLKSIZE`).
const BLOCK: u64 = 1024;
/// XFS counts limits and use in blocks of this size.
const XFS_BLOCK: u64 = 512;

/// `struct if_nextdqblk` of linux/quota.h; without its last field it is `struct if_dqblk`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Block {
    hard_blocks: u64,
    soft_blocks: u64,
    used_bytes: u64,
    hard_inodes: u64,
    soft_inodes: u64,
    used_inodes: u64,
    block_grace: u64,
    inode_grace: u64,
    valid: u32,
    id: u32,
}

/// `struct fs_disk_quota` of linux/dqblk_xfs.h; the fields at its end are of no interest here.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct XfsBlock {
    kind: u32,
    id: u32,
    hard_blocks: u64,
    soft_blocks: u64,
    hard_inodes: u64,
    soft_inodes: u64,
    used_blocks: u64,
    used_inodes: u64,
    more: [u64; 7],
}

/// `struct fs_quota_statv` of linux/dqblk_xfs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct XfsState {
    version: i8,
    padding: u8,
    flags: u16,
    in_core: u32,
    files: [[u64; 3]; 3],
    timers: [i32; 3],
    warnings: [u16; 4],
    more: [u64; 8],
}

/// Returns whether project quotas are on, and how many blocks the files take in which all quotas are kept. XFS counts
/// blocks of the filesystem there, ext4 those of 512 bytes.
pub fn state(filesystem: impl AsFd) -> Result<(Enforcement, u64)> {
    let mut found = XfsState { version: 1, ..XfsState::default() };
    let enforcement = match call(filesystem, GET_XFS_STATE, 0, &mut found) {
        Ok(()) if found.flags & ENFORCED != 0 => Enforcement::Enforced,
        Ok(()) if found.flags & ACCOUNTED != 0 => Enforcement::Accounted,
        Ok(()) | Err(Error { errno: Errno::NOSYS | Errno::SRCH | Errno::OPNOTSUPP | Errno::INVAL, .. }) => {
            Enforcement::Off
        }
        Err(error) => return Err(error),
    };
    Ok((enforcement, found.files.iter().map(|[_, blocks, _]| *blocks).fold(0, u64::saturating_add)))
}

/// Returns what a project uses and may use; one that the filesystem does not know uses nothing.
pub fn get(filesystem: impl AsFd, look: Look, project: ProjectId) -> Result<ProjectQuota> {
    let found = match look {
        Look::Waiting => find(filesystem, GET, project, |block: &Block| (block.id, quota_of(block))),
        Look::AtOnce => find(filesystem, XFS_GET, project, |block: &XfsBlock| (block.id, quota_of_xfs(block))),
    };
    Ok(found?.map(|(_, quota)| quota).unwrap_or_default())
}

/// The first project at or after `from` that the filesystem knows. XFS walks there through every block that its quota
/// file has: the caller must know that one is not far.
pub fn get_next(filesystem: impl AsFd, look: Look, from: ProjectId) -> Result<Option<(ProjectId, ProjectQuota)>> {
    match look {
        Look::Waiting => find(filesystem, GET_NEXT, from, |block: &Block| (block.id, quota_of(block))),
        Look::AtOnce => find(filesystem, XFS_GET_NEXT, from, |block: &XfsBlock| (block.id, quota_of_xfs(block))),
    }
}

fn find<T: Default>(
    filesystem: impl AsFd,
    command: u32,
    project: ProjectId,
    read: impl FnOnce(&T) -> (u32, ProjectQuota),
) -> Result<Option<(ProjectId, ProjectQuota)>> {
    let mut block = T::default();
    match call(filesystem, command, project.0, &mut block) {
        Ok(()) => {
            let (id, quota) = read(&block);
            Ok(Some((ProjectId(id), quota)))
        }
        Err(Error { errno: Errno::NOENT | Errno::SRCH, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sets a project's hard limits; 0 for both removes them.
pub fn set(filesystem: impl AsFd, project: ProjectId, bytes: u64, inodes: u64) -> Result<()> {
    let mut new = Block { hard_blocks: bytes.div_ceil(BLOCK), hard_inodes: inodes, valid: LIMITS, ..Block::default() };
    call(filesystem, SET, project.0, &mut new)
}

fn call<T>(filesystem: impl AsFd, command: u32, id: u32, block: &mut T) -> Result<()> {
    // SAFETY: the kernel reads and writes no more than the command's structure, which `T` mirrors; `block` outlives the
    // call.
    let returned = unsafe { libc::syscall(libc::SYS_quotactl_fd, raw_fd(&filesystem), command, id, &raw mut *block) };
    checked(returned, "quotactl_fd")
}

fn quota_of(block: &Block) -> ProjectQuota {
    ProjectQuota {
        used_bytes: block.used_bytes,
        used_inodes: block.used_inodes,
        limit_bytes: block.hard_blocks.saturating_mul(BLOCK),
        limit_inodes: block.hard_inodes,
        soft: (block.soft_blocks, block.soft_inodes) != (0, 0),
    }
}

fn quota_of_xfs(block: &XfsBlock) -> ProjectQuota {
    ProjectQuota {
        used_bytes: block.used_blocks.saturating_mul(XFS_BLOCK),
        used_inodes: block.used_inodes,
        limit_bytes: block.hard_blocks.saturating_mul(XFS_BLOCK),
        limit_inodes: block.hard_inodes,
        soft: (block.soft_blocks, block.soft_inodes) != (0, 0),
    }
}
