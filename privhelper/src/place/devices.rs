//! Loop devices: their nodes, and what only their owner may do to them. Only numbers of ours are ever touched.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use caps::Capability;
use rustix::fs::OFlags;

use super::wire::{Access, Command};
use crate::sys::capability::raise;
use crate::sys::loopdevice::{self, OURS};
use crate::sys::{Errno, Error as SysError, Result as SysResult, file, or_done};

/// The tmpfs with the nodes.
#[derive(Debug)]
pub struct Nodes {
    directory: OwnedFd,
    /// The devices of the pools' filesystems.
    pools: BTreeSet<(u32, u32)>,
    /// How many were made for a moment.
    looks: AtomicU32,
}

impl Nodes {
    /// Nodes in this directory, for images on these devices.
    pub fn new(directory: OwnedFd, pools: BTreeSet<(u32, u32)>) -> Self {
        Self { directory, pools, looks: AtomicU32::new(0) }
    }

    /// The directory.
    pub fn directory(&self) -> &OwnedFd {
        &self.directory
    }

    /// Opens a device.
    ///
    /// # Errors
    /// `PERM` when the number is not ours; `BUSY` to open for writing what is bound to anything.
    pub fn open(&self, number: u32, access: Access) -> SysResult<OwnedFd> {
        let flags = if access == Access::Write { OFlags::RDWR } else { OFlags::RDONLY };
        if access != Access::Look {
            self.lasting(number)?;
            let device = loopdevice::open_node(self.directory.as_fd(), &node_name(number), flags)?;
            // What it is bound to is not asked: anybody may have bound it, to what never answers.
            let is_bound = access == Access::Write && loopdevice::length(&device)? > 0;
            return if is_bound { Err(SysError::of(Errno::BUSY)) } else { Ok(device) };
        }
        let name = format!("look{}", self.looks.fetch_add(1, Relaxed));
        self.make(&name, number)?;
        let device = loopdevice::open_node(self.directory.as_fd(), &name, flags);
        // This can fail only if the node is already missing.
        let _ = file::remove(&self.directory, &*name);
        device
    }

    /// The node of a device, to be bound to a target.
    pub fn lasting(&self, number: u32) -> SysResult<OwnedFd> {
        or_done(self.make(&node_name(number), number), Errno::EXIST)?;
        file::open_entry(&self.directory, &node_name(number))
    }

    /// Does something to a device.
    pub fn command(&self, number: u32, command: Command) -> SysResult<()> {
        if command == Command::Forget {
            return or_done(file::remove(&self.directory, &*node_name(number)), Errno::NOENT);
        }
        let device = self.open(number, Access::Look)?;
        // Another helper's is bound to an image elsewhere. Where an image is out of reach, nobody can say whose it is.
        if loopdevice::image_of(&device).is_ok_and(|image| !self.pools.contains(&image.device)) {
            return Err(SysError::of(Errno::BUSY));
        }
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        match command {
            // Not as a property of the binding: anybody who can read the device could then replace the file behind it.
            Command::SetReadOnly(read_only) => loopdevice::set_read_only(&device, read_only),
            Command::TakeBack => loopdevice::take_back(&device),
            Command::Refresh => loopdevice::refresh_capacity(&device),
            Command::Forget => Ok(()),
        }
    }

    /// Returns whether a device is bound to nothing: its node shows nothing then.
    pub fn is_vacant(&self, number: u32) -> bool {
        let image = self.open(number, Access::Look).and_then(loopdevice::image_of);
        matches!(image, Err(SysError { errno: Errno::NXIO, .. }))
    }

    fn make(&self, name: &str, number: u32) -> SysResult<()> {
        if !OURS.contains(&number) {
            return Err(SysError::of(Errno::PERM));
        }
        let _raised = raise(Capability::CAP_MKNOD)?;
        loopdevice::make_node(self.directory.as_fd(), name, number)
    }
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
        let nodes = Nodes::new(nothing, BTreeSet::new());
        for number in [0, 7, 0x7_ffff, 0x10_0000, u32::MAX] {
            let refused = Err(SysError::of(Errno::PERM));
            assert_eq!(nodes.open(number, Access::Look).map(drop), refused);
            assert_eq!(nodes.lasting(number).map(drop), refused);
            for command in [Command::SetReadOnly(true), Command::TakeBack, Command::Refresh] {
                assert_eq!(nodes.command(number, command), refused);
            }
            assert!(!nodes.is_vacant(number));
        }
    }
}
