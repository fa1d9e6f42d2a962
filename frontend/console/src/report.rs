//! What a command-line tool prints: aligned tables for people, JSON and YAML for machines. Nothing else of it writes to
//! a terminal, and everything is [`printable`] before it does.

use std::fmt::{self, Display};
use std::io::{self, Write};

use bulkhead_model::printable::{CELL, MESSAGE, printable, visible_json};
use serde_json::{Value, json};

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
    /// For machines, and people who prefer it.
    Yaml,
}

/// The result of a command, for machines and for people.
pub struct Report {
    json: Value,
    text: Table,
}

/// Rows of cells, printed in aligned columns, and sentences below them.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
    /// The least widths of the columns.
    widths: Vec<usize>,
}

impl Report {
    /// A report of the facts in both forms.
    pub fn new(json: Value, text: Table) -> Self {
        Self { json, text }
    }

    /// The facts for a machine that shows them to people: text that cannot be seen whole is shown as in a table.
    pub fn visible(&self) -> Value {
        visible(&self.json)
    }

    /// What people read.
    pub fn text(&self) -> String {
        self.text.to_string()
    }

    /// Prints the result on standard output.
    ///
    /// # Errors
    /// When it cannot be written, unless its reader has closed the pipe.
    pub fn print(&self, format: Format) -> io::Result<()> {
        let text = match format {
            Format::Text => self.text.to_string(),
            Format::Json => visible_json(&format!("{:#}\n", self.json)),
            Format::Yaml => yaml(&self.json)?,
        };
        print(&text)
    }
}

/// Prints `text`, which is the program's own, on standard output: a script for a shell, say.
///
/// # Errors
/// When it cannot be written, unless its reader has closed the pipe.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

/// Says on standard error why `program` failed: in a sentence, or with `code` as an object for machines.
pub fn fail(program: &str, format: Format, code: &str, failure: &impl Display) {
    let message = failure.to_string();
    let error = json!({ "error": { "code": code, "message": message } });
    let text = match format {
        Format::Text => format!("{program}: {}\n", printable(&message, MESSAGE)),
        Format::Json => visible_json(&format!("{error}\n")),
        Format::Yaml => yaml(&error).unwrap_or_default(),
    };
    say(&text);
}

/// Says on standard error what a person should know while `program` goes on.
pub fn note(program: &str, message: &impl Display) {
    say(&format!("{program}: {}\n", printable(&message.to_string(), MESSAGE)));
}

fn say(text: &str) {
    // There is nowhere else to say that standard error does not work.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// A document. YAML has no escapes outside of quotes, so text that cannot be seen whole is shown as in a table.
fn yaml(value: &Value) -> io::Result<String> {
    serde_saphyr::to_string(&visible(value)).map(|text| format!("---\n{text}")).map_err(io::Error::other)
}

/// Text as people can see all of it.
pub fn visible_text(text: &str) -> String {
    printable(text, usize::MAX).into_owned()
}

fn visible(value: &Value) -> Value {
    let shown = visible_text;
    match value {
        Value::String(text) => shown(text).into(),
        Value::Array(values) => values.iter().map(visible).collect(),
        Value::Object(members) => members.iter().map(|(name, value)| (shown(name), visible(value))).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

impl Table {
    /// A table with a line of headings.
    pub fn headed<const N: usize>(headings: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> Self {
        let mut table = Self::rows([headings.map(str::to_uppercase)]);
        table.rows.extend(rows.into_iter().map(Vec::from));
        table
    }

    /// One fact per line.
    pub fn facts(facts: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        Self::rows(facts.into_iter().map(|(name, value)| [format!("{name}:"), value]))
    }

    /// Rows without headings.
    pub fn rows<const N: usize>(rows: impl IntoIterator<Item = [String; N]>) -> Self {
        Self { rows: rows.into_iter().map(Vec::from).collect(), ..Self::default() }
    }

    /// A single sentence.
    pub fn line(text: String) -> Self {
        Self::rows([[text]])
    }

    /// With these rows below the others.
    #[must_use]
    pub fn and<const N: usize>(mut self, rows: impl IntoIterator<Item = [String; N]>) -> Self {
        self.rows.extend(rows.into_iter().map(Vec::from));
        self
    }

    /// Only the first columns.
    #[must_use]
    pub fn narrowed(mut self, columns: usize) -> Self {
        self.rows.iter_mut().for_each(|row| row.truncate(columns));
        self
    }

    /// With a sentence on each of these lines below the rows: what is too long for a cell.
    #[must_use]
    pub fn noting(mut self, notes: impl IntoIterator<Item = String>) -> Self {
        self.notes.extend(notes);
        self
    }

    /// With columns that are at least as wide as those of a table printed before, as [`Self::widths`] tells them.
    #[must_use]
    pub fn below(mut self, widths: &[usize]) -> Self {
        self.widths = widths.to_vec();
        self
    }

    /// The widths of its columns.
    pub fn widths(&self) -> Vec<usize> {
        widths(&self.cells(), &self.widths)
    }

    /// Returns what is shown of each cell. The last of a row may be a sentence; nothing is aligned behind it.
    fn cells(&self) -> Vec<Vec<String>> {
        let shown = |row: &Vec<String>| {
            let last = row.len().saturating_sub(1);
            let cells = row.iter().enumerate();
            cells.map(|(at, cell)| printable(cell, if at == last { MESSAGE } else { CELL }).into_owned()).collect()
        };
        self.rows.iter().map(shown).collect()
    }
}

fn widths(cells: &[Vec<String>], least: &[usize]) -> Vec<usize> {
    let mut widths = least.to_vec();
    for row in cells {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count().min(CELL));
        }
    }
    widths
}

impl Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells = self.cells();
        let widths = widths(&cells, &self.widths);
        for row in &cells {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:width$}  "));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        self.notes.iter().try_for_each(|note| writeln!(out, "{}", printable(note, MESSAGE)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_with_text() {
        let table = || Table::headed(["id", "size"], [["pvc-1".to_owned(), "1Gi".to_owned()]]);
        assert_eq!(table().to_string(), "ID     SIZE\npvc-1  1Gi\n");
        assert_eq!(table().noting(["pvc-1: full".to_owned()]).to_string(), "ID     SIZE\npvc-1  1Gi\npvc-1: full\n");
        assert_eq!(table().narrowed(1).to_string(), "ID\npvc-1\n");
        let later = Table::rows([["a".to_owned(), "2Gi".to_owned()]]).below(&table().widths());
        assert_eq!(later.to_string(), "a      2Gi\n");
        let facts = Table::facts([("node", "a".to_owned()), ("topology", String::new())]);
        assert_eq!(facts.to_string(), "node:      a\ntopology:\n");
    }

    #[test]
    fn a_cell_forges_no_row_and_hides_no_other() {
        let hostile = ["a\npvc-2  ready\u{1b}[1A".to_owned(), "1Gi".to_owned()];
        assert_eq!(Table::rows([hostile]).to_string(), "a\\npvc-2  ready\\u{1b}[1A  1Gi\n");
        // As long as an annotation may be. No width of Rust's own formatting is beyond 65,535.
        let endless = ["x".repeat(65_536), "1Gi".to_owned()];
        let table = Table::rows([endless, ["b".to_owned(), "x".repeat(65_536)]]).to_string();
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[0].ends_with("…  1Gi") && lines[0].len() == CELL + 5, "{table}");
        assert!(lines[1].starts_with("b   ") && lines[1].chars().count() == CELL + MESSAGE - 2, "{table}");
    }

    #[test]
    fn yaml_has_the_same_facts() {
        let value = json!({ "id": "pvc-1", "bytes": 1, "claim": null, "targets": ["/a: b", "yes"] });
        let text = yaml(&value).unwrap();
        assert!(text.starts_with("---\n") && text.contains("\nbytes: 1\n") && text.contains("id: pvc-1"), "{text}");
        assert!(!text.contains("- yes"), "a word that YAML takes for a truth value: {text}");
        let hostile = yaml(&json!({ "a\u{202e}": "\u{1b}[2J\nb: c\u{9b}" })).unwrap();
        assert!(hostile.chars().all(|character| character == '\n' || !character.is_control()), "{hostile}");
        assert!(!hostile.contains('\u{202e}') && !hostile.contains("\nb: c"), "{hostile}");
    }
}
