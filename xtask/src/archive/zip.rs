//! Zip archives, which is what people unpack on Windows.
//!
//! Source: PKWARE, "APPNOTE.TXT", sections 4.3 and 4.4.

use std::io::{self, Write};

use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

/// The version of the format that a reader has to know: that with directories and this compression.
const VERSION: u16 = 20;

/// The system whose file modes are in the upper half of the external attributes: Unix.
const MADE_ON: u16 = 3 << 8;

/// Method 8.
const DEFLATED: u16 = 8;

/// Packs files, each a path, a mode and its content. All have the same date, as RFC 3339 writes it, in UTC.
pub fn zip(files: &[(String, u32, Vec<u8>)], date: &str) -> io::Result<Vec<u8>> {
    let too_large = |_| io::Error::other("the file is too large for a zip archive");
    let (day, time) = dos(date).ok_or_else(|| io::Error::other(format!("{date} is no date for a zip archive")))?;
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (path, mode, content) in files {
        let offset = u32::try_from(archive.len()).map_err(too_large)?;
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(content)?;
        let packed = encoder.finish()?;
        let mut crc = Crc::new();
        crc.update(content);
        // What the file and the directory at the end both say of it.
        let mut entry = Vec::new();
        for number in [VERSION, 0, DEFLATED, time, day] {
            entry.extend(number.to_le_bytes());
        }
        let lengths = [packed.len(), content.len()].map(|length| u32::try_from(length).map_err(too_large));
        for number in [Ok(crc.sum())].into_iter().chain(lengths) {
            entry.extend(number?.to_le_bytes());
        }
        entry.extend(u16::try_from(path.len()).map_err(too_large)?.to_le_bytes());
        entry.extend(0_u16.to_le_bytes());
        archive.extend(b"PK\x03\x04");
        archive.extend(&entry);
        archive.extend(path.as_bytes());
        archive.extend(packed);
        directory.extend(b"PK\x01\x02");
        directory.extend((MADE_ON | VERSION).to_le_bytes());
        directory.extend(&entry);
        // No comment, the first disk, no internal attributes; then a regular file of that mode.
        directory.extend([0; 6]);
        directory.extend(((0o100_000 | mode) << 16).to_le_bytes());
        directory.extend(offset.to_le_bytes());
        directory.extend(path.as_bytes());
    }
    let count = u16::try_from(files.len()).map_err(too_large)?.to_le_bytes();
    let [start, length] = [archive.len(), directory.len()].map(|length| u32::try_from(length).map_err(too_large));
    archive.append(&mut directory);
    archive.extend(b"PK\x05\x06");
    archive.extend([0; 4]);
    archive.extend([count, count].concat());
    archive.extend([length?.to_le_bytes(), start?.to_le_bytes()].concat());
    archive.extend([0; 2]);
    Ok(archive)
}

/// A date such as `2026-01-02T03:04:06Z` as MS-DOS has it: the day, and the time to two seconds.
fn dos(date: &str) -> Option<(u16, u16)> {
    let numbers = date.split(['-', 'T', ':', 'Z']).filter(|digits| !digits.is_empty());
    let numbers: Vec<u16> = numbers.map(str::parse).collect::<Result<_, _>>().ok()?;
    let [year, month, day, hour, minute, second] = numbers[..] else { return None };
    let year = year.checked_sub(1980).filter(|year| *year < 128)?;
    Some(((year << 9) | (month << 5) | day, (hour << 11) | (minute << 5) | (second / 2)))
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
        fs::write(&path, zip(&files, "2026-01-02T03:04:06Z").unwrap()).unwrap();
        let script = "import sys, zipfile\n\
                      archive = zipfile.ZipFile(sys.argv[1])\n\
                      assert archive.testzip() is None\n\
                      for one in archive.infolist():\n    \
                          print(one.filename, oct(one.external_attr >> 16), one.date_time, len(archive.read(one)))\n";
        let printed = capture(command("python3").args(["-c", script]).arg(&path)).unwrap();
        let expected =
            format!("a/b.exe 0o100755 (2026, 1, 2, 3, 4, 6) {}\na/c 0o100644 (2026, 1, 2, 3, 4, 6) 0\n", large.len());
        assert_eq!(printed, expected);
    }

    #[test]
    fn a_date_that_the_format_lacks_is_an_error() {
        for date in ["1979-12-31T00:00:00Z", "2108-01-01T00:00:00Z", "yesterday", ""] {
            assert!(dos(date).is_none(), "{date}");
        }
    }
}
