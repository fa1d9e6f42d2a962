//! Room that a pool keeps for deleting. A deleted volume gets a longer name, for which the pool's directory may need a
//! block: when there is none left, a part of the ballast is given up for it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FallocateFlags, Mode, OFlags};

use super::layout::BALLAST;
use crate::sys::{Errno, Result as SysResult, file};

/// How much is kept.
const SIZE: u64 = 4 << 20;
/// How much is given up at a time: more than XFS wants to see free before it renames (some 150 blocks).
const PART: u64 = 1 << 20;

/// The file of a pool that takes the room up, or why there is none: a pool may be full before it gets one.
#[derive(Debug)]
pub struct Ballast(SysResult<OwnedFd>);

impl Ballast {
    /// The ballast of a pool, as far as there is room for it.
    pub fn open(pool: impl AsFd) -> Self {
        // Only what must be made is: that waits for ever on a frozen filesystem, and the other pools are to be served.
        let ballast = Self(match file::open(&pool, BALLAST, OFlags::RDWR) {
            Err(Errno::NOENT) => file::create(&pool, BALLAST, Mode::RUSR | Mode::WUSR),
            opened => opened,
        });
        ballast.take();
        ballast
    }

    /// Takes the room up again, if there is that much.
    pub fn take(&self) {
        if let Ok(file) = &self.0
            && file::status(file).is_ok_and(|status| status.size < SIZE)
        {
            // Otherwise there may be room after the next deletion.
            let _ = rustix::fs::fallocate(file, FallocateFlags::empty(), 0, SIZE);
        }
    }

    /// Gives up a part of the room, at once.
    pub fn give(&self) -> SysResult<()> {
        let file = self.0.as_ref().map_err(|errno| *errno)?;
        let size = file::status(file)?.size;
        rustix::fs::ftruncate(file, size.saturating_sub(PART))?;
        // ext4 gives blocks out again only after the journal has been written.
        file::sync(file)
    }
}
