//! Sizes in bytes and numbers of inodes.

use crate::number::checked_number;

/// Every volume size is a multiple of this: the page size, which quotas, images and loop devices can all represent
/// exactly.
pub const SIZE_STEP: u64 = 4096;

const MAX: u64 = i64::MAX as u64 / SIZE_STEP * SIZE_STEP;

checked_number!(
    /// A volume's size in bytes: a multiple of [`SIZE_STEP`], at least one step and below 2^63.
    ///
    /// Zero is not a size, because to a quota it means "no limit" (quotactl(2)).
    Bytes(u64 = "u64"),
    |bytes: u64| bytes != 0 && bytes.is_multiple_of(SIZE_STEP) && bytes <= MAX,
    "{}",
    "a size is a positive multiple of 4096 bytes below 2^63"
);

checked_number!(
    /// A limit on a volume's inodes (files, directories, links): 1 to `u32::MAX`.
    Inodes(u64 = "u64"),
    |inodes: u64| inodes != 0 && inodes <= u64::from(u32::MAX),
    "{}",
    "a number of inodes is 1 to 4294967295"
);

impl Bytes {
    /// The largest size.
    pub const MAX: Self = Self(MAX);

    /// `bytes` rounded up to the next valid size; `None` for zero and beyond [`Bytes::MAX`].
    pub fn round_up(bytes: u64) -> Option<Self> {
        Self::try_from(bytes.checked_next_multiple_of(SIZE_STEP)?).ok()
    }
}
