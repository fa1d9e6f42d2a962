//! What of a file is not zero, as runs of bytes: each an offset (8 bytes, little end first), a length (4 bytes) and the
//! bytes, in ascending order.

use std::io::{self, Read as _};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fs_err::File;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Offset and length, and so the number of zeros that are cheaper left in a run than told by the next one's.
const HEADER: usize = 12;

/// What is read at once. It is a multiple of a page, at which the parts of a sparse file begin.
const PART: u64 = 1 << 20;

/// The runs of a file. What is not allocated is not read.
pub fn of(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut runs = Vec::<(u64, Vec<u8>)>::new();
    let mut offset = 0;
    while let Some(start) = next_data(&file, offset)? {
        let mut part = Vec::new();
        (&file).take(PART).read_to_end(&mut part)?;
        for (at, byte) in (start..).zip(&part).filter(|(_, byte)| **byte != 0) {
            match runs.last_mut() {
                Some((begin, bytes)) if at - *begin < (bytes.len() + HEADER) as u64 => {
                    bytes.resize((at - *begin) as usize, 0);
                    bytes.push(*byte);
                }
                _ => runs.push((at, vec![*byte])),
            }
        }
        offset = start + part.len() as u64;
    }
    let written = |(begin, bytes): &(u64, Vec<u8>)| {
        [&begin.to_le_bytes()[..], &(bytes.len() as u32).to_le_bytes(), bytes].concat()
    };
    Ok(runs.iter().flat_map(written).collect())
}

/// Reads the runs again: offsets and bytes.
pub fn parse(mut rest: &[u8]) -> Result<Vec<(u64, &[u8])>> {
    let mut runs = Vec::new();
    let mut end = 0;
    while let Some((offset, after)) = rest.split_first_chunk() {
        let (length, after) = after.split_first_chunk().context("a run without a length")?;
        let (offset, length) = (u64::from_le_bytes(*offset), u32::from_le_bytes(*length));
        ensure!(offset >= end, "the run at {offset:#x} begins before {end:#x}, where the one before it ends");
        let (bytes, after) = after.split_at_checked(length as usize).context("a run that is cut off")?;
        end = offset + u64::from(length);
        runs.push((offset, bytes));
        rest = after;
    }
    ensure!(rest.is_empty(), "{} bytes follow the last run", rest.len());
    Ok(runs)
}

/// Goes to where the file has bytes of its own, from an offset on, and returns where that is.
fn next_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(offset)) {
        Ok(start) => Ok(Some(start)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use fs_err::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn runs_are_what_is_not_zero() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("image");
        let file = File::create(&path).expect("a file");
        file.set_len(3 << 30).expect("a size");
        // A gap as long as a header ends a run, a shorter one does not; so does a hole.
        for (offset, bytes) in [(5, &b"one"[..]), (8 + 11, b"two"), (22 + 12, b"three"), (2 << 30, b"four")] {
            file.write_all_at(bytes, offset).expect("a write");
        }
        let runs = of(&path).expect("runs");
        let expected: [(u64, &[u8]); 3] = [(5, b"one\0\0\0\0\0\0\0\0\0\0\0two"), (34, b"three"), (2 << 30, b"four")];
        assert_eq!(parse(&runs).expect("runs"), expected);
    }

    #[test]
    fn broken_runs_are_refused() {
        assert!(parse(b"").expect("no run").is_empty());
        let run = [&9_u64.to_le_bytes()[..], &2_u32.to_le_bytes(), b"ab"].concat();
        assert!(parse(&run).is_ok());
        for length in [1, 8, 9, 12, 13] {
            assert!(parse(&run[..length]).is_err(), "{length}");
        }
        assert!(parse(&run.repeat(2)).is_err());
    }
}
