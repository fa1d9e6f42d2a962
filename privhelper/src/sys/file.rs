//! Files and directories, always relative to a held directory.
//!
//! Every path is resolved by openat2(2) with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`; the last
//! component is handled by *at() calls on the parent, and nothing is resolved twice.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::libc;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags};
use serde::{Deserialize, Serialize};

use super::{Called, Errno, Error, Result};

/// How paths are resolved.
pub(super) const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Identifies a file, whatever its name: the device number of its filesystem and its inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId {
    /// Device of the filesystem, major and minor.
    pub device: (u32, u32),
    /// Inode number.
    pub inode: u64,
}

/// What statx(2) says about a file.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// Which file.
    pub id: FileId,
    /// File, directory, …
    pub file_type: FileType,
    /// Whether the file is the root of a mount (`STATX_ATTR_MOUNT_ROOT`, Linux 5.8).
    pub mount_root: bool,
    /// The id of the mount it was reached through, as in mountinfo.
    pub mount_id: u64,
    /// For a device node: what it stands for, major and minor.
    pub device: (u32, u32),
    /// Owner.
    pub uid: u32,
    /// Permission bits and type.
    pub mode: u32,
    /// Length in bytes.
    pub size: u64,
    /// Allocated bytes.
    pub allocated: u64,
}

/// A name that a system call takes and an error shows.
pub trait Name: rustix::path::Arg + fmt::Debug + Copy {}

impl<T: rustix::path::Arg + fmt::Debug + Copy> Name for T {}

/// Returns whether anybody but root may replace entries of the directory.
pub fn is_open_to_others(status: &Status) -> bool {
    status.uid != 0 || status.mode & 0o022 != 0
}

/// Opens the entry `name` of `parent` for inspection: what is mounted on it, if anything, but never what a link points
/// to.
pub fn open_entry(parent: impl AsFd, name: &str) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(parent, name, flags, Mode::empty(), BENEATH).by_with("openat2", name)
}

/// Opens the file or directory `path` below `parent`, staying on its mount: `LOOP` if that is a link, or leads over one. Does
/// not block on a fifo.
pub fn open(parent: impl AsFd, path: impl Name, flags: OFlags) -> Result<OwnedFd> {
    // With O_PATH, openat2(2) refuses flags that apply to an open file, and O_NOFOLLOW would open a link itself.
    let of_files = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let careful = if flags.contains(OFlags::PATH) { OFlags::empty() } else { of_files };
    let flags = flags | careful | OFlags::CLOEXEC;
    rustix::fs::openat2(parent, path, flags, Mode::empty(), BENEATH | ResolveFlags::NO_XDEV).by_with("openat2", path)
}

/// Makes the file `name` in `parent`, which must not exist.
pub fn create(parent: impl AsFd, name: &str, mode: Mode) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(parent, name, flags, mode, BENEATH | ResolveFlags::NO_XDEV).by_with("openat2", name)
}

/// Makes the directory `name` in `parent`, which must not exist.
pub fn make_directory(parent: impl AsFd, name: &str, mode: Mode) -> Result<()> {
    rustix::fs::mkdirat(parent, name, mode).by_with("mkdirat", name)
}

/// The status of an open file.
pub fn status(file: impl AsFd) -> Result<Status> {
    statx(file, "").by("statx")
}

/// The status of the entry `name` of `parent`, without opening it; an empty name means `parent` itself.
pub fn status_at(parent: impl AsFd, name: impl Name) -> Result<Status> {
    statx(parent, name).by_with("statx", name)
}

fn statx(parent: impl AsFd, name: impl Name) -> std::result::Result<Status, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(parent, name, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
    Ok(Status {
        id: FileId { device: (found.stx_dev_major, found.stx_dev_minor), inode: found.stx_ino },
        file_type: FileType::from_raw_mode(found.stx_mode.into()),
        mount_root: found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        mount_id: found.stx_mnt_id,
        device: (found.stx_rdev_major, found.stx_rdev_minor),
        uid: found.stx_uid,
        mode: found.stx_mode.into(),
        size: found.stx_size,
        allocated: found.stx_blocks.saturating_mul(512),
    })
}

/// The id of the filesystem that holds an open file (`f_fsid`), available even after it has shut down.
pub fn filesystem_id(file: impl AsFd) -> Result<u64> {
    Ok(rustix::fs::fstatvfs(file).by("fstatfs")?.f_fsid)
}

/// Removes the entry `name`, which is not a directory.
pub fn remove(parent: impl AsFd, name: impl Name) -> Result<()> {
    rustix::fs::unlinkat(parent, name, AtFlags::empty()).by_with("unlinkat", name)
}

/// Removes the empty directory `name`.
pub fn remove_directory(parent: impl AsFd, name: impl Name) -> Result<()> {
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).by_with("unlinkat", name)
}

/// Syncs a file or directory to disk. This proves nothing if the disk has died: see [`crate::state::Served::sync`].
pub fn sync(file: impl AsFd) -> Result<()> {
    rustix::fs::fsync(file).by("fsync")
}

/// Reads an open file from its current position to its end; `EFBIG` if that is more than `limit` bytes.
pub fn read_up_to(file: impl AsFd, limit: usize) -> Result<Vec<u8>> {
    let (mut content, mut part) = (Vec::new(), [0; 4 << 10]);
    while content.len() <= limit {
        match rustix::io::read(&file, &mut part).by("read")? {
            0 => return Ok(content),
            length => content.extend(part.iter().take(length)),
        }
    }
    Err(Error::of(Errno::FBIG))
}

/// The type of an ioctl request number, which differs between C libraries.
pub type Request = libc::Ioctl;

/// The number of a borrowed descriptor, for a call that does not keep it.
pub(super) fn raw_fd(file: &impl AsFd) -> i32 {
    file.as_fd().as_raw_fd()
}
