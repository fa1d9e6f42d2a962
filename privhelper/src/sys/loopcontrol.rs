//! Loop devices (loop(4)) coming and going: made, bound, unbound and removed; and what they are bound to. An open node is
//! enough for that.

use std::os::fd::AsFd;

use linux_raw_sys::ioctl::BLKROGET;
use linux_raw_sys::loop_device as raw;
use nix::libc;

use super::file::{FileId, Request, raw_fd};
use super::loopdevice::{MAJOR, empty_info, get_status};
use super::{Error, Result, checked};

/// What a bound loop device says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The file that backs it.
    pub image: FileId,
    /// The loop device that backs it, if one does: its number.
    pub on: Option<u32>,
    /// What it was labelled with. Anybody who has it open for writing may change that.
    pub label: String,
    /// Whether the page cache is passed by.
    pub direct: bool,
    /// Whether somebody has set anything that [`super::loopdevice::take_back`] undoes.
    pub altered: bool,
}

/// How an image is bound to a device.
#[derive(Clone, Copy, Debug)]
pub struct Configuration<'a> {
    /// What the device says it is bound to, at most 63 bytes.
    pub label: &'a str,
    /// The device's logical block size; 0 leaves the choice to the kernel.
    pub block_size: u32,
    /// Whether the page cache is passed by.
    pub direct: bool,
    /// Whether the image is open for reading only.
    pub read_only: bool,
}

/// Binds an image to an unbound device in one step (`LOOP_CONFIGURE`, Linux 5.8). `EBUSY` if it is already bound.
pub fn configure(device: impl AsFd, image: impl AsFd, how: Configuration<'_>) -> Result<()> {
    let mut info = empty_info();
    let flags = [(how.direct, raw::LO_FLAGS_DIRECT_IO as u32), (how.read_only, raw::LO_FLAGS_READ_ONLY as u32)];
    info.lo_flags = flags.iter().filter(|(wanted, _)| *wanted).map(|(_, flag)| flag).sum();
    // The last byte stays zero: the field is a C string.
    for (to, from) in info.lo_file_name.iter_mut().take(63).zip(how.label.bytes()) {
        *to = from;
    }
    let fd = u32::try_from(raw_fd(&image)).map_err(|_| Error::of(super::Errno::BADF))?;
    let config = raw::loop_config { fd, block_size: how.block_size, info, __reserved: [0; 8] };
    // SAFETY: the kernel reads one `struct loop_config` from `config`, which outlives the call, as does the image's fd.
    let returned = unsafe { libc::ioctl(raw_fd(&device), raw::LOOP_CONFIGURE as Request, &raw const config) };
    checked(returned, "LOOP_CONFIGURE")
}

/// Returns what the device is bound to; `ENXIO` if it is not bound.
pub fn binding(device: impl AsFd) -> Result<Binding> {
    let info = get_status(&device)?;
    let number = |device: u64| (rustix::fs::major(device), rustix::fs::minor(device));
    let (major, minor) = number(info.lo_rdevice);
    Ok(Binding {
        image: FileId { device: number(info.lo_device), inode: info.lo_inode },
        on: (major == MAJOR).then_some(minor),
        label: info.lo_file_name.iter().copied().take_while(|byte| *byte != 0).map(char::from).collect(),
        direct: info.lo_flags & raw::LO_FLAGS_DIRECT_IO as u32 != 0,
        altered: info.lo_flags & raw::LO_FLAGS_AUTOCLEAR as u32 != 0 || (info.lo_offset, info.lo_sizelimit) != (0, 0),
    })
}

/// Unbinds a device. If somebody else has it open, it is only marked, and is unbound at the last close; since Linux
/// 6.10 it is unbound when the caller closes it. `ENXIO` if it is no longer bound.
pub fn unbind(device: impl AsFd) -> Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument.
    checked(unsafe { libc::ioctl(raw_fd(&device), raw::LOOP_CLR_FD as Request) }, "LOOP_CLR_FD")
}

/// Returns whether a device refuses writes.
pub fn is_read_only(device: impl AsFd) -> Result<bool> {
    let mut read_only: libc::c_int = 0;
    // SAFETY: the kernel writes one `int` to `read_only`, which outlives the call.
    checked(unsafe { libc::ioctl(raw_fd(&device), BLKROGET as Request, &raw mut read_only) }, "BLKROGET")?;
    Ok(read_only != 0)
}

/// Creates the device with this number; `EEXIST` if there already is one.
pub fn add(control: impl AsFd, number: u32) -> Result<()> {
    let number = libc::c_ulong::from(number);
    // SAFETY: LOOP_CTL_ADD takes a number.
    checked(unsafe { libc::ioctl(raw_fd(&control), raw::LOOP_CTL_ADD as Request, number) }, "LOOP_CTL_ADD")
}

/// Removes a device; `EBUSY` if it is bound or open.
pub fn remove(control: impl AsFd, number: u32) -> Result<()> {
    let number = libc::c_ulong::from(number);
    // SAFETY: LOOP_CTL_REMOVE takes a number.
    checked(unsafe { libc::ioctl(raw_fd(&control), raw::LOOP_CTL_REMOVE as Request, number) }, "LOOP_CTL_REMOVE")
}
