//! The directory that manual pages are written into, on Windows: no privileged program of ours runs there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The directory.
pub(crate) struct Pages(PathBuf);

impl Pages {
    /// Makes sure that it exists.
    ///
    /// # Errors
    /// When it does not exist, or is no directory.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        fs::read_dir(directory)?;
        Ok(Self(directory.to_owned()))
    }

    /// Writes a page, in the place of the one that may be there.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn put(&self, page: &str, text: &[u8]) -> io::Result<()> {
        let path = self.0.join(page);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => File::create_new(&path)?.write_all(text),
        }
    }
}
