//! The source that is audited, and what reviewers are told about it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use fs_err as fs;
use walkdir::{DirEntry, WalkDir};

/// Where reviewers are told what they need to know.
pub const PAGE: &str = "SECURITY.md";

/// A Rust file.
pub struct Source {
    /// Its path in the repository.
    pub path: PathBuf,
    /// Its content.
    pub text: String,
}

/// The code that is audited.
pub fn audited(root: &Path) -> Result<Vec<Source>> {
    Ok([below(root, "privhelper/src")?, below(root, "protocol/src")?].into_iter().flatten().collect())
}

/// Every Rust file below a directory of the repository, tests aside: files called tests.rs and directories called tests.
pub fn below(root: &Path, directory: &str) -> Result<Vec<Source>> {
    let is_test = |entry: &DirEntry| ["tests", "tests.rs"].iter().any(|name| entry.file_name() == *name);
    let entries = WalkDir::new(root.join(directory)).sort_by_file_name().into_iter();
    let mut sources = Vec::new();
    for entry in entries.filter_entry(|entry| !is_test(entry)) {
        let path = entry?.into_path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(Source { path: path.strip_prefix(root)?.to_owned(), text: fs::read_to_string(&path)? });
        }
    }
    ensure!(!sources.is_empty(), "no Rust file below {directory}");
    Ok(sources)
}

/// The cells of the page's table that starts with this heading.
pub fn table(root: &Path, heading: &str) -> Result<Vec<Vec<String>>> {
    let text = fs::read_to_string(root.join(PAGE))?;
    let (_, rest) = text.split_once(heading).with_context(|| format!("{PAGE} has no table {heading}"))?;
    let rows = rest.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = |row: &str| {
        let row = row.strip_prefix('|').unwrap_or(row);
        row.strip_suffix('|').unwrap_or(row).split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    Ok(rows.map(cells).collect())
}
