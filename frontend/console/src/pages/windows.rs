//! By paths: only an administrator may make links there.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The directory.
pub(crate) struct Pages(PathBuf);

impl Pages {
    /// Looks for it.
    ///
    /// # Errors
    /// When it does not exist, is a link, or is no directory.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        if fs::symlink_metadata(directory)?.is_dir() {
            Ok(Self(directory.to_owned()))
        } else {
            Err(ErrorKind::NotADirectory.into())
        }
    }

    /// Writes a page, in the place of the one that may be there.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn put(&self, page: &str, text: &[u8]) -> io::Result<()> {
        let path = self.0.join(page);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        File::create_new(path)?.write_all(text)
    }
}
