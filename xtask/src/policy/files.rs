//! The source that is audited.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// A Rust file.
pub struct Source {
    /// Its path in the repository.
    pub path: PathBuf,
    /// Its content.
    pub text: String,
}

/// Every Rust file below a directory of the repository, tests aside: files called tests.rs and directories called tests.
pub fn below(root: &Path, directory: &str) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    let mut waiting = vec![root.join(directory)];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("list {}", next.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                if !path.ends_with("tests") {
                    waiting.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
                let text = read(&path)?;
                sources.push(Source { path: path.strip_prefix(root)?.to_owned(), text });
            }
        }
    }
    ensure!(!sources.is_empty(), "no Rust file below {directory}");
    sources.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(sources)
}

/// The content of a file.
pub fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}
