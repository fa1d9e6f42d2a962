//! Zip archives, which is what people unpack on Windows.

use std::io::{Cursor, Write};

use anyhow::{Context, Result};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

/// Packs files, each a path, a mode and its content. All have the same date, as RFC 3339 writes it, in UTC.
pub fn zip(files: &[(String, u32, Vec<u8>)], date: &str) -> Result<Vec<u8>> {
    let date = dos(date).with_context(|| format!("{date} is no date for a zip archive"))?;
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    let options = options.compression_level(Some(9)).last_modified_time(date);
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (path, mode, content) in files {
        archive.start_file(path.as_str(), options.unix_permissions(*mode))?;
        archive.write_all(content)?;
    }
    Ok(archive.finish()?.into_inner())
}

/// A date such as `2026-01-02T03:04:06Z` as MS-DOS has it.
fn dos(date: &str) -> Option<DateTime> {
    let numbers = date.split(['-', 'T', ':', 'Z']).filter(|digits| !digits.is_empty());
    let numbers: Vec<u16> = numbers.map(str::parse).collect::<Result<_, _>>().ok()?;
    let [year, rest @ ..] = &numbers[..] else { return None };
    let [month, day, hour, minute, second] =
        *rest.iter().map(|number| u8::try_from(*number).ok()).collect::<Option<Vec<_>>>()?
    else {
        return None;
    };
    DateTime::from_date_and_time(*year, month, day, hour, minute, second).ok()
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
