//! Whether the project's pages and workflows say what is so.

mod documentation;
mod messages;
mod recipes;
mod texts;
mod workflows;

use std::path::{Path, PathBuf};

use fs_err as fs;
use walkdir::{DirEntry, WalkDir};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository")
}

/// The content of a file, by its path from the root.
fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(root().join(path)).expect("a text")
}

/// Every file below a directory of the project whose name ends like this.
fn files(directory: &str, ending: &str) -> Vec<PathBuf> {
    let name = |entry: &DirEntry| entry.file_name().to_string_lossy().into_owned();
    let is_built =
        |entry: &DirEntry| entry.file_type().is_dir() && (name(entry) == "target" || name(entry).starts_with('.'));
    let entries = WalkDir::new(root().join(directory)).follow_links(true).into_iter();
    let entries =
        entries.filter_entry(|entry| entry.depth() == 0 || !is_built(entry)).map(|entry| entry.expect("an entry"));
    entries
        .filter(|entry| entry.file_type().is_file() && name(entry).ends_with(ending))
        .map(DirEntry::into_path)
        .collect()
}
