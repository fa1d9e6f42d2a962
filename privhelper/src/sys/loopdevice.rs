//! Loop devices (loop(4)). They are reached by nodes in the helper's own tmpfs and found by what they back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use linux_raw_sys::loop_device as raw;
use nix::libc;
use rustix::fs::{FileType, Mode, OFlags};

use super::file::{FileId, Request, raw_fd};
use super::{Result, checked};

/// Block major number of loop devices (devices.txt).
pub const MAJOR: u32 = 7;

/// What a bound loop device says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The file it backs.
    pub image: FileId,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Whether it goes away when the last opener closes it: it is dying.
    pub autoclear: bool,
}

/// Makes the node of loop device `number` in `directory`.
pub fn make_node(directory: BorrowedFd<'_>, name: &str, number: u32) -> Result<()> {
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(directory, name, FileType::BlockDevice, mode, rustix::fs::makedev(MAJOR, number))
}

/// Opens a node made by [`make_node`]. Opening a number that does not exist would make the device.
pub fn open_node(directory: BorrowedFd<'_>, name: &str) -> Result<OwnedFd> {
    super::file::open(directory, name, OFlags::RDWR)
}

/// Binds an image to an unbound device in one step (`LOOP_CONFIGURE`, Linux 5.8). `EBUSY` if it is bound.
pub fn configure(
    device: impl AsFd,
    image: impl AsFd,
    label: &str,
    block_size: u32,
    read_only: bool,
    direct: bool,
) -> Result<()> {
    let mut info = empty_info();
    if read_only {
        info.lo_flags |= raw::LO_FLAGS_READ_ONLY as u32;
    }
    if direct {
        info.lo_flags |= raw::LO_FLAGS_DIRECT_IO as u32;
    }
    // The last byte stays zero: the field is a C string.
    for (to, from) in info.lo_file_name.iter_mut().take(63).zip(label.bytes()) {
        *to = from;
    }
    let fd = u32::try_from(raw_fd(&image)).map_err(|_| super::Errno::BADF)?;
    let config = raw::loop_config { fd, block_size, info, __reserved: [0; 8] };
    // SAFETY: the kernel reads one `struct loop_config` from the pointer; it lives through the call, and so does the image's fd.
    checked(i64::from(unsafe { libc::ioctl(raw_fd(&device), raw::LOOP_CONFIGURE as Request, &raw const config) }))
        .map(drop)
}

/// What the device is bound to; `ENXIO` if to nothing.
pub fn binding(device: impl AsFd) -> Result<Binding> {
    let info = get_status(&device)?;
    Ok(Binding {
        image: FileId {
            device: (rustix::fs::major(info.lo_device), rustix::fs::minor(info.lo_device)),
            inode: info.lo_inode,
        },
        read_only: info.lo_flags & raw::LO_FLAGS_READ_ONLY as u32 != 0,
        autoclear: info.lo_flags & raw::LO_FLAGS_AUTOCLEAR as u32 != 0,
    })
}

/// Lets a dying device live: takes the mark off that would unbind it at its last close.
pub fn clear_autoclear(device: impl AsFd) -> Result<()> {
    let mut info = get_status(&device)?;
    info.lo_flags &= !(raw::LO_FLAGS_AUTOCLEAR as u32);
    // SAFETY: the kernel reads one `struct loop_info64` from the pointer; it lives through the call.
    checked(i64::from(unsafe { libc::ioctl(raw_fd(&device), raw::LOOP_SET_STATUS64 as Request, &raw const info) }))
        .map(drop)
}

/// Unbinds a device. If somebody else has it open it is only marked, and unbound at the last close.
pub fn unbind(device: impl AsFd) -> Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument.
    checked(i64::from(unsafe { libc::ioctl(raw_fd(&device), raw::LOOP_CLR_FD as Request) })).map(drop)
}

/// Lets a device see its image's new length.
pub fn refresh_capacity(device: impl AsFd) -> Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument.
    checked(i64::from(unsafe { libc::ioctl(raw_fd(&device), raw::LOOP_SET_CAPACITY as Request) })).map(drop)
}

/// The number of an unbound device; one is made if there is none.
pub fn any_free(control: impl AsFd) -> Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and returns a number.
    let number = checked(i64::from(unsafe { libc::ioctl(raw_fd(&control), raw::LOOP_CTL_GET_FREE as Request) }))?;
    u32::try_from(number).map_err(|_| super::Errno::RANGE)
}

fn get_status(device: impl AsFd) -> Result<raw::loop_info64> {
    let mut info = empty_info();
    // SAFETY: the kernel writes one `struct loop_info64` to the pointer; it lives through the call.
    checked(i64::from(unsafe { libc::ioctl(raw_fd(&device), raw::LOOP_GET_STATUS64 as Request, &raw mut info) }))?;
    Ok(info)
}

fn empty_info() -> raw::loop_info64 {
    // SAFETY: `struct loop_info64` has integer fields only, for which all zeros are valid.
    unsafe { std::mem::zeroed() }
}
