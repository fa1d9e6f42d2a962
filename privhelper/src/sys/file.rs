//! Files and directories, always relative to a held directory.
//!
//! Every path is resolved by openat2(2) with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`; the last
//! component is handled by *at() calls on the parent, and nothing is resolved twice.

use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use linux_raw_sys::general::{
    FS_XFLAG_APPEND, FS_XFLAG_COWEXTSIZE, FS_XFLAG_IMMUTABLE, FS_XFLAG_PROJINHERIT, file_attr, fsxattr,
};
use linux_raw_sys::ioctl::{FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR};
use nix::libc;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawDir, RenameFlags, ResolveFlags, SeekFrom, StatxAttributes, StatxFlags,
};

use super::{Called, Errno, Error, Result, checked, with_patience};

/// How many bytes are copied at least when a shared block is written to.
const COPY_UNIT: u64 = 4096;

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Identifies a file, whatever its name: the device number of its filesystem and its inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

/// Another descriptor of the same open file.
pub fn duplicate(file: impl AsFd) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(file, 0).by("fcntl")
}

/// Returns whether anybody but root may replace entries of the directory.
pub fn is_open_to_others(status: &Status) -> bool {
    status.uid != 0 || status.mode & 0o022 != 0
}

/// Opens a path from the configuration, or one that the jail made, following links. At start only: no request gets
/// here.
#[expect(clippy::disallowed_methods, reason = "the administrator's own paths may lead over links")]
pub fn open_at_start(path: impl Name, flags: OFlags) -> Result<OwnedFd> {
    rustix::fs::openat(rustix::fs::CWD, path, flags | OFlags::CLOEXEC, Mode::empty()).by_with("openat", path)
}

/// Opens the directory `path` below `root` for path resolution, without leaving the mount of `root`. An empty path
/// means `root` itself.
pub fn open_below(root: BorrowedFd<'_>, path: &str) -> Result<OwnedFd> {
    let path = if path.is_empty() { "." } else { path };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(root, path, flags, Mode::empty(), BENEATH | ResolveFlags::NO_XDEV).by_with("openat2", path)
}

/// Opens the entry `name` of `parent` for inspection: what is mounted on it, if anything, but never what a link points
/// to.
pub fn open_entry(parent: impl AsFd, name: &str) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(parent, name, flags, Mode::empty(), BENEATH).by_with("openat2", name)
}

/// Opens the file or directory `path` below `parent`, staying on its mount. Does not block on a fifo.
pub fn open(parent: impl AsFd, path: impl Name, flags: OFlags) -> Result<OwnedFd> {
    // With O_PATH, openat2(2) refuses flags that apply to an open file.
    let careful = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK | OFlags::NOCTTY };
    let flags = flags | careful | OFlags::NOFOLLOW | OFlags::CLOEXEC;
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

/// Syncs a file or directory to disk. This proves nothing if the disk has died: see [`crate::state::Served::sync`].
pub fn sync(file: impl AsFd) -> Result<()> {
    rustix::fs::fsync(file).by("fsync")
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

/// The project id and the flags of an open file (`FS_IOC_FSGETXATTR`, ioctl_xfs_fsgetxattr(2)).
pub fn attributes(file: impl AsFd) -> Result<fsxattr> {
    let mut raw =
        fsxattr { fsx_xflags: 0, fsx_extsize: 0, fsx_nextents: 0, fsx_projid: 0, fsx_cowextsize: 0, fsx_pad: [0; 8] };
    // SAFETY: the kernel writes one `struct fsxattr` to `raw`, which outlives the call.
    checked(unsafe { libc::ioctl(raw_fd(&file), FS_IOC_FSGETXATTR as Request, &raw mut raw) }, "FS_IOC_FSGETXATTR")?;
    Ok(raw)
}

/// Puts an open file or directory in a project, and sets flags: [`PROJECT_INHERIT`], which ext4 refuses for a file, or none.
pub fn set_project(file: impl AsFd, project: u32, flags: u32) -> Result<()> {
    let found = attributes(&file)?;
    let fsx_xflags = found.fsx_xflags | flags;
    set_attributes(file, fsxattr { fsx_xflags, fsx_projid: project, ..found })
}

/// Makes an image that shares blocks with another take up no more than what is written to it: XFS would set aside 128 KiB for
/// each block that is replaced (`cowextsize`, ioctl_xfs_fssetxattr(2)). Copies take this over. Returns the attributes before,
/// if they had to be changed.
pub fn set_copy_unit(image: impl AsFd) -> Result<Option<fsxattr>> {
    let found = attributes(&image)?;
    // It must be a multiple of the length of a block, which may be greater (Linux 6.12, or a processor with large pages).
    let unit = COPY_UNIT.max(rustix::fs::fstatvfs(&image).by("fstatfs")?.f_frsize);
    let fsx_cowextsize = u32::try_from(unit).map_err(|_| Error::of(Errno::INVAL))?;
    let wanted = fsxattr { fsx_xflags: found.fsx_xflags | FS_XFLAG_COWEXTSIZE, fsx_cowextsize, ..found };
    let is_set = (found.fsx_xflags, found.fsx_cowextsize) == (wanted.fsx_xflags, wanted.fsx_cowextsize);
    if is_set { Ok(None) } else { set_attributes(image, wanted).map(|()| Some(found)) }
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

/// Clears flags of an open file, if any of them are set.
pub fn clear_flags(file: impl AsFd, flags: u32) -> Result<()> {
    let found = attributes(&file)?;
    let left = found.fsx_xflags & !flags;
    if left == found.fsx_xflags { Ok(()) } else { set_attributes(file, fsxattr { fsx_xflags: left, ..found }) }
}

/// Sets the project id and the flags of an open file (`FS_IOC_FSSETXATTR`).
pub fn set_attributes(file: impl AsFd, attributes: fsxattr) -> Result<()> {
    // SAFETY: the kernel reads one `struct fsxattr` from `attributes`, which outlives the call.
    let returned = unsafe { libc::ioctl(raw_fd(&file), FS_IOC_FSSETXATTR as Request, &raw const attributes) };
    checked(returned, "FS_IOC_FSSETXATTR")
}

/// Clears flags of the entry `name` of `parent`, whatever its type, without opening it.
pub fn clear_flags_at(parent: impl AsFd, name: &CStr, flags: u32) -> Result<()> {
    let mut raw = file_attr { fa_xflags: 0, fa_extsize: 0, fa_nextents: 0, fa_projid: 0, fa_cowextsize: 0 };
    attributes_at(&parent, name, FILE_GETATTR, &mut raw)?;
    raw.fa_xflags &= !u64::from(flags);
    attributes_at(parent, name, FILE_SETATTR, &mut raw)
}

/// Gets or sets the attributes of the entry `name` of `parent` without opening it (file_getattr(2) or file_setattr(2),
/// Linux 6.17, as `call` says).
pub fn attributes_at(parent: impl AsFd, name: &CStr, call: libc::c_long, raw: &mut file_attr) -> Result<()> {
    let (size, at) = (size_of::<file_attr>(), libc::AT_SYMLINK_NOFOLLOW);
    // SAFETY: the kernel reads the NUL-terminated name, and reads or writes at most `size` bytes of `raw`; both outlive
    // the call.
    let returned = unsafe { libc::syscall(call, raw_fd(&parent), name.as_ptr(), &raw mut *raw, size, at) };
    checked(returned, if call == FILE_GETATTR { "file_getattr" } else { "file_setattr" })
}

/// The system call numbers of file_getattr(2) and file_setattr(2), the same on every architecture.
pub const FILE_GETATTR: libc::c_long = 468;
/// See [`FILE_GETATTR`].
pub const FILE_SETATTR: libc::c_long = 469;

/// New entries of a directory with this flag inherit its project id.
pub const PROJECT_INHERIT: u32 = FS_XFLAG_PROJINHERIT;
/// Root cannot remove a file with one of these flags.
pub const UNREMOVABLE: u32 = FS_XFLAG_IMMUTABLE | FS_XFLAG_APPEND;

/// The type of an ioctl request number, which differs between C libraries.
pub type Request = libc::Ioctl;

/// The number of a borrowed descriptor, for a call that does not keep it.
pub(super) fn raw_fd(file: &impl AsFd) -> i32 {
    use std::os::fd::AsRawFd;
    file.as_fd().as_raw_fd()
}
