//! What is on a device: nothing, something that a program knows, or something else.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use bulkhead_privhelper::{Called, SysError, walk};
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;

use super::programs::output;
use super::why::Why;

/// How much at either end has to be zeros. The first partition begins after one MiB, and what says that there are
/// partitions may be lost.
const ENDS: u64 = 4 << 20;
const PART: usize = 64 << 10;
/// Where a superblock of XFS has its uuid, and the byte that is 1 as long as mkfs.xfs is at work.
const UUID: std::ops::Range<usize> = 32..48;
const IN_PROGRESS: usize = 126;

/// What tells an XFS from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filesystem {
    /// Its uuid.
    pub uuid: String,
    /// Whether mkfs.xfs was not done with it.
    pub unfinished: bool,
}

/// Opens a device that nobody uses, so that nobody else can take it as long as it is open.
///
/// # Errors
/// Why it is not taken.
pub fn open_alone(path: &Path, flags: OFlags) -> Result<OwnedFd, Why> {
    walk::open_at_start(path, flags | OFlags::EXCL).map_err(|error| match error.errno {
        Errno::BUSY => Why::Busy,
        Errno::ROFS => Why::ReadOnly,
        Errno::NOMEDIUM => Why::NoSize,
        _ => Why::Failed(error.to_string()),
    })
}

/// Makes sure that a device is empty.
///
/// # Errors
/// Why it is not, or that it cannot be told.
pub fn is_empty(path: &Path, device: &OwnedFd) -> Result<(), Why> {
    let signatures = output("wipefs", &["--no-act", "--noheadings", "--output", "TYPE"], path).map_err(Why::Failed)?;
    let types: BTreeSet<_> = signatures.split_whitespace().collect();
    if !types.is_empty() {
        return Err(Why::Signatures(types.into_iter().collect::<Vec<_>>().join(", ")));
    }
    match first_data(device).map_err(|error| Why::Failed(error.to_string()))? {
        Some(offset) => Err(Why::Data(offset)),
        None => Ok(()),
    }
}

/// Where the first byte is that is not zero, in the first and the last part of a device.
fn first_data(device: &OwnedFd) -> Result<Option<u64>, SysError> {
    for (from, end) in ends(device)? {
        let (mut offset, mut part) = (from, vec![0; PART]);
        while offset < end {
            let length = rustix::io::pread(device, &mut part, offset).by("pread")?;
            if length == 0 {
                return Err(SysError::of(Errno::IO));
            }
            let read = part.iter().take(length);
            if let Some(place) = read.into_iter().position(|byte| *byte != 0) {
                return Ok(Some(offset.saturating_add(place as u64)));
            }
            offset = offset.saturating_add(length as u64);
        }
    }
    Ok(None)
}

/// The first and the last part of a device.
fn ends(device: impl AsFd) -> Result<[(u64, u64); 2], SysError> {
    let size = size(device)?;
    Ok([(0, ENDS.min(size)), (size.saturating_sub(ENDS), size)])
}

/// How many bytes a device has.
///
/// # Errors
/// The kernel's error.
pub fn size(device: impl AsFd) -> Result<u64, SysError> {
    rustix::fs::seek(device, SeekFrom::End(0)).by("lseek")
}

/// The XFS at the beginning of a device, whether it is whole or not.
///
/// # Errors
/// The kernel's error.
pub fn filesystem(device: impl AsFd) -> Result<Option<Filesystem>, SysError> {
    let mut block = [0; 512];
    let length = rustix::io::pread(device, &mut block, 0).by("pread")?;
    let block = block.get(..length).unwrap_or_default();
    Ok(superblock(block))
}

fn superblock(block: &[u8]) -> Option<Filesystem> {
    let rest = block.strip_prefix(b"XFSB").and(block.get(UUID))?;
    let mut uuid = String::new();
    for (place, byte) in rest.iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            uuid.push('-');
        }
        uuid.push_str(&format!("{byte:02x}"));
    }
    Some(Filesystem { uuid, unfinished: block.get(IN_PROGRESS) != Some(&0) })
}

/// Writes zeros over both ends of a device, on which mkfs.xfs was interrupted.
///
/// # Errors
/// The kernel's error.
pub fn clear_ends(device: &OwnedFd) -> Result<(), SysError> {
    let zeros = vec![0; PART];
    // The superblock goes last: as long as it is there, the next run knows what this is.
    let [(first, first_end), (last, last_end)] = ends(device)?;
    let begins =
        [(last.max(first_end), last_end), (first.saturating_add(PART as u64), first_end), (first, PART as u64)];
    for (mut offset, end) in begins {
        while offset < end {
            let length = end.saturating_sub(offset).min(PART as u64);
            walk::write_at(device, zeros.get(..length as usize).unwrap_or_default(), offset)?;
            offset = offset.saturating_add(length);
        }
        rustix::fs::fsync(device).by("fsync")?;
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the test's own file")]
mod tests {
    use std::fs;

    use super::*;

    /// A file of this size with these bytes, which stands for a device.
    fn with_file<T>(size: u64, bytes: &[(u64, &[u8])], test: impl FnOnce(&OwnedFd) -> T) -> T {
        static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("bulkhead-content-{}-{number}", std::process::id()));
        fs::File::create(&path).and_then(|file| file.set_len(size)).expect("a file");
        let file = walk::open_at_start(&path, OFlags::RDWR).expect("the file");
        fs::remove_file(&path).expect("its name goes");
        for (offset, bytes) in bytes {
            walk::write_at(&file, bytes, *offset).expect("it is written");
        }
        test(&file)
    }

    #[test]
    fn one_byte_at_either_end_is_found() {
        const SIZE: u64 = 64 << 20;
        let first = |bytes: &[(u64, &[u8])]| with_file(SIZE, bytes, |file| first_data(file).expect("it can be read"));
        assert_eq!(first(&[]), None);
        for place in [0, 1, ENDS - 1, SIZE - ENDS, SIZE - 1] {
            assert_eq!(first(&[(place, b"x")]), Some(place));
        }
        assert_eq!(first(&[(SIZE / 2, b"x")]), None, "the whole of a disk takes hours to read");
        assert_eq!(with_file(4096, &[(4095, b"x")], |file| first_data(file).expect("it can be read")), Some(4095));
    }

    #[test]
    fn a_superblock_says_whose_it_is_and_whether_it_is_whole() {
        let mut block = vec![0; 512];
        block[..4].copy_from_slice(b"XFSB");
        block[UUID].copy_from_slice(&(0..16).collect::<Vec<u8>>());
        let uuid = "00010203-0405-0607-0809-0a0b0c0d0e0f".to_owned();
        assert_eq!(superblock(&block), Some(Filesystem { uuid: uuid.clone(), unfinished: false }));
        block[IN_PROGRESS] = 1;
        assert_eq!(superblock(&block), Some(Filesystem { uuid, unfinished: true }));
        assert_eq!(superblock(&block[..40]), None);
        block[0] = b'Y';
        assert_eq!(superblock(&block), None);
    }

    #[test]
    fn both_ends_are_cleared_and_nothing_between() {
        for size in [ENDS / 2, ENDS, ENDS + 10, 3 * ENDS] {
            let middle = size / 2;
            with_file(size, &[(0, b"first"), (middle, b"x"), (size - 1, b"x")], |file| {
                clear_ends(file).expect("it can be written");
                assert_eq!(first_data(file).expect("it can be read"), None, "{size}");
                let mut byte = [0];
                rustix::io::pread(file, &mut byte, middle).expect("it can be read");
                assert_eq!(byte[0] == b'x', size == 3 * ENDS, "{size}");
                assert_eq!(super::size(file).expect("a size"), size, "it has grown");
            });
        }
    }
}
