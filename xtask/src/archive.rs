//! Archives whose bytes depend on nothing but their contents.

use std::collections::BTreeSet;
use std::io::{self, Cursor, Write};

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tar::{EntryType, Header};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

/// A tar archive in which all files belong to root and have the same age. Each directory comes before what is in it.
pub struct Archive {
    builder: tar::Builder<Vec<u8>>,
    directories: BTreeSet<String>,
    time: Timestamp,
}

impl Archive {
    /// An empty archive. Its files have this modification time.
    pub fn new(time: Timestamp) -> Self {
        Archive { builder: tar::Builder::new(Vec::new()), directories: BTreeSet::new(), time }
    }

    /// Adds a directory, and any missing parents.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        self.above(&format!("{path}/"))
    }

    /// Adds a file, and any missing parent directories.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.above(path)?;
        self.builder.append_data(&mut self.header(EntryType::Regular, mode, content.len()), path, content)
    }

    /// Adds a symbolic link, and any missing parent directories.
    pub fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.above(path)?;
        self.builder.append_link(&mut self.header(EntryType::Symlink, 0o777, 0), path, target)
    }

    /// Adds the directories above a path that are missing.
    fn above(&mut self, path: &str) -> io::Result<()> {
        for (end, _) in path.match_indices('/') {
            if self.directories.insert(path[..end].to_owned()) {
                let mut header = self.header(EntryType::Directory, 0o755, 0);
                self.builder.append_data(&mut header, &path[..end], io::empty())?;
            }
        }
        Ok(())
    }

    fn header(&self, kind: EntryType, mode: u32, size: usize) -> Header {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size as u64);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(self.time.as_second() as u64);
        header
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

/// A zip archive, which is what people unpack on Windows, of files: each a path, a mode and its content. All have the same
/// date, in UTC.
pub fn zip(files: &[(String, u32, Vec<u8>)], date: Timestamp) -> Result<Vec<u8>> {
    let local = date.to_zoned(TimeZone::UTC).datetime();
    let date = DateTime::try_from(local).with_context(|| format!("{date} is no date for a zip archive"))?;
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    let options = options.compression_level(Some(9)).last_modified_time(date);
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (path, mode, content) in files {
        archive.start_file(path.as_str(), options.unix_permissions(*mode))?;
        archive.write_all(content)?;
    }
    Ok(archive.finish()?.into_inner())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::process::{capture, command};

    #[test]
    fn another_program_reads_the_archive() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.zip");
        let large = "again and again ".repeat(10_000);
        let files = [("a/b.exe".to_owned(), 0o755, large.clone().into_bytes()), ("a/c".to_owned(), 0o644, Vec::new())];
        fs::write(&path, zip(&files, "2026-01-02T03:04:06Z".parse().unwrap()).unwrap()).unwrap();
        let script = "import sys, zipfile\n\
                      archive = zipfile.ZipFile(sys.argv[1])\n\
                      assert archive.testzip() is None\n\
                      for one in archive.infolist():\n    \
                          print(one.filename, oct(one.external_attr >> 16), one.date_time, len(archive.read(one)))\n";
        let printed = capture(command("python3").args(["-c", script]).arg(&path)).unwrap();
        assert!(zip(&files, "1979-12-31T00:00:00Z".parse().unwrap()).is_err(), "the format begins later");
        let expected =
            format!("a/b.exe 0o100755 (2026, 1, 2, 3, 4, 6) {}\na/c 0o100644 (2026, 1, 2, 3, 4, 6) 0\n", large.len());
        assert_eq!(printed, expected);
    }
}
