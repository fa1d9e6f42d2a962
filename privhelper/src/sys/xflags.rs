//! The project id and the flags of files (`FS_IOC_FSGETXATTR`, ioctl_xfs_fsgetxattr(2)).

use std::ffi::CStr;
use std::os::fd::AsFd;

use linux_raw_sys::general::{
    FS_XFLAG_APPEND, FS_XFLAG_COWEXTSIZE, FS_XFLAG_IMMUTABLE, FS_XFLAG_PROJINHERIT, file_attr, fsxattr,
};
use linux_raw_sys::ioctl::{FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR};
use nix::libc;

use super::file::{Request, raw_fd};
use super::{Called, Errno, Error, Result, checked};

/// How many bytes are copied at least when a shared block is written to.
const COPY_UNIT: u64 = 4096;

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

/// The attributes of an open file without these flags; `None` if none of them is set.
pub fn attributes_without(file: impl AsFd, flags: u32) -> Result<Option<fsxattr>> {
    let found = attributes(file)?;
    let is_any_set = found.fsx_xflags & flags != 0;
    Ok(is_any_set.then_some(fsxattr { fsx_xflags: found.fsx_xflags & !flags, ..found }))
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
