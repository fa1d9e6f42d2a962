//! The mount interface of Linux 5.2 and later: a mount is complete before it is visible.

use std::ffi::{CStr, OsString};
use std::mem::offset_of;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use linux_raw_sys::general::{__NR_statmount, STATMOUNT_MNT_ROOT, STATX_MNT_ID_UNIQUE, mnt_id_req, statmount};
use nix::libc;
use rustix::fs::{AtFlags, StatxFlags};
pub use rustix::mount::MountAttrFlags;
use rustix::mount::{FsOpenFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_set_string, fsopen};

use super::file::raw_fd;
use super::{Called, Errno, Error, Result, checked};

/// How a single mount is cloned: without those below it.
pub const CLONE_ONE: OpenTreeFlags =
    OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC).union(OpenTreeFlags::AT_EMPTY_PATH);
/// How a mount is moved: from one open descriptor to another.
pub const BY_DESCRIPTORS: MoveMountFlags =
    MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH.union(MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH);

/// A mount that has its flags and is attached to nothing yet: no other can be attached. Only what makes mounts, or checks the
/// flags of one that another process has made, can make a value of it: the files beside this one.
#[derive(Debug)]
pub struct Flagged(pub(super) OwnedFd);

/// What is to become a mount of a filesystem with these options (fsopen(2)). Nothing has been read of it yet.
pub fn configure<'a>(filesystem: &str, options: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<OwnedFd> {
    let context = fsopen(filesystem, FsOpenFlags::FSOPEN_CLOEXEC).by_with("fsopen", filesystem)?;
    for (option, value) in options {
        fsconfig_set_string(context.as_fd(), option, value).by_with("fsconfig", option)?;
    }
    Ok(context)
}

/// A copy of the mount at the open directory or file, with these flags.
pub fn clone_of(source: impl AsFd, flags: MountAttrFlags) -> Result<Flagged> {
    let clone = rustix::mount::open_tree(source, "", CLONE_ONE).by("open_tree")?;
    set_flags(&clone, flags)?;
    Ok(Flagged(clone))
}

/// Sets what a mount that is held open refuses. Access times are kept as `flags` say, whatever applied before.
pub fn set_flags(mount: impl AsFd, flags: MountAttrFlags) -> Result<()> {
    let clear = libc::MOUNT_ATTR__ATIME;
    mount_setattr(raw_fd(&mount), c"", libc::AT_EMPTY_PATH, u64::from(flags.bits()), clear, 0)
}

pub(super) fn mount_setattr(
    mount: i32,
    path: &CStr,
    flags: i32,
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
) -> Result<()> {
    let raw = libc::mount_attr { attr_set, attr_clr, propagation, userns_fd: 0 };
    let (path, size) = (path.as_ptr(), size_of::<libc::mount_attr>());
    // SAFETY: the kernel reads the NUL-terminated path and `size` bytes of `raw`; both outlive the call.
    let returned = unsafe { libc::syscall(libc::SYS_mount_setattr, mount, path, flags, &raw const raw, size) };
    checked(returned, "mount_setattr")
}

/// Attaches a mount to the open directory or file, and returns its [`unique_id`], which was asked for before.
#[expect(clippy::disallowed_methods, reason = "a flagged mount only, by descriptors only")]
pub fn attach(mount: &Flagged, target: impl AsFd) -> Result<Option<NonZeroU64>> {
    let unique = unique_id(&mount.0, "")?;
    rustix::mount::move_mount(&mount.0, "", target, "", BY_DESCRIPTORS).by("move_mount")?;
    Ok(unique)
}

/// The id of the mount at the entry `name` of `parent` (an empty name means `parent` itself), which is never reused for
/// another mount; `None` before Linux 6.8.
pub fn unique_id(parent: impl AsFd, name: &str) -> Result<Option<NonZeroU64>> {
    let unique = StatxFlags::from_bits_retain(STATX_MNT_ID_UNIQUE);
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(parent, name, flags, unique).by("statx")?;
    Ok(NonZeroU64::new(found.stx_mnt_id).filter(|_| found.stx_mask & STATX_MNT_ID_UNIQUE != 0))
}

/// Looks for a mount in this namespace by its unique id, wherever it is (statmount(2), Linux 6.8); `ENOENT` if it is
/// gone.
pub fn find(unique_id: NonZeroU64) -> Result<()> {
    stat_mount(unique_id, 0, &mut [])
}

/// Returns which part of its filesystem a mount of this namespace shows, under the names that lead there now
/// (statmount(2), Linux 6.8).
pub fn root_of(unique_id: NonZeroU64) -> Result<PathBuf> {
    let mut found = [0; STATMOUNT_ROOM];
    stat_mount(unique_id, STATMOUNT_MNT_ROOT, &mut found)?;
    let begin = found.get(offset_of!(statmount, mnt_root)..).and_then(|field| field.first_chunk());
    let begin = usize::try_from(u32::from_ne_bytes(*begin.ok_or(Error::of(Errno::BADMSG))?))
        .map_err(|_| Error::of(Errno::BADMSG))?;
    let text = found.get(size_of::<statmount>().saturating_add(begin)..).unwrap_or_default();
    let text = CStr::from_bytes_until_nul(text).map_err(|_| Error::of(Errno::BADMSG))?;
    Ok(OsString::from_vec(text.to_bytes().to_owned()).into())
}

/// How much room [`root_of`] leaves for what the kernel says of a mount: the fixed part and a path.
pub const STATMOUNT_ROOM: usize = 8 << 10;

fn stat_mount(unique_id: NonZeroU64, what: u32, found: &mut [u8]) -> Result<()> {
    let size = u32::try_from(size_of::<mnt_id_req>()).map_err(|_| Error::of(Errno::INVAL))?;
    let wanted = mnt_id_req { size, spare: 0, mnt_id: unique_id.get(), param: what.into(), mnt_ns_id: 0 };
    // SAFETY: the kernel reads `size` bytes of `wanted`, and writes at most as many bytes to `found` as it has; both
    // outlive the call.
    checked(unsafe { libc::syscall(STATMOUNT, &raw const wanted, found.as_mut_ptr(), found.len(), 0_u32) }, "statmount")
}

/// The system call number of statmount(2), the same on every architecture.
pub const STATMOUNT: libc::c_long = __NR_statmount as libc::c_long;

/// Unmounts the entry `name` of `parent`. The calling thread must have a working directory of its own
/// ([`super::thread::own_working_directory`]): umount2(2) takes no directory descriptor, and the jail has no /proc.
pub fn unmount_entry(parent: BorrowedFd<'_>, name: &str) -> Result<()> {
    in_directory(parent, || rustix::mount::unmount(name, UnmountFlags::NOFOLLOW).by_with("umount2", name))
}

/// Runs `call` with `directory` as the thread's working directory, then leaves it, so that nothing below it stays busy.
pub fn in_directory<T>(directory: BorrowedFd<'_>, call: impl FnOnce() -> Result<T>) -> Result<T> {
    rustix::process::fchdir(directory).by("fchdir")?;
    let result = call();
    change_directory("/")?;
    result
}

pub(super) fn change_directory(path: &str) -> Result<()> {
    rustix::process::chdir(path).by_with("chdir", path)
}
