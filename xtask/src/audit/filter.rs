//! The system calls that the seccomp filter allows, from the tables in its source.
//!
//! The text is read because it has the names. The compiled tables have numbers only, which differ by architecture.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use super::Section;

const FILTER: &str = "privhelper/src/start/filter.rs";
/// Shown for a call whose arguments are not restricted.
const ANY: &str = "any";

/// Every call that is allowed, with the conditions on its arguments and the reason.
pub fn calls(root: &Path) -> Result<Section> {
    let text = fs::read_to_string(root.join(FILTER))?;
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut rows = Vec::new();
    for (name, body) in tables(code) {
        for row in body.split("Row(").skip(1) {
            rows.push(entry(name, row).with_context(|| format!("{FILTER}: {name}: {row}"))?);
        }
    }
    ensure!(!rows.is_empty(), "{FILTER} has no table that can be read");
    let unconditional = number_of_calls(rows.iter().filter(|row| row[2] == ANY));
    let conditional = rows.iter().filter(|row| row[2] != ANY).count();
    let note = format!("{unconditional} calls without conditions, {conditional} rows with arguments.");
    Ok(Section { title: "System calls", note, columns: &["table", "call", "arguments", "why"], rows })
}

fn number_of_calls<'a>(rows: impl Iterator<Item = &'a Vec<String>>) -> usize {
    rows.map(|row| row[1].split(' ').count()).sum()
}

/// The constants that list rows: name and body.
fn tables(code: &str) -> Vec<(&str, &str)> {
    let constants = code.split("\npub const ").skip(1);
    let tables = constants.filter_map(|constant| {
        let (head, rest) = constant.split_once(" = ")?;
        let (name, kind) = head.split_once(':')?;
        let body = rest.split_once("\n];").map_or(rest, |(body, _)| body);
        kind.contains("[Row]").then_some((name, body))
    });
    tables.collect()
}

/// A row of a table: `&[CALL, ...], &[CONDITION, ...], "REASON"`, with what follows it.
fn entry(table: &str, row: &str) -> Result<Vec<String>> {
    let (calls, rest) = row.trim_start().strip_prefix("&[").and_then(|row| row.split_once(']')).context("no calls")?;
    let (conditions, rest) =
        rest.split_once("&[").and_then(|(_, rest)| rest.split_once("],")).context("no conditions")?;
    let (_, reason) = rest.split_once('"').context("no reason")?;
    let (reason, _) = reason.split_once("\",").or_else(|| reason.split_once("\")")).context("no reason")?;
    let name = |call: &str| {
        let name = call.trim().rsplit("::").next().unwrap_or_default();
        name.trim_start_matches("SYS_").to_lowercase()
    };
    let calls: Vec<String> = calls.split(',').filter(|call| !call.trim().is_empty()).map(name).collect();
    let arguments = if conditions.trim().is_empty() { ANY.to_owned() } else { conditions_in(conditions) };
    Ok(vec![table.to_owned(), calls.join(" "), arguments, reason.to_owned()])
}

/// Turns `Arg(1, Eq, A), Arg(2, masked(B), 0), Size(3, C)` into `1 = A, 2 & (B) = 0, 3 = C`.
fn conditions_in(text: &str) -> String {
    let noise = ["libc::", " as u32", " as u64"];
    let text = noise.iter().fold(text.replace("Size(", "Arg("), |text, noise| text.replace(noise, ""));
    let conditions = text.split("Arg(").skip(1).map(|condition| {
        let condition = condition.trim().trim_end_matches(',');
        let condition = condition.strip_suffix(')').unwrap_or(condition).to_owned();
        let signs = [(", Eq, ", " = "), (", Ge, ", " >= "), (", masked(", " & ("), ("), ", ") = "), (", ", " = ")];
        signs.iter().fold(condition, |text, (written, shown)| text.replace(written, shown))
    });
    conditions.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_in_the_source_is_a_row() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
        let section = calls(root).expect("the tables");
        let text = fs::read_to_string(root.join(FILTER)).expect("the filter");
        let code = text.split("#[cfg(test)]").next().expect("code");
        let bodies: String = tables(code).iter().map(|(_, body)| *body).collect();
        let written = ["libc::SYS_", "mount::STATMOUNT]", "FILE_GETATTR", "FILE_SETATTR"];
        let written: usize = written.iter().map(|name| bodies.matches(name).count()).sum();
        assert_eq!(number_of_calls(section.rows.iter()), written);
        assert!(written > 40, "{written}");
        assert_eq!(section.rows.len(), bodies.matches("Row(").count());
    }

    #[test]
    fn a_row_has_calls_conditions_and_a_reason() {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        for (text, wanted) in [
            ("&[libc::SYS_read, libc::SYS_write], &[], \"one, two\"),\n", ["T", "read write", "any", "one, two"]),
            (
                "\n  &[libc::SYS_ioctl],\n  &[Arg(1, Eq, libc::A as u32), Arg(3, masked(!(B)), 7 << 8)],\n  \"two\",\n),",
                ["T", "ioctl", "1 = A, 3 & (!(B)) = 7 << 8", "two"],
            ),
            (
                "&[mount::STATMOUNT], &[Size(2, B as u64), Arg(0, Ge, 3)], \"x\")",
                ["T", "statmount", "2 = B, 0 >= 3", "x"],
            ),
        ] {
            assert_eq!(entry("T", text).expect("a row"), row(wanted));
        }
        assert!(entry("T", "&[libc::SYS_read], &[]),").is_err());
    }
}
