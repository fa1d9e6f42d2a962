//! Loop devices: one for each attached volume, found by what it backs, reached by nodes in the helper's own tmpfs.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use bulkhead_protocol::{BlockSize, VolumeId};
use caps::Capability;

use super::lock;
use crate::sys::capability::raise;
use crate::sys::file::{self, FileId};
use crate::sys::loopdevice::{self, Binding};
use crate::sys::{Errno, Result as SysResult};

/// The loop device of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub number: u32,
    /// Whether it refuses writes.
    pub read_only: bool,
}

/// Loop devices, and where their nodes are.
#[derive(Debug)]
pub struct Loops {
    control: OwnedFd,
    nodes: OwnedFd,
    /// Numbers that were unbound when last seen. One that is given back goes to the end and is the last to be used again,
    /// because a container's own node for it may still exist.
    idle: Mutex<VecDeque<u32>>,
}

/// How many numbers to try before giving up: other programs bind loop devices too.
const TRIES: usize = 64;

impl Loops {
    /// Loop devices of this control device, with their nodes in this directory.
    pub fn new(control: OwnedFd, nodes: OwnedFd) -> Self {
        Self { control, nodes, idle: Mutex::default() }
    }

    /// What an existing device is bound to; makes its node. An unbound device is noted as idle.
    pub fn examine(&self, number: u32) -> SysResult<Option<Binding>> {
        let device = self.open(number)?;
        match loopdevice::binding(&device) {
            Ok(binding) => Ok(Some(binding)),
            Err(Errno::NXIO) => {
                self.remove_node(number);
                lock(&self.idle).push_back(number);
                Ok(None)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Removes the node of a device that is not ours.
    pub fn remove_node(&self, number: u32) {
        // The only failure is that it is missing already.
        let _ = file::remove(&self.nodes, node_name(number));
    }

    /// Attaches an image to a device that is not in use.
    pub fn attach(
        &self,
        volume: &VolumeId,
        image: impl AsFd,
        block_size: BlockSize,
        read_only: bool,
    ) -> SysResult<Device> {
        for _ in 0..TRIES {
            let idle = lock(&self.idle).pop_front();
            let number = idle.map_or_else(|| loopdevice::any_free(&self.control), Ok)?;
            let device = match self.open(number) {
                // It is being removed.
                Err(Errno::NXIO) => continue,
                device => device?,
            };
            let configure =
                |direct| loopdevice::configure(&device, &image, volume.as_str(), block_size.get(), read_only, direct);
            // A backing file may not support direct I/O, or not with this block size.
            match configure(true).or_else(|errno| if errno == Errno::INVAL { configure(false) } else { Err(errno) }) {
                Ok(()) => return Ok(Device { number, read_only }),
                Err(Errno::BUSY) => self.remove_node(number),
                Err(errno) => {
                    self.remove_node(number);
                    lock(&self.idle).push_back(number);
                    return Err(errno);
                }
            }
        }
        Err(Errno::NODEV)
    }

    /// Detaches a device.
    ///
    /// # Errors
    /// `BUSY` while somebody else has it open: it is detached when they close it.
    pub fn detach(&self, number: u32, image: FileId) -> SysResult<()> {
        let device = self.open(number)?;
        let mut bound = is_bound_to(&device, image)?;
        // Device managers open every device for a moment when it changes. While they do, unbinding only marks it, and
        // the last close would be ours: so it is asked for again.
        for pause in [0, 5, 20, 50] {
            if !bound {
                break;
            }
            std::thread::sleep(Duration::from_millis(pause));
            loopdevice::unbind(&device)?;
            bound = is_bound_to(&device, image)?;
        }
        // Since Linux 6.10 it is this close that unbinds: only now can the number be taken again.
        drop(device);
        if bound {
            return Err(Errno::BUSY);
        }
        self.remove_node(number);
        lock(&self.idle).push_back(number);
        Ok(())
    }

    /// Whether a device still backs an image.
    pub fn is_attached(&self, number: u32, image: FileId) -> SysResult<bool> {
        is_bound_to(self.open(number)?, image)
    }

    /// The same; a device that would be detached at its last close is kept.
    pub fn revive(&self, number: u32, image: FileId) -> SysResult<bool> {
        let device = self.open(number)?;
        let bound = is_bound_to(&device, image)?;
        if bound && loopdevice::binding(&device)?.autoclear {
            loopdevice::clear_autoclear(&device)?;
        }
        Ok(bound)
    }

    /// Makes a device take on its image's new length.
    pub fn refresh(&self, number: u32) -> SysResult<()> {
        loopdevice::refresh_capacity(self.open(number)?)
    }

    /// The node of a device, to be bound to a target.
    pub fn node(&self, number: u32) -> SysResult<OwnedFd> {
        file::open_entry(&self.nodes, &node_name(number))
    }

    fn open(&self, number: u32) -> SysResult<OwnedFd> {
        let name = node_name(number);
        {
            let _raised = raise(Capability::CAP_MKNOD)?;
            match loopdevice::make_node(self.nodes.as_fd(), &name, number) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        loopdevice::open_node(self.nodes.as_fd(), &name)
    }
}

fn is_bound_to(device: impl AsFd, image: FileId) -> SysResult<bool> {
    match loopdevice::binding(device) {
        Ok(binding) => Ok(binding.image == image),
        Err(Errno::NXIO) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The name of a device's node.
pub fn node_name(number: u32) -> String {
    format!("loop{number}")
}
