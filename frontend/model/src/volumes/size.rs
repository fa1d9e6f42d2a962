//! The range of sizes that a caller accepts, and the choice of a size.

use bulkhead_protocol::{Bytes, Inodes, SIZE_STEP};

use super::Fault;
use crate::quantity::Quantity;

/// The smallest size of a volume: a smaller block volume could not hold a useful filesystem.
pub const MINIMUM_BYTES: u64 = 1 << 20;

/// The smallest size of a volume whose filesystem is in an image: no smaller one can be made.
pub const MINIMUM_IMAGE_BYTES: u64 = 300 << 20;

/// The default size of a volume.
const DEFAULT_BYTES: u64 = 1 << 30;

/// A directory volume gets one inode per this many bytes, unless the caller requests a number.
const BYTES_PER_INODE: u64 = 16 << 10;

/// The minimum of this default.
const MINIMUM_INODES: u64 = 1024;

/// The sizes that a caller accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeRange {
    required: Option<u64>,
    limit: Option<u64>,
}

impl SizeRange {
    /// Any size.
    pub const ANY: Self = Self { required: None, limit: None };

    /// `required` bytes or more, up to `limit`; zero means unset, and one of the two must be set.
    ///
    /// # Errors
    /// When one is negative, neither is set, or they exclude each other.
    pub fn new(required: i64, limit: i64) -> Result<Self, Fault> {
        let unsigned = |field, bytes: i64| match u64::try_from(bytes) {
            Ok(0) => Ok(None),
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) => Err(Fault::invalid(format!("capacity_range.{field} is negative: {bytes}"))),
        };
        let range = Self { required: unsigned("required_bytes", required)?, limit: unsigned("limit_bytes", limit)? };
        match (range.required, range.limit) {
            (None, None) => Err(Fault::invalid("capacity_range is empty: set required_bytes or limit_bytes")),
            (Some(required), Some(limit)) if required > limit => Err(Fault::invalid(format!(
                "capacity_range: required_bytes {required} is more than limit_bytes {limit}"
            ))),
            _ => Ok(range),
        }
    }

    /// The size that a new volume gets, which is at least `minimum` bytes. It is what is required, up to a step: whoever
    /// counts what is asked for counts what is taken.
    ///
    /// # Errors
    /// When less than the minimum is required, or rounding up exceeds the limit or the largest possible size.
    pub fn choose(&self, minimum: u64) -> Result<Bytes, Fault> {
        if let Some(required) = self.required.filter(|required| *required < minimum) {
            let minimum = Quantity::from(minimum);
            return Err(Fault::out_of_range(format!(
                "{} is less than such a volume can have: request at least {minimum}",
                Quantity::from(required)
            )));
        }
        let default = || DEFAULT_BYTES.min(self.limit.unwrap_or(u64::MAX)) / SIZE_STEP * SIZE_STEP;
        let wanted = self.required.unwrap_or_else(default);
        let size = Bytes::round_up(wanted.max(minimum)).ok_or_else(|| {
            Fault::out_of_range(format!("{} is larger than any volume can be", Quantity::from(wanted)))
        })?;
        match self.limit {
            // In bytes, since the two may differ by less than a unit.
            Some(limit) if size.get() > limit => Err(Fault::out_of_range(format!(
                "no volume size is between {wanted} and {limit} bytes: sizes are multiples of {} and at least {}",
                Quantity::from(SIZE_STEP),
                Quantity::from(minimum)
            ))),
            _ => Ok(size),
        }
    }

    /// The size that a copy of something of size `source` gets: the same, unless another one is required. What its source
    /// has is never too little.
    ///
    /// # Errors
    /// As [`Self::choose`], and when the source would not fit.
    pub fn choose_copy(&self, source: Bytes) -> Result<Bytes, Fault> {
        let range = Self { required: self.required.or(Some(source.get())), limit: self.limit };
        let size = range.choose(SIZE_STEP)?;
        if size < source {
            return Err(Fault::out_of_range(format!(
                "the source has {source} bytes, more than the {size} that are requested: request at least as much"
            )));
        }
        Ok(size)
    }

    /// Returns whether a size is in the range.
    pub fn admits(&self, size: Bytes) -> bool {
        size.get() >= self.required.unwrap_or(0) && size.get() <= self.limit.unwrap_or(u64::MAX)
    }

    /// The size to which a volume of size `current` has to grow; `current` when it is large enough.
    ///
    /// # Errors
    /// When no size in the range is possible, because volumes never shrink or because of rounding.
    pub fn grow(&self, current: Bytes) -> Result<Bytes, Fault> {
        match (self.required, self.limit) {
            (Some(required), _) if required > current.get() => self.choose(MINIMUM_BYTES),
            (None, Some(limit)) if limit < current.get() => Err(Fault::out_of_range(format!(
                "the volume has {}, more than limit_bytes {limit}, and volumes do not shrink",
                Quantity::from(current.get())
            ))),
            _ => Ok(current),
        }
    }
}

/// The default number of inodes of a directory volume of this size.
pub fn default_inodes(size: Bytes) -> Inodes {
    let most = u64::from(u32::MAX);
    let number = (size.get() / BYTES_PER_INODE).clamp(MINIMUM_INODES, most);
    match Inodes::try_from(number) {
        Ok(inodes) => inodes,
        Err(_) => unreachable!("a number between {MINIMUM_INODES} and {most}"),
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::ErrorKind;

    use super::super::FaultKind;
    use super::*;

    const MIB: i64 = 1 << 20;

    fn chosen(required: i64, limit: i64) -> Result<u64, FaultKind> {
        let range = SizeRange::new(required, limit).map_err(|fault| fault.kind)?;
        range.choose(MINIMUM_BYTES).map(Bytes::get).map_err(|fault| fault.kind)
    }

    fn bytes(size: u64) -> Bytes {
        Bytes::try_from(size).unwrap()
    }

    #[test]
    fn sizes_are_rounded_up() {
        assert_eq!(chosen(MIB, 0), Ok(1 << 20));
        assert_eq!(chosen(MIB + 1, 0), Ok((1 << 20) + 4096));
        assert_eq!(chosen(64 * MIB, 64 * MIB), Ok(64 << 20));
    }

    #[test]
    fn rounding_never_passes_the_limit() {
        assert_eq!(chosen(MIB + 1, MIB + 2), Err(FaultKind::OutOfRange));
        assert_eq!(chosen(1, MIB - 1), Err(FaultKind::OutOfRange));
        assert_eq!(chosen(0, 4095), Err(FaultKind::OutOfRange));
        assert_eq!(chosen(i64::MAX, 0), Err(FaultKind::OutOfRange));
    }

    #[test]
    fn nonsense_is_refused() {
        let invalid = Err(FaultKind::Typed(ErrorKind::Invalid));
        for (required, limit) in [(-1, 0), (0, -1), (0, 0), (2 * MIB, MIB), (i64::MIN, i64::MAX)] {
            assert_eq!(chosen(required, limit), invalid, "{required} {limit}");
        }
    }

    #[test]
    fn what_is_taken_is_what_was_asked_for() {
        let least = |required, limit| SizeRange::new(required, limit).unwrap().choose(MINIMUM_IMAGE_BYTES);
        assert_eq!(least(300 * MIB, 0).map(Bytes::get), Ok(300 << 20));
        for (required, limit) in [(1, 0), (MIB, 0), (300 * MIB - 1, 0), (MIB, 1 << 40)] {
            let fault = least(required, limit).unwrap_err();
            let told = fault.to_string().ends_with("request at least 300 MiB");
            assert!(fault.kind == FaultKind::OutOfRange && told, "{fault}");
        }
        let fault = least(0, 64 * MIB).unwrap_err();
        assert!(fault.kind == FaultKind::OutOfRange && fault.to_string().ends_with("at least 300 MiB"), "{fault}");
    }

    #[test]
    fn without_a_requirement_there_is_a_default() {
        assert_eq!(SizeRange::ANY.choose(MINIMUM_BYTES).unwrap().get(), 1 << 30);
        assert_eq!(chosen(0, 10 * MIB + 1), Ok(10 << 20));
        assert_eq!(chosen(0, i64::MAX), Ok(1 << 30));
    }

    #[test]
    fn a_volume_fits_if_its_size_lies_in_the_range() {
        let range = SizeRange::new(2 * MIB, 4 * MIB).unwrap();
        assert!(!range.admits(bytes(1 << 20)));
        assert!(range.admits(bytes(2 << 20)) && range.admits(bytes(4 << 20)));
        assert!(!range.admits(bytes(5 << 20)));
        assert!(SizeRange::ANY.admits(bytes(4096)));
    }

    #[test]
    fn a_copy_is_as_large_as_its_source() {
        let source = bytes(8 << 20);
        let chosen = |range: SizeRange| range.choose_copy(source).map(Bytes::get);
        let range = |required, limit| SizeRange::new(required, limit).unwrap();
        assert_eq!(chosen(SizeRange::ANY), Ok(8 << 20));
        assert_eq!(chosen(range(0, 9 * MIB)), Ok(8 << 20));
        assert_eq!(chosen(range(16 * MIB + 1, 0)), Ok((16 << 20) + 4096));
        assert_eq!(chosen(range(8 * MIB - 1, 0)), Ok(8 << 20), "sizes are rounded up");
        for too_small in [range(4 * MIB, 0), range(4 * MIB, 16 * MIB), range(0, 4 * MIB)] {
            let fault = chosen(too_small).unwrap_err();
            assert!(fault.kind == FaultKind::OutOfRange && fault.to_string().contains("8388608"), "{fault}");
        }
        assert_eq!(SizeRange::ANY.choose_copy(bytes(4096)).map(Bytes::get), Ok(4096), "made by an earlier release");
    }

    #[test]
    fn growing_ends_at_what_is_required() {
        let current = bytes(8 << 20);
        let grown = |required, limit| SizeRange::new(required, limit).unwrap().grow(current).map(Bytes::get);
        assert_eq!(grown(16 * MIB + 1, 0), Ok((16 << 20) + 4096));
        assert_eq!(grown(4 * MIB, 0), Ok(8 << 20));
        assert_eq!(grown(4 * MIB, 5 * MIB), Ok(8 << 20));
        assert_eq!(grown(0, 16 * MIB), Ok(8 << 20));
        assert_eq!(grown(0, 4 * MIB).unwrap_err().kind, FaultKind::OutOfRange);
        assert_eq!(SizeRange::ANY.grow(current), Ok(current));
    }

    #[test]
    fn inodes_follow_the_size() {
        assert_eq!(default_inodes(bytes(1 << 20)).get(), 1024);
        assert_eq!(default_inodes(bytes(1 << 30)).get(), 65536);
        assert_eq!(default_inodes(Bytes::MAX).get(), u64::from(u32::MAX));
    }
}
