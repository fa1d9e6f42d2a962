//! Tables of plain text.

/// Aligned columns: text to the left, numbers to the right.
pub fn aligned(header: Vec<String>, rows: Vec<Vec<String>>) -> String {
    let numeric: Vec<bool> = (0..header.len()).map(|column| is_numeric(column, &rows)).collect();
    let lines: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..numeric.len()).map(|column| width(column).unwrap_or_default()).collect();
    let mut text = String::new();
    for line in lines {
        let mut out = String::new();
        for ((cell, width), numeric) in line.iter().zip(&widths).zip(&numeric) {
            out += &if *numeric { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
        }
        text += out.trim_end();
        text.push('\n');
    }
    text
}

fn is_numeric(column: usize, rows: &[Vec<String>]) -> bool {
    let mut cells = rows.iter().filter_map(|row| row.get(column)).filter(|cell| !cell.is_empty()).peekable();
    cells.peek().is_some() && cells.all(|cell| cell.trim_end_matches('%').parse::<f64>().is_ok())
}

/// Three digits are enough for comparisons.
pub fn number(value: f64) -> String {
    if value >= 100.0 || value == 0.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_on_the_right_and_words_on_the_left() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let text = aligned(row(["call", "µs", "change"]), vec![row(["a", "5", "+1%"]), row(["long", "1234", "-20%"])]);
        assert_eq!(text, "call    µs  change\na        5     +1%\nlong  1234    -20%\n");
    }

    #[test]
    fn large_numbers_have_no_decimals() {
        assert_eq!([0.0, 0.123, 12.34, 1234.5].map(number), ["0", "0.12", "12.3", "1234"]);
    }
}
