//! Loop devices (loop(4)). They are reached through nodes in the helper's own tmpfs and found by the file that backs
//! them.

use std::os::fd::{AsFd, BorrowedFd};

use linux_raw_sys::ioctl::BLKROSET;
use linux_raw_sys::loop_device as raw;
use nix::libc;
use rustix::fs::{FileType, Mode, SeekFrom};

use super::file::{FileId, Request, raw_fd};
use super::{Called, Result, checked};

/// Block major number of loop devices (devices.txt).
pub const MAJOR: u32 = 7;

/// Makes the node of loop device `number` in `directory`. Opening a node whose device does not exist creates the device.
pub fn make_node(directory: BorrowedFd<'_>, name: &str, number: u32) -> Result<()> {
    let mode = Mode::RUSR | Mode::WUSR;
    let device = rustix::fs::makedev(MAJOR, number);
    rustix::fs::mknodat(directory, name, FileType::BlockDevice, mode, device).by("mknodat")
}

/// The numbers of the devices that helpers make: far above those that the kernel chooses when other programs ask for a
/// device. So the number says whose a device is, and no other device is ever opened.
pub const OURS: std::ops::RangeInclusive<u32> = 0x8_0000..=0xf_ffff;

/// The length of what a device is bound to, in bytes; 0 if it is bound to nothing. Nothing that it is bound to is asked.
pub fn length(device: impl AsFd) -> Result<u64> {
    rustix::fs::seek(device, SeekFrom::End(0)).by("lseek")
}

/// Returns the file that backs the device; `ENXIO` if it is not bound.
pub fn image_of(device: impl AsFd) -> Result<FileId> {
    let info = get_status(&device)?;
    let (major, minor) = (rustix::fs::major(info.lo_device), rustix::fs::minor(info.lo_device));
    Ok(FileId { device: (major, minor), inode: info.lo_inode })
}

/// Undoes what others may have set: the flag that unbinds the device at its last close, and which part of the image it
/// shows. Needs CAP_SYS_ADMIN on a descriptor that is open for reading. The latter fails with `EAGAIN` as long as somebody
/// keeps a page of the device mapped; the former does not.
pub fn take_back(device: impl AsFd) -> Result<()> {
    let mut info = get_status(&device)?;
    info.lo_flags &= !(raw::LO_FLAGS_AUTOCLEAR as u32);
    set_status(&device, &info)?;
    if (info.lo_offset, info.lo_sizelimit) == (0, 0) {
        return Ok(());
    }
    (info.lo_offset, info.lo_sizelimit) = (0, 0);
    set_status(device, &info)
}

fn set_status(device: impl AsFd, info: &raw::loop_info64) -> Result<()> {
    // SAFETY: the kernel reads one `struct loop_info64` from `info`, which outlives the call.
    let returned = unsafe { libc::ioctl(raw_fd(&device), raw::LOOP_SET_STATUS64 as Request, &raw const *info) };
    checked(returned, "LOOP_SET_STATUS64")
}

/// Makes a device take on its image's new length. Needs CAP_SYS_ADMIN on a descriptor that is open for reading.
pub fn refresh_capacity(device: impl AsFd) -> Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument.
    checked(unsafe { libc::ioctl(raw_fd(&device), raw::LOOP_SET_CAPACITY as Request) }, "LOOP_SET_CAPACITY")
}

/// Sets whether a device refuses writes (`BLKROSET`). Only CAP_SYS_ADMIN can change this, and it outlives the binding.
pub fn set_read_only(device: impl AsFd, read_only: bool) -> Result<()> {
    let read_only = libc::c_int::from(read_only);
    // SAFETY: the kernel reads one `int` from `read_only`, which outlives the call.
    checked(unsafe { libc::ioctl(raw_fd(&device), BLKROSET as Request, &raw const read_only) }, "BLKROSET")
}

pub(super) fn get_status(device: impl AsFd) -> Result<raw::loop_info64> {
    let mut info = empty_info();
    // SAFETY: the kernel writes one `struct loop_info64` to `info`, which outlives the call.
    let returned = unsafe { libc::ioctl(raw_fd(&device), raw::LOOP_GET_STATUS64 as Request, &raw mut info) };
    checked(returned, "LOOP_GET_STATUS64")?;
    Ok(info)
}

pub(super) fn empty_info() -> raw::loop_info64 {
    // SAFETY: `struct loop_info64` has only integer fields, for which all zeros are valid.
    unsafe { std::mem::zeroed() }
}
