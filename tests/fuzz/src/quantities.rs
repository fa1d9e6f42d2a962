//! Sizes as text, in objects of the API and on command lines.

use bulkhead_model::quantity::{Quantity, exact, parse};

/// What is read is written so that it is read as the same, and is what floating point makes of it, nearly.
pub fn run(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let read = parse(text);
    if let Some(estimate) = estimate(text) {
        let is_near = |bytes: u64| {
            let (above, below) = (bytes as f64 - estimate, estimate - bytes as f64);
            above <= 1.0 + estimate * 1e-9 && below <= estimate * 1e-9
        };
        // At the greatest number, floating point does not tell.
        let is_beyond = estimate * (1.0 + 1e-9) >= i64::MAX as f64;
        assert!(read.map_or(is_beyond, is_near), "{text}: {read:?}, {estimate}");
    }
    let of_people = text.parse::<Quantity>();
    if let Ok(Quantity(bytes)) = of_people {
        assert_eq!(read, u64::try_from(bytes).ok(), "{text}");
    }
    let Some(bytes) = read else { return };
    assert!(i64::try_from(bytes).is_ok());
    assert_eq!(parse(&exact(bytes)), Some(bytes));
    let shown = Quantity::from(bytes).to_string();
    let (number, unit) = shown.split_once(' ').expect("a number and a unit");
    let unit = unit.strip_suffix('B').expect("bytes");
    // The greatest number is rounded up to one that is not read any more.
    let again = parse(&format!("{number}{unit}")).unwrap_or(1 << 63);
    // With one decimal place, half of that is lost.
    let unit = parse(&format!("1{unit}")).expect("a unit");
    let lost = if number.contains('.') { unit / 20 + 1 } else { 0 };
    assert!(again.abs_diff(bytes) <= lost, "{bytes} is shown as {shown}");
}

/// Returns what a quantity of few digits is, nearly. `None` if it has many, or is no quantity.
fn estimate(text: &str) -> Option<f64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let digits = text.trim_start_matches(|character: char| character.is_ascii_digit() || character == '.');
    let (number, suffix) = text.split_at(text.len() - digits.len());
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => f64::from(1 << 10),
        "Mi" => f64::from(1 << 20),
        "Gi" => f64::from(1 << 30),
        "Ti" => (1_u64 << 40) as f64,
        "Pi" => (1_u64 << 50) as f64,
        "Ei" => (1_u64 << 60) as f64,
        _ => {
            let power = suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?;
            if !(-64..=64).contains(&power) {
                return None;
            }
            10_f64.powi(power)
        }
    };
    // Rust's own numbers may have the same forms, and others that begin with a letter.
    let number: f64 = if number.len() <= 18 { number.parse().ok()? } else { return None };
    Some(number * factor)
}
