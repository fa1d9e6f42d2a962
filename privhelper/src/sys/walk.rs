//! Directories as a whole, files that are open already, and paths at start: what the placer has no use for.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, RawDir, RenameFlags, SeekFrom};

use super::file::{BENEATH, Name, make_directory};
use super::{Called, Errno, Error, Result, with_patience};

/// Another descriptor of the same open file.
pub fn duplicate(file: impl AsFd) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(file, 0).by("fcntl")
}

/// Opens a path from the configuration, or one that the jail made, following links. At start only: no request gets
/// here.
#[expect(clippy::disallowed_methods, reason = "the administrator's own paths may lead over links")]
pub fn open_at_start(path: impl Name, flags: OFlags) -> Result<OwnedFd> {
    rustix::fs::openat(rustix::fs::CWD, path, flags | OFlags::CLOEXEC, Mode::empty()).by_with("openat", path)
}

/// Makes the directory `path` below `root`, and any missing parents, each with that mode, and opens it.
pub fn make_directories(root: BorrowedFd<'_>, path: &str, mode: Mode) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut parent = duplicate(root)?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        match make_directory(&parent, name, mode) {
            Ok(()) | Err(Error { errno: Errno::EXIST, .. }) => {}
            Err(error) => return Err(error),
        }
        parent = rustix::fs::openat2(&parent, name, flags, Mode::empty(), BENEATH).by_with("openat2", name)?;
    }
    Ok(parent)
}

/// Calls `act` for each entry of a directory that is open for reading, from its beginning, with a buffer of fixed size.
/// Names need not be UTF-8.
pub fn each_entry(directory: &OwnedFd, mut act: impl FnMut(&CStr) -> Result<()>) -> Result<()> {
    rewind(directory)?;
    let mut buffer = [MaybeUninit::uninit(); 4 << 10];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry.by("getdents64")?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            act(entry.file_name())?;
        }
    }
    Ok(())
}

/// Returns whether a directory contains nothing, or only an entry of that name.
///
/// # Errors
/// The kernel's error.
pub fn is_empty(directory: &OwnedFd, but: &CStr) -> Result<bool> {
    let mut empty = true;
    each_entry(directory, |name| {
        empty &= name == but;
        Ok(())
    })?;
    Ok(empty)
}

/// Renames an entry, never replacing an existing one.
pub fn rename_new(from: impl AsFd, old: impl Name, to: impl AsFd, new: &str) -> Result<()> {
    rustix::fs::renameat_with(from, old, to, new, RenameFlags::NOREPLACE).by_with("renameat2", old)
}

/// Returns where an open file next holds anything but zeros that were never written, from an offset on (lseek(2),
/// `SEEK_DATA`); `None` if nowhere.
pub fn next_data(file: impl AsFd, from: u64) -> Result<Option<u64>> {
    match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Err(Errno::NXIO) => Ok(None),
        found => found.map(Some).by("lseek"),
    }
}

/// Writes all these bytes to an open file, from an offset on.
pub fn write_at(file: impl AsFd, mut bytes: &[u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::pwrite(&file, bytes, offset).by("pwrite")?;
        bytes = bytes.get(written..).filter(|_| written > 0).ok_or(Error::of(Errno::IO))?;
        offset = offset.saturating_add(written as u64);
    }
    Ok(())
}

/// Takes the lock of an open file (flock(2)); `AGAIN` if somebody else still holds it after two seconds. A copy of the
/// descriptor in a process that is about to close it, or was just killed, holds the lock for a moment.
pub fn lock(file: impl AsFd) -> Result<()> {
    let how = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    with_patience(Errno::AGAIN, || rustix::fs::flock(&file, how).by("flock"))
}

/// Goes back to the beginning of an open file.
pub fn rewind(file: impl AsFd) -> Result<()> {
    rustix::fs::seek(file, SeekFrom::Start(0)).map(drop).by("lseek")
}

/// Returns where the next hole of a file begins, from an offset on, and where it ends; `None` if there is none before
/// `end`. What has blocks that were never written may count as one (lseek(2), `SEEK_HOLE`).
pub fn next_hole(file: impl AsFd, from: u64, end: u64) -> Result<Option<(u64, u64)>> {
    if from >= end {
        return Ok(None);
    }
    let hole = rustix::fs::seek(&file, SeekFrom::Hole(from)).by("lseek")?;
    let data = match rustix::fs::seek(&file, SeekFrom::Data(hole)) {
        Err(Errno::NXIO) => end,
        data => data.by("lseek")?.min(end),
    };
    Ok(Some((hole, data)).filter(|(hole, data)| hole < data))
}
