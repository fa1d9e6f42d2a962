//! Files below a directory.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use fs_err as fs;
use walkdir::WalkDir;

/// The content of all files below a directory, by their paths in it.
pub fn files(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in WalkDir::new(directory).follow_links(true) {
        let path = entry?.into_path();
        if !path.is_dir() {
            let name = path.strip_prefix(directory)?.to_str();
            let name = name.with_context(|| format!("the name of {} is no text", path.display()))?;
            files.insert(name.to_owned(), fs::read(&path)?);
        }
    }
    Ok(files)
}
