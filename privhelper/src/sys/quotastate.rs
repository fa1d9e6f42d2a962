//! How far project quotas are switched on (`Q_XGETQSTATV`, quotactl_fd(2)), which anybody may ask; and whether one binds.

use std::os::fd::AsFd;

use super::quota::{PROJECT, ProjectQuota, call};
use super::{Errno, Error, Result};

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

/// `Q_XGETQSTATV` of linux/dqblk_xfs.h, which ext4 supports too: how far quotas are switched on.
pub const GET_XFS_STATE: u32 = (0x5808 << 8) | PROJECT;
/// `FS_QUOTA_PDQ_ACCT` and `FS_QUOTA_PDQ_ENFD`.
const ACCOUNTED: u16 = 0x10;
const ENFORCED: u16 = 0x20;

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
