//! Writes a tar archive in the `ustar` format whose bytes depend on names and contents only: everything belongs to root
//! and is as old as the epoch.

use std::io::{self, Write};

const BLOCK: usize = 512;

/// An archive being written.
pub struct Archive<W> {
    writer: W,
}

impl<W: Write> Archive<W> {
    /// Begins an empty archive.
    pub fn new(writer: W) -> Self {
        Archive { writer }
    }

    /// Adds a directory.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        self.header(path, 0o755, 0, b'5')
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.header(path, mode, content.len(), b'0')?;
        self.writer.write_all(content)?;
        self.writer.write_all(&[0; BLOCK][..content.len().wrapping_neg() % BLOCK])
    }

    /// Ends the archive and hands back what it was written to.
    pub fn finish(mut self) -> io::Result<W> {
        self.writer.write_all(&[0; 2 * BLOCK])?;
        self.writer.flush()?;
        Ok(self.writer)
    }

    fn header(&mut self, path: &str, mode: u32, size: usize, kind: u8) -> io::Result<()> {
        if path.len() > 100 {
            return Err(io::Error::other(format!("{path} is too long for an archive")));
        }
        let mut header = [0; BLOCK];
        let mut put = |offset: usize, bytes: &[u8]| header[offset..offset + bytes.len()].copy_from_slice(bytes);
        put(0, path.as_bytes());
        put(100, format!("{mode:07o}").as_bytes());
        // Owner and group.
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{size:011o}").as_bytes());
        // Time of the last change.
        put(136, b"00000000000");
        // The checksum counts its own field as spaces.
        put(148, b"        ");
        put(156, &[kind]);
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.writer.write_all(&header)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn tar_reads_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("archive.tar");
        let mut archive = Archive::new(Vec::new());
        archive.directory("a").unwrap();
        archive.file("a/program", 0o755, &[b'x'; 513]).unwrap();
        archive.file("empty", 0o644, b"").unwrap();
        std::fs::write(&path, archive.finish().unwrap()).unwrap();
        let mut tar = Command::new("tar");
        let output =
            tar.args(["--list", "--verbose", "--utc", "--numeric-owner", "--file"]).arg(&path).output().unwrap();
        let lines: Vec<String> = String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let expected = [
            "drwxr-xr-x 0/0 0 1970-01-01 00:00 a",
            "-rwxr-xr-x 0/0 513 1970-01-01 00:00 a/program",
            "-rw-r--r-- 0/0 0 1970-01-01 00:00 empty",
        ];
        assert_eq!(lines, expected, "{}", String::from_utf8_lossy(&output.stderr));
    }
}
