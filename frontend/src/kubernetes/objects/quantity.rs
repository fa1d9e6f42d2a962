//! Kubernetes quantities of bytes, exactly.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The number of bytes that `quantity` stands for, rounded up to a whole one; none if it is no quantity, negative, or
/// beyond `i64::MAX`, as far as the API server counts.
///
/// Source: apimachinery, `resource.Quantity`: a decimal number with a binary suffix (Ki to Ei), a decimal one (n to
/// E), or an exponent.
pub fn bytes(quantity: &Quantity) -> Option<u64> {
    let text = quantity.0.strip_prefix('+').unwrap_or(&quantity.0);
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
        // Anything above nothing, however little, is one.
        (false, None) => 1,
    };
    u64::try_from(value).ok().filter(|bytes| i64::try_from(*bytes).is_ok())
}

/// `bytes` as a quantity, in the largest binary unit that leaves no remainder.
pub fn quantity(bytes: u64) -> Quantity {
    let units = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut number = bytes;
    let mut unit = 0;
    while number != 0 && number.is_multiple_of(1024) && unit + 1 < units.len() {
        number /= 1024;
        unit += 1;
    }
    Quantity(format!("{number}{}", units[unit]))
}

/// What a suffix multiplies by: a binary factor, and a power of ten.
fn scale(suffix: &str) -> Option<(u128, i32)> {
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].iter().position(|unit| *unit == suffix);
    if let Some(step) = binary {
        return Some((1_u128 << (10 * (step + 1)), 0));
    }
    let decimal = [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15)];
    if let Some((_, power)) = decimal.iter().find(|(unit, _)| *unit == suffix) {
        return Some((1, *power));
    }
    match suffix.strip_prefix(['e', 'E'])? {
        "" if suffix == "E" => Some((1, 18)),
        exponent => exponent.parse().ok().filter(|power| (-64..=64).contains(power)).map(|power| (1, power)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<u64> {
        bytes(&Quantity(text.to_owned()))
    }

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
            assert_eq!(parsed(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn parts_of_a_byte_count_as_one() {
        for (text, expected) in [("1m", 1), ("1500m", 2), ("1n", 1), ("0.1", 1), ("1.0000001Ki", 1025), ("1e-64", 1)] {
            assert_eq!(parsed(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_none() {
        for text in ["", ".", "-1", "Gi", "1 Gi", "1gi", "1K", "1e", "1e99", "1.2.3", "8Ei", "10E", "٣", "1Gi "] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn written_exactly() {
        for (bytes, text) in [(0, "0"), (1, "1"), (1024, "1Ki"), (1536, "1536"), (5 << 30, "5Gi"), (1 << 60, "1Ei")] {
            assert_eq!(quantity(bytes).0, text);
            assert_eq!(parsed(text), Some(bytes));
        }
    }
}
