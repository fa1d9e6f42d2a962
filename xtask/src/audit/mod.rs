//! What a reviewer of the privileged code wants to know first, on one page, taken from the source and the documentation.

mod binary;
mod claims;
mod filter;
mod source;
mod tests_by_name;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::workspace::Workspace;

/// A section of the page, with its table.
pub struct Section {
    /// Its heading.
    pub title: &'static str,
    /// Anything else worth saying, above the table.
    pub note: String,
    /// The headings of the columns.
    pub columns: &'static [&'static str],
    /// The rows, with one cell for each column.
    pub rows: Vec<Vec<String>>,
}

/// The whole page. `build` also builds the helper, twice.
pub fn page(workspace: &Workspace, build: bool) -> Result<Vec<Section>> {
    let mut page = from_source(&workspace.root)?;
    page.push(binary::advisories(workspace));
    page.push(binary::hash(workspace, build)?);
    Ok(page)
}

/// The sections that need neither the network nor a build.
fn from_source(root: &Path) -> Result<Vec<Section>> {
    Ok(vec![
        source::lines(root)?,
        source::unsafe_blocks(root)?,
        source::crates(root)?,
        claims::capabilities(root)?,
        claims::placer(root)?,
        filter::calls(root)?,
        claims::claims(root)?,
    ])
}

/// The page for human readers.
pub fn as_text(page: &[Section]) -> String {
    let mut text = String::new();
    for Section { title, note, columns, rows } in page {
        let _ = writeln!(text, "{}\n{title}\n{}", if text.is_empty() { "" } else { "\n" }, "-".repeat(title.len()));
        if !note.is_empty() {
            let _ = writeln!(text, "{note}");
        }
        // The last column may be as wide as it needs to be.
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([columns[column].len()]).max().unwrap_or(0).min(60)
        };
        let headings = columns.iter().map(ToString::to_string).collect();
        for row in [&headings].into_iter().chain(rows).take(if rows.is_empty() { 0 } else { usize::MAX }) {
            let padded = row.iter().enumerate().map(|(column, cell)| format!("{cell:0$}", width(column)));
            let _ = writeln!(text, "  {}", padded.collect::<Vec<_>>().join("  ").trim_end());
        }
    }
    text.trim_start().to_owned()
}

/// The page for programs: a section is found by its title, a cell by the heading of its column.
pub fn as_json(page: &[Section]) -> Value {
    let sections = page.iter().map(|Section { title, note, columns, rows }| {
        let row = |row: &Vec<String>| -> Value {
            columns
                .iter()
                .zip(row)
                .map(|(column, cell)| (column.to_string(), json!(cell)))
                .collect::<Map<_, _>>()
                .into()
        };
        (title.to_string(), json!({ "note": note, "rows": rows.iter().map(row).collect::<Vec<_>>() }))
    });
    sections.collect::<Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_can_be_made_from_this_source() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
        let page = from_source(root).expect("a page");
        for section in &page {
            assert!(!section.rows.is_empty(), "{} is empty", section.title);
            for row in &section.rows {
                assert_eq!(row.len(), section.columns.len(), "{}: {row:?}", section.title);
                assert!(row.iter().all(|cell| !cell.trim().is_empty()), "{}: an empty cell in {row:?}", section.title);
            }
        }
        assert_eq!(as_json(&page).as_object().map(Map::len), Some(page.len()));
    }

    #[test]
    fn a_section_is_a_heading_and_a_table() {
        let rows = vec![vec!["a".to_owned(), "one".to_owned()], vec!["longer".to_owned(), "two".to_owned()]];
        let sections =
            [Section { title: "Title", note: "Note.".to_owned(), columns: &["name", "text"], rows: rows.clone() }];
        let text = "Title\n-----\nNote.\n  name    text\n  a       one\n  longer  two\n";
        assert_eq!(as_text(&sections), text);
        assert_eq!(as_json(&sections)["Title"]["rows"][1]["name"], "longer");
    }
}
