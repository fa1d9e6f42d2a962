//! XFS in an image: mounting it, growing it, and what such a mount looks like.

use std::os::fd::{AsFd, OwnedFd};

use linux_raw_sys::general::XFS_SUPER_MAGIC;
use nix::libc;
use rustix::mount::fsconfig_set_flag;

use super::file::{self, Request, raw_fd};
use super::loopdevice::MAJOR;
use super::mount::{self, Flagged, MountAttrFlags};
use super::{Called, Result, checked};

/// What every mount refuses: setuid programs and device nodes.
pub const FLAGS: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);
/// [`FLAGS`] as statfs(2) shows them, and the bits that are compared: read-only is the first of them.
const SHOWN: (u64, u64) = (libc::ST_NOSUID | libc::ST_NODEV, libc::ST_RDONLY | libc::ST_NOSUID | libc::ST_NODEV);

/// The length of a block, in bytes. All filesystems here are made with it.
const BLOCK: u64 = 4096;
/// How much of a filesystem inodes may take, in percent, as it was made. Growing sets it again.
const INODES: u32 = 25;
/// `XFS_IOC_FSGROWFSDATA` (ioctl_xfs_fsgrowfs(2)), the same on every architecture that Bulkhead is built for.
pub const GROW: u32 = 0x4010_586e;

/// `FIFREEZE` and `FITHAW` (ioctl_fs.h; fsfreeze(8)), the same on every architecture that Bulkhead is built for.
pub const FREEZE: u32 = 0xc004_5877;
/// See [`FREEZE`].
pub const THAW: u32 = 0xc004_5878;

/// `struct xfs_growfs_data`.
#[repr(C)]
struct Growth {
    blocks: u64,
    inodes: u32,
    padding: u32,
}

/// What is to become the mount of the filesystem on a device, with all its options, which are always the same but for the
/// label that all files have for SELinux. All filesystems that were made from one template have one uuid.
pub fn configure(device: &str, label: Option<&str>) -> Result<OwnedFd> {
    let context = mount::configure("xfs", [("source", device)].into_iter().chain(label.map(|it| ("context", it))))?;
    fsconfig_set_flag(context.as_fd(), "nouuid").by_with("fsconfig", "nouuid")?;
    Ok(context)
}

/// The loop device of the filesystem with this id, which is the device's number as the kernel keeps it in 32 bits
/// (linux/kdev_t.h, `new_encode_dev`); `None` if it is no loop device's.
pub fn loop_device_of(filesystem: u64) -> Option<u32> {
    let encoded = u32::try_from(filesystem).ok()?;
    (encoded >> 8 & 0xfff == MAJOR).then_some(encoded & 0xff | encoded >> 12 & 0xf_ff00)
}

/// Returns what claims to be such a mount, of the filesystem on loop device `number`, if it is one.
pub fn checked_mount(mount: OwnedFd, number: u32) -> Result<Option<Flagged>> {
    let (status, found) = (file::status(&mount)?, rustix::fs::fstatfs(&mount).by("fstatfs")?);
    let (flags, compared) = SHOWN;
    let is_one = status.mount_root
        && status.id.device == (MAJOR, number)
        && u32::try_from(found.f_type) == Ok(XFS_SUPER_MAGIC)
        && u64::try_from(found.f_flags).is_ok_and(|shown| shown & compared == flags);
    Ok(is_one.then_some(Flagged(mount)))
}

/// Makes a mounted filesystem, of which a directory is open for reading, take on a size in bytes. Nothing happens if it
/// has that size. Needs CAP_SYS_ADMIN.
pub fn grow(directory: &OwnedFd, size: u64) -> Result<()> {
    let growth = Growth { blocks: size / BLOCK, inodes: INODES, padding: 0 };
    // SAFETY: the kernel reads one `struct xfs_growfs_data` from `growth`, which outlives the call.
    checked(unsafe { libc::ioctl(raw_fd(directory), GROW as Request, &raw const growth) }, "XFS_IOC_FSGROWFSDATA")
}

/// Stops all writes to a mounted filesystem, of which a directory is open for reading, and brings everything to its device
/// that the kernel has of it. Needs CAP_SYS_ADMIN.
///
/// # Errors
/// `BUSY` when it is frozen already.
pub fn freeze(directory: &OwnedFd) -> Result<()> {
    // SAFETY: the kernel takes no argument of this command.
    checked(unsafe { libc::ioctl(raw_fd(directory), FREEZE as Request, 0) }, "FIFREEZE")
}

/// Lets a filesystem that is frozen be written to again. Needs CAP_SYS_ADMIN.
///
/// # Errors
/// `INVAL` when it is not frozen.
pub fn thaw(directory: &OwnedFd) -> Result<()> {
    // SAFETY: the kernel takes no argument of this command.
    checked(unsafe { libc::ioctl(raw_fd(directory), THAW as Request, 0) }, "FITHAW")
}
