//! Loop devices: their nodes, and what only their owner may do to them. Only numbers of ours are ever touched.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use caps::Capability::{CAP_MKNOD, CAP_SYS_ADMIN};
use rustix::fs::OFlags;

use super::PoolPlace;
use super::wire::{Access, Command};
use crate::sys::file::FileId;
use crate::sys::loopdevice::{self, OURS};
use crate::sys::{Errno, Error as SysError, Result as SysResult, capability, file, unless};

/// The tmpfs with the nodes.
#[derive(Debug)]
pub struct Nodes {
    /// The directory.
    pub directory: OwnedFd,
    /// How many were made for a moment.
    looks: AtomicU32,
}

impl Nodes {
    /// Nodes in this directory.
    pub fn new(directory: OwnedFd) -> Self {
        Self { directory, looks: AtomicU32::new(0) }
    }

    /// Opens a device.
    ///
    /// # Errors
    /// `PERM` when the number is not ours; `BUSY` to open for writing what is bound to anything.
    pub fn open(&self, number: u32, access: Access) -> SysResult<OwnedFd> {
        let flags = if access == Access::Write { OFlags::RDWR } else { OFlags::RDONLY };
        if access != Access::Look {
            self.lasting(number)?;
            let device = file::open(&self.directory, &node_name(number), flags)?;
            // What it is bound to is not asked: anybody may have bound it, to what never answers.
            let is_bound = access == Access::Write && loopdevice::length(&device)? > 0;
            return if is_bound { Err(SysError::of(Errno::BUSY)) } else { Ok(device) };
        }
        let name = format!("look{}", self.looks.fetch_add(1, Relaxed));
        make(&self.directory, &name, number)?;
        let device = file::open(&self.directory, &*name, flags);
        // This can fail only if the node is already missing.
        let _ = file::remove(&self.directory, &*name);
        device
    }

    /// The node of a device, to be bound to a target.
    pub fn lasting(&self, number: u32) -> SysResult<OwnedFd> {
        unless(Errno::EXIST, make(&self.directory, &node_name(number), number))?;
        file::open_entry(&self.directory, &node_name(number))
    }

    /// Does something to a device, which may have an image in one of these pools.
    pub fn command(&self, pools: &[PoolPlace], number: u32, command: Command) -> SysResult<()> {
        if command == Command::Forget {
            return unless(Errno::NOENT, file::remove(&self.directory, &*node_name(number)));
        }
        let device = self.open(number, Access::Look)?;
        // Another helper's is bound to an image elsewhere. Where an image is out of reach, nobody can say whose it is.
        let is_in = |image: FileId| pools.iter().any(|pool| pool.device == image.device);
        if loopdevice::image_of(&device).is_ok_and(|image| !is_in(image)) {
            return Err(SysError::of(Errno::BUSY));
        }
        // Taking back is three calls in a row on one device: what it has been set to is changed as soon as it is read.
        capability::with(&[CAP_SYS_ADMIN], || match command {
            // Not as a property of the binding: anybody who can read the device could then replace the file behind it.
            Command::SetReadOnly(read_only) => loopdevice::set_read_only(&device, read_only),
            Command::TakeBack => loopdevice::take_back(&device),
            Command::Refresh => loopdevice::refresh_capacity(&device),
            Command::Forget => Ok(()),
        })
    }
}

/// Makes the node of a device in a directory.
///
/// # Errors
/// `PERM` when the number is not ours.
pub fn make(directory: &OwnedFd, name: &str, number: u32) -> SysResult<()> {
    if !OURS.contains(&number) {
        return Err(SysError::of(Errno::PERM));
    }
    capability::with(&[CAP_MKNOD], || loopdevice::make_node(directory.as_fd(), name, number))
}

/// The name of a device's node.
fn node_name(number: u32) -> String {
    format!("loop{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_device_of_others_is_touched() {
        let nothing = rustix::fs::memfd_create("nothing", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        let nodes = Nodes::new(nothing);
        for number in [0, 7, 0x7_ffff, 0x10_0000, u32::MAX] {
            let refused = Err(SysError::of(Errno::PERM));
            assert_eq!(nodes.open(number, Access::Look).map(drop), refused);
            assert_eq!(nodes.lasting(number).map(drop), refused);
            for command in [Command::SetReadOnly(true), Command::TakeBack, Command::Refresh] {
                assert_eq!(nodes.command(&[], number, command), refused);
            }
        }
    }
}
