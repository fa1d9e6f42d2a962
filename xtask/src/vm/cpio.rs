//! The archive that the kernel unpacks as its first root filesystem. Making it needs no root: owners and device nodes are
//! mere numbers.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Result;
use cpio::newc::{Builder, ModeFileType, trailer};

use crate::files::files;

/// An archive being written. Paths are relative, without a leading slash; all files belong to root.
pub struct Archive<W> {
    writer: W,
    names: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    /// Starts an empty archive.
    pub fn new(writer: W) -> Self {
        Archive { writer, names: BTreeSet::new() }
    }

    /// Adds a directory, and any missing parents.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        self.above(&format!("{path}/"))
    }

    /// Adds a file, and any missing parent directories.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.above(path)?;
        self.entry(path, ModeFileType::Regular, mode, (0, 0), content)
    }

    /// Adds the files below a directory of `guest`, at their places in it. Scripts are executable.
    pub fn tree(&mut self, name: &str) -> Result<()> {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/vm/guest").join(name);
        for (path, content) in files(&tree)? {
            let mode = if content.starts_with(b"#!") { 0o755 } else { 0o644 };
            self.file(&path, mode, &content)?;
        }
        Ok(())
    }

    /// Adds a symbolic link, and any missing parent directories.
    pub fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.above(path)?;
        self.entry(path, ModeFileType::Symlink, 0o777, (0, 0), target.as_bytes())
    }

    /// Adds a character device.
    pub fn character_device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        self.above(path)?;
        self.entry(path, ModeFileType::Char, 0o600, (major, minor), b"")
    }

    /// Returns whether the archive contains an entry with this name.
    pub fn contains(&self, path: &str) -> bool {
        self.names.contains(path)
    }

    /// Completes the archive and returns the writer.
    pub fn finish(self) -> io::Result<W> {
        let mut writer = trailer(self.writer)?;
        writer.flush()?;
        Ok(writer)
    }

    fn above(&mut self, path: &str) -> io::Result<()> {
        for (end, _) in path.match_indices('/') {
            self.entry(&path[..end], ModeFileType::Directory, 0o755, (0, 0), b"")?;
        }
        Ok(())
    }

    /// If several entries have the same name, only the first one is written.
    fn entry(
        &mut self,
        path: &str,
        kind: ModeFileType,
        mode: u32,
        device: (u32, u32),
        content: &[u8],
    ) -> io::Result<()> {
        if !self.names.insert(path.to_owned()) {
            return Ok(());
        }
        let length = u32::try_from(content.len()).map_err(|_| io::Error::other("file too large for an archive"))?;
        let entry = Builder::new(path).ino(self.names.len() as u32).mode(mode).set_mode_file_type(kind);
        let entry = entry.nlink(1).rdev_major(device.0).rdev_minor(device.1);
        let mut entry = entry.write(&mut self.writer, length);
        entry.write_all(content)?;
        entry.finish().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_made_once() {
        let mut archive = Archive::new(Vec::new());
        archive.file("a/b/c", 0o644, b"hello").unwrap();
        archive.file("a/b/c", 0o644, b"again").unwrap();
        assert!(archive.contains("a/b"));
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(bytes.windows(6).filter(|window| window == b"070701").count(), 4, "a, a/b, a/b/c, trailer");
        assert!(bytes.windows(5).any(|window| window == b"hello"));
        assert!(!bytes.windows(5).any(|window| window == b"again"));
    }
}
