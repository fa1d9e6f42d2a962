//! Space that a pool keeps in reserve for deletions. A deleted volume gets a longer name, for which the pool's
//! directory may need another block: when none is left, part of the ballast is given up for it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FallocateFlags, Mode, OFlags};

use super::layout::BALLAST;
use crate::sys::{Errno, Result as SysResult, file};

/// How much is kept.
const SIZE: u64 = 4 << 20;
/// How much is given up at a time: more than XFS requires to be free before it renames (some 150 blocks).
const PART: u64 = 1 << 20;

/// The file that occupies a pool's reserve, or why there is none: a pool may be full before it gets one.
#[derive(Debug)]
pub struct Ballast(SysResult<OwnedFd>);

impl Ballast {
    /// The ballast of a pool, as far as there is room for it.
    pub fn open(pool: impl AsFd) -> Self {
        // Create it only if it is missing: creation waits forever on a frozen filesystem, and the other pools must be
        // served.
        let ballast = Self(match file::open(&pool, BALLAST, OFlags::RDWR) {
            Err(Errno::NOENT) => file::create(&pool, BALLAST, Mode::RUSR | Mode::WUSR),
            opened => opened,
        });
        ballast.take();
        ballast
    }

    /// Occupies the space again, if there is that much.
    pub fn take(&self) {
        if let Ok(file) = &self.0
            && file::status(file).is_ok_and(|status| status.size < SIZE)
        {
            // If this fails, there may be room after the next deletion.
            let _ = rustix::fs::fallocate(file, FallocateFlags::empty(), 0, SIZE);
        }
    }

    /// Gives up part of the space, immediately.
    pub fn give(&self) -> SysResult<()> {
        let file = self.0.as_ref().map_err(|errno| *errno)?;
        let size = file::status(file)?.size;
        rustix::fs::ftruncate(file, size.saturating_sub(PART))?;
        // ext4 reuses freed blocks only after the journal has been written.
        file::sync(file)
    }
}
