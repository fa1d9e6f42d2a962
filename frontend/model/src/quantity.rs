//! Sizes as text: read as Kubernetes reads them, written exactly for machines (`5Gi`) and briefly for people (`5 GiB`). The
//! crates that read quantities are tied to one release of the API's types each, and write nothing for people.

use std::fmt;
use std::str::FromStr;

/// The units in which people may give a size on a command line.
const UNITS: [&str; 9] = ["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"];

/// Binary units, each 1024 times the one before.
const BINARY_UNITS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Decimal units with their powers of ten.
const DECIMAL_UNITS: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

/// A number of bytes, shown to people as `914 MiB`, and read from a command line: `10Gi`, `500M`, `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantity(pub i64);

/// The text is not a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid size {0:?}: give a whole number and a unit, such as 10Gi (units: k, M, G, T, Ki, Mi, Gi, Ti)")]
pub struct InvalidQuantity(String);

impl From<u64> for Quantity {
    fn from(bytes: u64) -> Self {
        Self(i64::try_from(bytes).unwrap_or(i64::MAX))
    }
}

impl FromStr for Quantity {
    type Err = InvalidQuantity;

    /// Accepts less than Kubernetes does: `500m` is half a byte there, and a typo here.
    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        let unit = text.trim_start_matches(|character: char| character.is_ascii_digit());
        let bytes = parse(text).filter(|_| text != unit && UNITS.contains(&unit));
        bytes.map(Self::from).ok_or_else(|| InvalidQuantity(text.to_owned()))
    }
}

impl fmt::Display for Quantity {
    /// In the largest binary unit up to TiB; with one decimal place if that leaves a remainder.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.unsigned_abs();
        let sign = if self.0 < 0 { "-" } else { "" };
        let units = &BINARY_UNITS[..5];
        let step = (0..units.len()).rev().find(|step| bytes >> (10 * step) > 0).unwrap_or(0);
        let unit = 1_u64 << (10 * step);
        let number = if bytes.is_multiple_of(unit) {
            format!("{sign}{}", bytes / unit)
        } else {
            format!("{sign}{:.1}", bytes as f64 / unit as f64)
        };
        out.pad(&format!("{number} {}B", units[step]))
    }
}

/// The number of bytes in a Kubernetes quantity, rounded up to a whole byte. `None` if `text` is not a quantity,
/// negative, or beyond `i64::MAX`, which is as far as the API server counts.
///
/// Source: apimachinery, `resource.Quantity`: a decimal number with a binary suffix (Ki to Ei), a decimal one (n to
/// E), or an exponent.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let number_end = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let (binary, exponent) = scale(suffix)?;
    // The number is `digits` × 10^`power` × `binary`.
    let digits = format!("{whole}{}", fraction.trim_end_matches('0'));
    let power = exponent - i32::try_from(fraction.trim_end_matches('0').len()).ok()?;
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    let value = digits.parse::<u128>().ok()?.checked_mul(binary)?;
    let ten = 10_u128.checked_pow(power.unsigned_abs());
    let value = match (power >= 0, ten) {
        (true, Some(ten)) => value.checked_mul(ten)?,
        (true, None) => return None,
        (false, Some(ten)) => value.div_ceil(ten),
        // Anything above zero, however small, is rounded up to one.
        (false, None) => 1,
    };
    u64::try_from(value).ok().filter(|bytes| i64::try_from(*bytes).is_ok())
}

/// `bytes` as a Kubernetes quantity, without rounding: in the largest binary unit that leaves no remainder.
pub fn exact(bytes: u64) -> String {
    let mut number = bytes;
    let mut unit = 0;
    while number != 0 && number.is_multiple_of(1024) && unit + 1 < BINARY_UNITS.len() {
        number /= 1024;
        unit += 1;
    }
    format!("{number}{}", BINARY_UNITS[unit])
}

/// A number of things called `noun`: `1 volume`, `2 volumes`.
pub fn count(number: impl Into<u64>, noun: &str) -> String {
    match number.into() {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// The factors that a suffix stands for: a binary one, and a power of ten.
fn scale(suffix: &str) -> Option<(u128, i32)> {
    if let Some((_, power)) = DECIMAL_UNITS.iter().find(|(unit, _)| *unit == suffix) {
        return Some((1, *power));
    }
    if let Some(step) = BINARY_UNITS.iter().position(|unit| *unit == suffix) {
        return Some((1_u128 << (10 * step), 0));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?.parse().ok();
    exponent.filter(|power| (-64..=64).contains(power)).map(|power| (1, power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suffix() {
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("+1", 1),
            ("1Ki", 1 << 10),
            ("1Mi", 1 << 20),
            ("5Gi", 5 << 30),
            ("2Ti", 2 << 40),
            ("1Pi", 1 << 50),
            ("7Ei", 7 << 60),
            ("1k", 1000),
            ("1M", 1_000_000),
            ("1G", 1_000_000_000),
            ("1T", 1_000_000_000_000),
            ("1P", 1_000_000_000_000_000),
            ("9E", 9_000_000_000_000_000_000),
            ("1e3", 1000),
            ("1E3", 1000),
            ("12e-1", 2),
            ("123.456k", 123_456),
            ("1.5Gi", 3 << 29),
            (".5Ki", 512),
            ("5.", 5),
            ("00000000000000000000000000000000000000000000001Ki", 1024),
        ] {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn a_fraction_of_a_byte_counts_as_one() {
        for (text, expected) in [("1m", 1), ("1500m", 2), ("1n", 1), ("0.1", 1), ("1.0000001Ki", 1025), ("1e-64", 1)] {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn invalid_quantities() {
        for text in ["", ".", "-1", "Gi", "1 Gi", "1gi", "1K", "1e", "1e99", "1.2.3", "8Ei", "10E", "٣", "1Gi "] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn written_exactly() {
        for (bytes, text) in [(0, "0"), (1, "1"), (1024, "1Ki"), (1536, "1536"), (5 << 30, "5Gi"), (1 << 60, "1Ei")] {
            assert_eq!(exact(bytes), text);
            assert_eq!(parse(text), Some(bytes));
        }
    }

    #[test]
    fn people_give_whole_numbers() {
        for (text, bytes) in
            [("4096", 4096), ("10Gi", 10 << 30), ("1Ti", 1 << 40), ("500M", 500_000_000), ("3k", 3000), ("0", 0)]
        {
            assert_eq!(text.parse(), Ok(Quantity(bytes)), "{text}");
        }
        let not_whole = ["1.5Gi", "500m", "1e3", "+1", ".5Ki", "5."];
        let not_sizes = ["", "Gi", "-1", "1 Gi", "1gi", "10GB", "9223372036854775808", "99999999Ti", "٣"];
        for text in not_whole.iter().chain(&not_sizes) {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!([0_u32, 1, 2].map(|number| count(number, "claim")), ["0 claims", "1 claim", "2 claims"]);
    }

    #[test]
    fn shown_in_the_largest_unit() {
        for (bytes, text) in
            [(0, "0 B"), (512, "512 B"), (1 << 30, "1 GiB"), (3 << 29, "1.5 GiB"), (914 << 20, "914 MiB")]
        {
            assert_eq!(Quantity(bytes).to_string(), text);
        }
    }
}
