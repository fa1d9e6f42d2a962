//! What a reviewer of the privileged code wants to know first, on one page, taken from the source and the documentation.

mod binary;
mod claims;
mod filter;
mod source;
mod tests_by_name;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use fs_err as fs;

use crate::workspace::Workspace;

/// Where the sections are written that need no build.
const WRITTEN: &str = "docs/audit.md";

const INTRODUCTION: &str = "Written from the source by `cargo xtask audit --write`; `cargo xtask test --step policy` fails when it is not\n\
    current. `cargo xtask audit --build` also builds the helper twice and compares the hashes, which match the\n\
    [released](release.md) helper.";

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
    page.extend(build.then(|| binary::hash(workspace)).transpose()?);
    Ok(page)
}

/// The sections that need no build.
fn from_source(root: &Path) -> Result<Vec<Section>> {
    Ok(vec![
        source::parts(root)?,
        source::rules(root)?,
        source::requests(root)?,
        source::placer(root)?,
        source::capabilities(root)?,
        filter::calls(root)?,
        source::kernels(root)?,
        source::unsafe_blocks(root)?,
        source::crates(root)?,
        binary::accepted(root)?,
        claims::claims(root)?,
    ])
}

/// Writes these into the page of the documentation, and returns its path.
pub fn write(root: &Path) -> Result<PathBuf> {
    let page = root.join(WRITTEN);
    fs::write(&page, as_text(&from_source(root)?))?;
    Ok(page)
}

/// Checks that what is written there is so.
pub fn check(root: &Path) -> Result<String> {
    let is_current = fs::read_to_string(root.join(WRITTEN))? == as_text(&from_source(root)?);
    ensure!(is_current, "{WRITTEN} is not what `cargo xtask audit --write` writes");
    Ok(format!("{WRITTEN} is current, and the claims name tests that exist"))
}

/// The page for human readers, in Markdown.
pub fn as_text(page: &[Section]) -> String {
    let mut text = format!("# What there is to review\n\n{INTRODUCTION}\n");
    for Section { title, note, columns, rows } in page {
        let (headings, line) = (columns.join(" | "), "---|".repeat(columns.len()));
        let _ = write!(text, "\n## {title}\n{note}\n\n| {headings} |\n|{line}\n");
        for row in rows {
            let _ = writeln!(text, "| {} |", row.iter().map(|cell| escaped(cell)).collect::<Vec<_>>().join(" | "));
        }
    }
    text
}

/// A cell as it has to be written in Markdown: outside code, what would be markup is escaped.
fn escaped(cell: &str) -> String {
    let parts = cell.replace('|', "\\|");
    let parts = parts.split('`').enumerate();
    let parts = parts.map(|(index, part)| if index % 2 == 0 { part.replace('<', "\\<") } else { part.to_owned() });
    parts.collect::<Vec<_>>().join("`")
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
    }

    #[test]
    fn a_section_is_a_heading_and_a_table() {
        let rows = vec![vec!["`a|<b>`".to_owned(), "one <b>".to_owned()], vec!["longer".to_owned(), "two".to_owned()]];
        let sections = [Section { title: "Title", note: "Note.".to_owned(), columns: &["name", "text"], rows }];
        let text = "\n## Title\nNote.\n\n| name | text |\n|---|---|\n| `a\\|<b>` | one \\<b> |\n| longer | two |\n";
        assert!(as_text(&sections).ends_with(text), "{}", as_text(&sections));
    }
}
