//! What a pool holds back of its filesystem, and how much of the rest it promises.

use std::str::FromStr;

/// How much is never promised or allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// So many bytes.
    Bytes(u64),
    /// So many hundredths of the filesystem's size, whatever that becomes.
    Percent(u8),
}

impl Reserve {
    /// Nothing.
    pub const NONE: Self = Self::Bytes(0);

    /// How many bytes that is of a filesystem of this size.
    pub fn of(self, size: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (size / 100).saturating_mul(percent.into()),
        }
    }
}

/// Reads a number of bytes, perhaps with a unit, or a percentage.
impl FromStr for Reserve {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "reserve must be a number of bytes, such as 1073741824 or 1Gi, or a percentage up to 99%, not {text:?}"
            )
        };
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.parse().ok().filter(|percent| matches!(percent, 0..=99));
            return percent.map(Self::Percent).ok_or_else(expected);
        }
        let mut units = ["Ki", "Mi", "Gi", "Ti", "Pi"].iter().zip([1 << 10, 1 << 20, 1 << 30, 1 << 40, 1 << 50]);
        let unit = units.find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
        let (number, unit) = unit.unwrap_or((text, 1));
        let bytes = number.parse().ok().and_then(|number: u64| number.checked_mul(unit));
        bytes.map(Self::Bytes).ok_or_else(expected)
    }
}

/// How much of its capacity a pool may promise: a decimal number with at most three decimals, in thousandths.
///
/// # Errors
/// A sentence that says what is expected.
pub fn permille(text: &str) -> Result<u64, String> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let plain = !whole.is_empty()
        && matches!(decimals.len(), 1..=3)
        && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let thousandths =
        format!("{whole}{decimals:0<3}").parse().ok().filter(|value| plain && matches!(value, 1..=1_000_000));
    thousandths.ok_or_else(|| format!("overcommit must be a number from 0.001 to 1000, not {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_of_a_size() {
        for (text, size, bytes) in [("4096", 1 << 40, 4096), ("10%", 1000, 100), ("99%", u64::MAX, u64::MAX / 100 * 99)]
        {
            assert_eq!(text.parse::<Reserve>().expect(text).of(size), bytes, "{text}");
        }
        assert_eq!((Reserve::Percent(10).of(99), Reserve::NONE.of(u64::MAX)), (0, 0));
    }
}
