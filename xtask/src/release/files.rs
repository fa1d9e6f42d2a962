//! Files below a directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The content of all files below a directory, by their paths in it.
pub fn files(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("the name of {} is no text", path.display()))?;
        if path.is_dir() {
            files.extend(self::files(&path)?.into_iter().map(|(below, content)| (format!("{name}/{below}"), content)));
        } else {
            files.insert(name.to_owned(), fs::read(&path).with_context(|| format!("read {}", path.display()))?);
        }
    }
    Ok(files)
}
