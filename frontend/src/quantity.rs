//! Sizes as people write them.

use std::fmt;
use std::str::FromStr;

const UNITS: [(&str, u64); 9] = [
    ("", 1),
    ("k", 1000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
];

/// A number of bytes, written as a whole number and a unit: `10Gi`, `500M`, `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantity(pub i64);

/// The text is not a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid size {0:?}: give a whole number and a unit, such as 10Gi (units: k, M, G, T, Ki, Mi, Gi, Ti)")]
pub struct InvalidQuantity(String);

impl FromStr for Quantity {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        let digits = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        let unit = UNITS.iter().find(|(name, _)| *name == suffix).map(|(_, unit)| *unit);
        let bytes = number.parse::<u64>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
        bytes.and_then(|bytes| i64::try_from(bytes).ok()).map(Self).ok_or_else(|| InvalidQuantity(text.to_owned()))
    }
}

impl fmt::Display for Quantity {
    /// In the largest binary unit that leaves no remainder; otherwise with one decimal.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.unsigned_abs();
        let sign = if self.0 < 0 { "-" } else { "" };
        let units = ["", "Ki", "Mi", "Gi", "Ti"];
        let step = (0..units.len()).rev().find(|step| bytes >> (10 * step) > 0).unwrap_or(0);
        let unit = 1_u64 << (10 * step);
        if bytes.is_multiple_of(unit) {
            write!(out, "{sign}{}{}", bytes / unit, units[step])
        } else {
            write!(out, "{sign}{:.1}{}", bytes as f64 / unit as f64, units[step])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities() {
        for (text, bytes) in
            [("4096", 4096), ("10Gi", 10 << 30), ("1Ti", 1 << 40), ("500M", 500_000_000), ("3k", 3000), ("0", 0)]
        {
            assert_eq!(text.parse(), Ok(Quantity(bytes)), "{text}");
        }
        for text in ["", "Gi", "-1", "1.5Gi", "1 Gi", "1gi", "10GB", "9223372036854775808", "99999999Ti", "٣"] {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
    }

    #[test]
    fn shown_in_the_largest_unit() {
        for (bytes, text) in [(0, "0"), (512, "512"), (1 << 30, "1Gi"), (3 << 29, "1.5Gi"), (1 << 20, "1Mi")] {
            assert_eq!(Quantity(bytes).to_string(), text);
        }
    }
}
