//! The system calls that the seccomp filter allows, from the tables in its source.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Section;
use crate::policy::files::read;

const FILTER: &str = "privhelper/src/start/filter.rs";
/// Shown for a call whose arguments are not restricted.
const ANY: &str = "any";

/// Every call that is allowed, with the conditions on its arguments and the comment above it.
pub fn calls(root: &Path) -> Result<Section> {
    let text = read(&root.join(FILTER))?;
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut rows = Vec::new();
    for (name, body) in tables(code) {
        rows.extend(entries(name, body).with_context(|| format!("{FILTER}: {name}"))?);
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

/// The constants that list calls: name and body.
fn tables(code: &str) -> Vec<(&str, &str)> {
    let constants = code.split("\nconst ").skip(1);
    let tables = constants.filter_map(|constant| {
        let (head, rest) = constant.split_once(" = ")?;
        let (name, kind) = head.split_once(':')?;
        let body = rest.split_once("];").map_or(rest, |(body, _)| body);
        (kind.contains("Row") || kind.contains("c_long")).then_some((name, body))
    });
    tables.collect()
}

/// The rows of a table. A comment gives the reason for everything up to the next comment; calls without conditions
/// share one row.
fn entries(table: &str, body: &str) -> Result<Vec<Vec<String>>> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut reason: Vec<&str> = Vec::new();
    let mut in_comment = false;
    let mut statement = String::new();
    for line in body.lines().map(str::trim) {
        if let Some(comment) = line.strip_prefix("//") {
            if !in_comment {
                reason.clear();
            }
            reason.push(comment.trim());
            in_comment = true;
            continue;
        }
        in_comment = false;
        statement.push_str(line);
        statement.push(' ');
        // A row may span several lines.
        if statement.matches('(').count() != statement.matches(')').count() {
            continue;
        }
        let taken = std::mem::take(&mut statement);
        for (call, arguments) in calls_in(&taken) {
            ensure!(!reason.is_empty(), "{call} has no comment above it");
            let row = vec![table.to_owned(), call, arguments, reason.join(" ")];
            match rows.last_mut() {
                Some(last) if row[2] == ANY && last[2..] == row[2..] => last[1] = format!("{} {}", last[1], row[1]),
                _ => rows.push(row),
            }
        }
    }
    Ok(rows)
}

/// The calls in a line or a row, with the conditions on their arguments.
fn calls_in(statement: &str) -> Vec<(String, String)> {
    let name = |word: &str| {
        let name = word.trim().trim_start_matches("libc::").trim_start_matches("SYS_").to_lowercase();
        (word.contains("SYS_") || word.contains("FILE_")).then_some(name)
    };
    if let Some((_, row)) = statement.split_once("Row(") {
        let (call, conditions) = row.split_once(',').unwrap_or((row, ""));
        return name(call).map(|call| (call, conditions_in(conditions))).into_iter().collect();
    }
    let words = statement.split([',', '&', '[', ']', ' ']).filter_map(name);
    words.map(|call| (call, ANY.to_owned())).collect()
}

/// Turns `&[If(1, Eq, A), If(2, masked(B), 0)]`, with what follows it, into `1 = A, 2 & B = 0`.
fn conditions_in(text: &str) -> String {
    let text = text.replace("libc::", "").replace(" as u32", "");
    let text = text.trim().trim_end_matches(',').trim_end_matches(')').trim_end_matches(']');
    let conditions = text.split("If(").skip(1).map(|condition| {
        let condition = condition.trim().trim_end_matches(',');
        let condition = condition.strip_suffix(')').unwrap_or(condition);
        let (argument, rest) = condition.split_once(", ").unwrap_or((condition, ""));
        match rest.rsplit_once(", ") {
            Some(("Eq", value)) => format!("{argument} = {value}"),
            Some(("Ge", value)) => format!("{argument} >= {value}"),
            Some((mask, value)) if mask.starts_with("masked(") => {
                let mask = mask.trim_start_matches("masked(");
                format!("{argument} & {} = {value}", mask.strip_suffix(')').unwrap_or(mask))
            }
            _ => condition.to_owned(),
        }
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
        let text = read(&root.join(FILTER)).expect("the filter");
        let bodies: String =
            tables(text.split("#[cfg(test)]").next().expect("code")).iter().map(|(_, body)| *body).collect();
        let code: Vec<&str> = bodies.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let written =
            code.iter().map(|line| line.matches("SYS_").count() + line.matches("FILE_").count()).sum::<usize>();
        assert_eq!(number_of_calls(section.rows.iter()), written);
        assert!(written > 40, "{written}");
    }

    #[test]
    fn a_reason_holds_until_the_next_one() {
        let body = "&[\n// One\n// and more.\n&[libc::SYS_read, libc::SYS_write],\n// Two.\n\
                    Row(libc::SYS_ioctl, &[If(1, Eq, A as u32), If(3, masked(!(B)), 7 << 8)]),\n";
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        let wanted =
            [row(["T", "read write", "any", "One and more."]), row(["T", "ioctl", "1 = A, 3 & !(B) = 7 << 8", "Two."])];
        assert_eq!(entries("T", body).expect("rows"), wanted);
        assert!(entries("T", "&[libc::SYS_read]").is_err());
    }
}
