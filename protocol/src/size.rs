//! Sizes in bytes and numbers of inodes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Every volume size is a multiple of this: the page size, which quotas, images and loop devices can all hold exactly.
pub const SIZE_STEP: u64 = 4096;

/// A volume's size in bytes: a multiple of [`SIZE_STEP`], at least one step and at most `i64::MAX`.
///
/// Zero is no size, because to a quota it means "no limit" (quotactl(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64")]
pub struct Bytes(u64);

/// A limit on a volume's inodes (files, directories, links): 1 to `u32::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64")]
pub struct Inodes(u64);

/// The number is no size, or no number of inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidSize;

impl Bytes {
    /// The largest size.
    pub const MAX: Self = Self(i64::MAX as u64 / SIZE_STEP * SIZE_STEP);

    /// The size in bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// `bytes` rounded up to the next size there is; `None` for zero and beyond [`Bytes::MAX`].
    pub fn round_up(bytes: u64) -> Option<Self> {
        let rounded = bytes.checked_next_multiple_of(SIZE_STEP)?;
        Self::try_from(rounded).ok()
    }
}

impl Inodes {
    /// The number of inodes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for Bytes {
    type Error = InvalidSize;

    fn try_from(bytes: u64) -> Result<Self, InvalidSize> {
        if bytes == 0 || !bytes.is_multiple_of(SIZE_STEP) || bytes > Self::MAX.0 {
            Err(InvalidSize)
        } else {
            Ok(Self(bytes))
        }
    }
}

impl TryFrom<u64> for Inodes {
    type Error = InvalidSize;

    fn try_from(inodes: u64) -> Result<Self, InvalidSize> {
        if inodes == 0 || inodes > u64::from(u32::MAX) { Err(InvalidSize) } else { Ok(Self(inodes)) }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

impl fmt::Display for Inodes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

impl fmt::Display for InvalidSize {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a size is a positive multiple of 4096 bytes below 2^63, a number of inodes is 1 to 4294967295")
    }
}

impl std::error::Error for InvalidSize {}
