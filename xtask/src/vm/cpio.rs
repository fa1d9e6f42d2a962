//! Writes cpio archives in the `newc` format, which the kernel unpacks as its first root filesystem.
//!
//! Implemented here because that needs neither root (owners and device nodes are mere numbers) nor a package.

use std::collections::BTreeSet;
use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

/// An archive being written. Paths are relative, without a leading slash; all files belong to root.
pub struct Archive<W> {
    writer: W,
    inode: u32,
    names: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    /// Starts an empty archive.
    pub fn new(writer: W) -> Self {
        Archive { writer, inode: 0, names: BTreeSet::new() }
    }

    /// Adds a directory, and any missing parents.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
            self.entry(&path[..end], DIRECTORY | 0o755, (0, 0), b"")?;
        }
        Ok(())
    }

    /// Adds a file, and any missing parent directories.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.parent(path)?;
        self.entry(path, REGULAR | mode, (0, 0), content)
    }

    /// Adds a symbolic link, and any missing parent directories.
    pub fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.parent(path)?;
        self.entry(path, SYMLINK | 0o777, (0, 0), target.as_bytes())
    }

    /// Adds a character device.
    pub fn character_device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        self.parent(path)?;
        self.entry(path, CHARACTER | 0o600, (major, minor), b"")
    }

    /// Returns whether the archive contains an entry with this name.
    pub fn contains(&self, path: &str) -> bool {
        self.names.contains(path)
    }

    /// Completes the archive and returns the writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, (0, 0), b"")?;
        self.writer.flush()?;
        Ok(self.writer)
    }

    fn parent(&mut self, path: &str) -> io::Result<()> {
        match path.rsplit_once('/') {
            Some((parent, _)) => self.directory(parent),
            None => Ok(()),
        }
    }

    /// If several entries have the same name, only the first one is written.
    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) -> io::Result<()> {
        if !self.names.insert(path.to_owned()) {
            return Ok(());
        }
        self.inode += 1;
        let length = u32::try_from(content.len()).map_err(|_| io::Error::other("file too large for an archive"))?;
        let name_length = path.len() as u32 + 1;
        let (major, minor) = device;
        // Inode, mode, uid, gid, links, time, size, the archive's device, the node's device, the name's length,
        // checksum.
        let fields = [self.inode, mode, 0, 0, 1, 0, length, 0, 0, major, minor, name_length, 0];
        write!(self.writer, "070701")?;
        for field in fields {
            write!(self.writer, "{field:08x}")?;
        }
        self.writer.write_all(path.as_bytes())?;
        self.writer.write_all(b"\0")?;
        self.pad(110 + path.len() + 1)?;
        self.writer.write_all(content)?;
        self.pad(content.len())
    }

    /// Names and contents are padded to four bytes.
    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.writer.write_all(&[0; 3][..written.wrapping_neg() % 4])
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
