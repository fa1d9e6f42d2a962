//! What a command-line tool prints: aligned tables for people, JSON for machines.

use std::fmt;
use std::io::{self, Write};

use serde_json::Value;

/// The result of a command, for machines and for people.
pub struct Report {
    json: Value,
    text: Table,
}

/// Rows of cells, printed in aligned columns.
pub struct Table(Vec<Vec<String>>);

impl Report {
    /// The same facts in both forms.
    pub fn new(json: Value, text: Table) -> Self {
        Self { json, text }
    }

    /// Prints the result on standard output.
    ///
    /// # Errors
    /// When it cannot be written, unless its reader has closed the pipe.
    pub fn print(&self, json: bool) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let written = if json { writeln!(out, "{:#}", self.json) } else { write!(out, "{}", self.text) };
        match written.and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            outcome => outcome,
        }
    }
}

impl Table {
    /// A table with a line of headings.
    pub fn headed<const N: usize>(headings: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> Self {
        let mut table = vec![headings.map(str::to_uppercase).to_vec()];
        table.extend(rows.into_iter().map(Vec::from));
        Self(table)
    }

    /// One fact per line.
    pub fn facts(facts: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        Self(facts.into_iter().map(|(name, value)| vec![format!("{name}:"), value]).collect())
    }

    /// Rows without headings.
    pub fn rows<const N: usize>(rows: impl IntoIterator<Item = [String; N]>) -> Self {
        Self(rows.into_iter().map(Vec::from).collect())
    }

    /// Only the first columns.
    #[must_use]
    pub fn narrowed(mut self, columns: usize) -> Self {
        self.0.iter_mut().for_each(|row| row.truncate(columns));
        self
    }

    /// A single sentence.
    pub fn line(text: String) -> Self {
        Self(vec![vec![text]])
    }
}

impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.0.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.0 {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:width$}  "));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_with_text() {
        let table = Table::headed(["id", "size"], [["pvc-1".to_owned(), "1Gi".to_owned()]]);
        assert_eq!(table.to_string(), "ID     SIZE\npvc-1  1Gi\n");
        assert_eq!(table.narrowed(1).to_string(), "ID\npvc-1\n");
        let facts = Table::facts([("node", "a".to_owned()), ("topology", String::new())]);
        assert_eq!(facts.to_string(), "node:      a\ntopology:\n");
    }
}
