//! The source that is audited, and what reviewers are told about it.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
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

/// Every Rust file below a directory of the repository but for tests: files called tests.rs and directories called tests.
pub fn below(root: &Path, directory: &str) -> Result<Vec<Source>> {
    sources(root, directory, |entry| !["tests", "tests.rs"].iter().any(|name| entry.file_name() == *name))
}

/// Every Rust file below a directory of the repository, as far as what is there is wanted.
pub fn sources(root: &Path, directory: &str, is_wanted: fn(&DirEntry) -> bool) -> Result<Vec<Source>> {
    let entries = WalkDir::new(root.join(directory)).sort_by_file_name().into_iter();
    let mut sources = Vec::new();
    for entry in entries.filter_entry(is_wanted) {
        let path = entry?.into_path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(Source { path: path.strip_prefix(root)?.to_owned(), text: fs::read_to_string(&path)? });
        }
    }
    ensure!(!sources.is_empty(), "no Rust file below {directory}");
    Ok(sources)
}
