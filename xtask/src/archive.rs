//! Archives whose bytes depend on nothing but their contents.

pub mod zip;

use std::io::{self, Write};

use flate2::{Compression, GzBuilder};
use tar::{EntryType, Header};

/// A tar archive in which all files belong to root and have the same age.
pub struct Archive {
    builder: tar::Builder<Vec<u8>>,
    time: u64,
}

impl Archive {
    /// An empty archive. Its files have this modification time, in seconds since the epoch.
    pub fn new(time: u64) -> Self {
        Archive { builder: tar::Builder::new(Vec::new()), time }
    }

    /// Adds a directory.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        self.add(EntryType::Directory, path, 0o755, b"")
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.add(EntryType::Regular, path, mode, content)
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Symlink);
        header.set_link_name(target)?;
        self.append(header, path, 0o777, b"")
    }

    fn add(&mut self, kind: EntryType, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        self.append(header, path, mode, content)
    }

    fn append(&mut self, mut header: Header, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        header.set_path(path)?;
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(self.time);
        header.set_cksum();
        self.builder.append(&header, content)
    }

    /// The archive.
    pub fn finish(self) -> io::Result<Vec<u8>> {
        self.builder.into_inner()
    }
}

/// Compresses for gzip, without a name or a time. The bytes depend on the library's version, which Cargo.lock pins.
pub fn gzip(content: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
    encoder.write_all(content)?;
    encoder.finish()
}
