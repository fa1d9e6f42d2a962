//! Project quotas through quotactl_fd(2) (Linux 5.14), which works on any descriptor on the filesystem.

use std::os::fd::AsFd;

use nix::libc;
use serde::{Deserialize, Serialize};

use super::file::raw_fd;
use super::{Errno, Error, Result, checked};

/// A project id (xfs_quota(8)); 0 is the filesystem's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProjectId(pub u32);

/// What a project uses and may use. Limits of 0 mean none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// How looking at a quota behaves on a frozen filesystem. On any other there is no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Look {
    /// It waits until the filesystem is thawed, as a write would.
    Waiting,
    /// It does not wait. ext4 then complains in the kernel log about each project that it does not have in memory.
    AtOnce,
}

/// `PRJQUOTA` of linux/quota.h, the quota type that every command carries in its low byte (`QCMD`).
pub(super) const PROJECT: u32 = 2;
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
/// `QIF_LIMITS` of linux/quota.h: block and inode limits are valid.
const LIMITS: u32 = 1 | 4;
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

/// Returns what a project uses and may use; one that the filesystem does not know uses nothing.
pub fn get(filesystem: impl AsFd, look: Look, project: ProjectId) -> Result<ProjectQuota> {
    Ok(find(filesystem, look, [GET, XFS_GET], project)?.map(|(_, quota)| quota).unwrap_or_default())
}

/// The first project at or after `from` that the filesystem knows. XFS walks there through every block that its quota
/// file has: the caller must know that one is not far.
pub fn get_next(filesystem: impl AsFd, look: Look, from: ProjectId) -> Result<Option<(ProjectId, ProjectQuota)>> {
    find(filesystem, look, [GET_NEXT, XFS_GET_NEXT], from)
}

/// Makes the first of two calls for a project, or the one that waits for nothing.
fn find(
    filesystem: impl AsFd,
    look: Look,
    [waiting, at_once]: [u32; 2],
    project: ProjectId,
) -> Result<Option<(ProjectId, ProjectQuota)>> {
    let (mut block, mut of_xfs) = (Block::default(), XfsBlock::default());
    let found = match look {
        Look::Waiting => call(filesystem, waiting, project.0, &mut block).map(|()| (block.id, quota_of(&block))),
        Look::AtOnce => call(filesystem, at_once, project.0, &mut of_xfs).map(|()| (of_xfs.id, quota_of_xfs(&of_xfs))),
    };
    match found {
        Ok((id, quota)) => Ok(Some((ProjectId(id), quota))),
        Err(Error { errno: Errno::NOENT | Errno::SRCH, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sets a project's hard limits, in bytes and inodes; 0 for both removes them.
pub fn set(filesystem: impl AsFd, project: ProjectId, (bytes, inodes): (u64, u64)) -> Result<()> {
    let mut new = Block { hard_blocks: bytes.div_ceil(BLOCK), hard_inodes: inodes, valid: LIMITS, ..Block::default() };
    call(filesystem, SET, project.0, &mut new)
}

pub(super) fn call<T>(filesystem: impl AsFd, command: u32, id: u32, block: &mut T) -> Result<()> {
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
