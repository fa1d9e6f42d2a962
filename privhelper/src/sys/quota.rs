//! Project quotas by quotactl_fd(2) (Linux 5.14), which works on any descriptor of the filesystem.

use std::os::fd::AsFd;

use nix::libc;

use super::file::raw_fd;
use super::{Errno, Result, checked};

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
}

impl ProjectQuota {
    /// Whether nothing is charged to the project and nothing limits it.
    pub fn is_unused(&self) -> bool {
        *self == Self::default()
    }
}

/// How far project quotas are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaState {
    /// Not at all.
    Off,
    /// Use is counted; limits are not enforced.
    Accounted,
    /// Use is counted and limits are enforced.
    Enforced,
}

/// `PRJQUOTA` of linux/quota.h, the kind of quotas that every command names in its low byte (`QCMD`).
const PROJECT: u32 = 2;
/// `Q_GETQUOTA`: what one project uses and may use.
pub const GET: u32 = (0x80_0007 << 8) | PROJECT;
/// `Q_SETQUOTA`: sets limits.
pub const SET: u32 = (0x80_0008 << 8) | PROJECT;
/// `Q_GETNEXTQUOTA`: the same as the first for the next project that the filesystem knows.
pub const GET_NEXT: u32 = (0x80_0009 << 8) | PROJECT;
/// `Q_XGETQSTATV` of linux/dqblk_xfs.h, which ext4 answers too: how far quotas are on.
const GET_XFS_STATE: u32 = (0x5808 << 8) | PROJECT;

/// `QIF_LIMITS` of linux/quota.h: block and inode limits are valid.
const LIMITS: u32 = 1 | 4;
/// `FS_QUOTA_PDQ_ACCT` and `FS_QUOTA_PDQ_ENFD`.
const ACCOUNTED: u16 = 0x10;
const ENFORCED: u16 = 0x20;
/// Limits are counted in blocks of this size (`QIF_DQBLKSIZE`).
const BLOCK: u64 = 1024;

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

/// `struct fs_quota_statv` of linux/dqblk_xfs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct XfsState {
    version: i8,
    padding: u8,
    flags: u16,
    in_core: u32,
    files: [u64; 9],
    timers: [i32; 3],
    warnings: [u16; 4],
    more: [u64; 8],
}

/// Whether project quotas are on.
pub fn state(filesystem: impl AsFd) -> Result<QuotaState> {
    let mut found = XfsState { version: 1, ..XfsState::default() };
    // SAFETY: the kernel reads the version and writes one `struct fs_quota_statv` to the pointer; it lives through the call.
    let called = checked(unsafe {
        libc::syscall(libc::SYS_quotactl_fd, raw_fd(&filesystem), GET_XFS_STATE, 0_u32, &raw mut found)
    });
    match called {
        Ok(_) if found.flags & ENFORCED != 0 => Ok(QuotaState::Enforced),
        Ok(_) if found.flags & ACCOUNTED != 0 => Ok(QuotaState::Accounted),
        Ok(_) | Err(Errno::NOSYS | Errno::SRCH | Errno::OPNOTSUPP | Errno::INVAL) => Ok(QuotaState::Off),
        Err(errno) => Err(errno),
    }
}

/// What a project uses and may use; one the filesystem has never heard of uses nothing.
pub fn get(filesystem: impl AsFd, project: ProjectId) -> Result<ProjectQuota> {
    match read(filesystem, GET, project.0) {
        Ok(block) => Ok(quota_of(&block)),
        Err(Errno::NOENT | Errno::SRCH) => Ok(ProjectQuota::default()),
        Err(errno) => Err(errno),
    }
}

/// The first project from `from` on that the filesystem knows.
pub fn get_next(filesystem: impl AsFd, from: ProjectId) -> Result<Option<(ProjectId, ProjectQuota)>> {
    match read(filesystem, GET_NEXT, from.0) {
        Ok(block) => Ok(Some((ProjectId(block.id), quota_of(&block)))),
        Err(Errno::NOENT | Errno::SRCH) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Sets a project's hard limits; 0 for both takes them away.
pub fn set(filesystem: impl AsFd, project: ProjectId, bytes: u64, inodes: u64) -> Result<()> {
    let block = Block { hard_blocks: bytes.div_ceil(BLOCK), hard_inodes: inodes, valid: LIMITS, ..Block::default() };
    // SAFETY: the kernel reads one `struct if_dqblk`, the head of `Block`, from the pointer; it lives through the call.
    checked(unsafe { libc::syscall(libc::SYS_quotactl_fd, raw_fd(&filesystem), SET, project.0, &raw const block) })
        .map(drop)
}

fn read(filesystem: impl AsFd, command: u32, id: u32) -> Result<Block> {
    let mut block = Block::default();
    // SAFETY: the kernel writes at most one `struct if_nextdqblk`, which `Block` mirrors, to the pointer; it lives through the call.
    checked(unsafe { libc::syscall(libc::SYS_quotactl_fd, raw_fd(&filesystem), command, id, &raw mut block) })?;
    Ok(block)
}

fn quota_of(block: &Block) -> ProjectQuota {
    ProjectQuota {
        used_bytes: block.used_bytes,
        used_inodes: block.used_inodes,
        limit_bytes: block.hard_blocks.saturating_mul(BLOCK),
        limit_inodes: block.hard_inodes,
    }
}
