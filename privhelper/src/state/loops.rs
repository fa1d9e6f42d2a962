//! Loop devices: one for each attached volume, reached through nodes in the helper's own tmpfs.
//!
//! Anybody who can open a loop device's node controls the device: unbinding it and setting its flags need no
//! capability. Each device is therefore held open while a volume is attached to it. When somebody asks to unbind it,
//! the kernel then merely marks it, and its number cannot come to stand for another volume while a pod still has a node
//! for it.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use bulkhead_protocol::{BlockSize, VolumeId};
use caps::Capability;
use rustix::fs::OFlags;

use super::lock;
use crate::sys::capability::raise;
use crate::sys::file::{self, FileId};
use crate::sys::loopdevice;
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
    /// The devices of attached volumes. Only the holder of a volume's lock takes a copy of its descriptor, so the last
    /// close is the one in [`Self::detach`].
    held: Mutex<BTreeMap<u32, Arc<OwnedFd>>>,
    idle: Mutex<Idle>,
    /// Notified when there is a device to remove.
    surplus: Condvar,
}

/// Numbers of devices that were unbound when last seen.
#[derive(Debug, Default)]
struct Idle {
    /// One that is given back goes to the end and is the last to be used again, because a container's own node for it
    /// may still exist.
    kept: VecDeque<u32>,
    /// To be removed, and until then used when there are no others.
    surplus: VecDeque<u32>,
}

/// How many numbers to try before giving up: other programs bind loop devices too.
const TRIES: usize = 64;

/// How many idle devices are kept. Any given back beyond these is removed.
const MOST_IDLE: usize = 128;

impl Loops {
    /// Loop devices managed through this control device, with their nodes in this directory.
    pub fn new(control: OwnedFd, nodes: OwnedFd) -> Self {
        Self { control, nodes, held: Mutex::default(), idle: Mutex::default(), surplus: Condvar::new() }
    }

    /// Opens an existing device to inspect it.
    pub fn open_existing(&self, number: u32) -> SysResult<OwnedFd> {
        let device = self.open(number, OFlags::RDONLY);
        self.remove_node(number);
        device
    }

    /// Takes over a device that is bound to a volume's image.
    pub fn adopt(&self, number: u32, device: OwnedFd) -> SysResult<Device> {
        self.make_node(number)?;
        let read_only = loopdevice::is_read_only(&device)?;
        lock(&self.held).insert(number, Arc::new(device));
        Ok(Device { number, read_only })
    }

    /// Notes that a device is unbound, and that nobody can have a node for it. It is kept: it may be another program's,
    /// or one that a killed helper had yet to remove.
    pub fn note_idle(&self, number: u32) {
        lock(&self.idle).kept.push_back(number);
    }

    /// Removes devices that are given back beyond those that are kept, for as long as the process lives. The kernel
    /// takes milliseconds for each; this way no operation waits for that.
    pub fn remove_surplus(&self) {
        loop {
            let idle = self.surplus.wait_while(lock(&self.idle), |idle| idle.surplus.is_empty());
            let next = idle.unwrap_or_else(PoisonError::into_inner).surplus.pop_front();
            // A device manager may have it open for a moment; or another program has taken it by now, and keeps it.
            let is_busy = || next.is_some_and(|number| loopdevice::remove(&self.control, number) == Err(Errno::BUSY));
            (0..20).take_while(|_| is_busy()).for_each(|_| std::thread::sleep(Duration::from_millis(50)));
        }
    }

    /// Attaches an image, which is open for writing, to a device that is not in use.
    pub fn attach(
        &self,
        volume: &VolumeId,
        image: impl AsFd,
        block_size: BlockSize,
        read_only: bool,
    ) -> SysResult<Device> {
        for _ in 0..TRIES {
            let idle = lock(&self.idle).take();
            // Not just any unbound device: a container may have a node for one whose volume was detached by others.
            let number = idle.map_or_else(|| loopdevice::add(&self.control), Ok)?;
            match self.bind(number, volume, &image, block_size, read_only) {
                Ok(device) => {
                    lock(&self.held).insert(number, Arc::new(device));
                    return Ok(Device { number, read_only });
                }
                // It is being removed, or another program uses it.
                Err(Errno::NXIO | Errno::BUSY) => self.remove_node(number),
                Err(errno) => {
                    self.remove_node(number);
                    lock(&self.idle).kept.push_back(number);
                    return Err(errno);
                }
            }
        }
        Err(Errno::NODEV)
    }

    /// Binds an image to a device, and returns the descriptor that holds it.
    fn bind(
        &self,
        number: u32,
        volume: &VolumeId,
        image: impl AsFd,
        block_size: BlockSize,
        read_only: bool,
    ) -> SysResult<OwnedFd> {
        let device = self.open(number, OFlags::RDWR)?;
        let configure = |direct| loopdevice::configure(&device, &image, volume.as_str(), block_size.get(), direct);
        // A backing file may not support direct I/O, or not with this block size.
        configure(true).or_else(|errno| if errno == Errno::INVAL { configure(false) } else { Err(errno) })?;
        // Held open for reading only: while a device is open for writing, some kernels refuse to mount what is on it.
        let held = self.open(number, OFlags::RDONLY).and_then(|held| {
            let _raised = raise(Capability::CAP_SYS_ADMIN)?;
            // Not as a property of the binding: anybody who can read the device could then replace the file behind it.
            loopdevice::set_read_only(&held, read_only)?;
            Ok(held)
        });
        held.inspect_err(|_| {
            // Nobody knows the device yet. If this fails as well, the next start finds it.
            let _ = loopdevice::unbind(&device);
        })
    }

    /// Detaches a device.
    ///
    /// # Errors
    /// `BUSY` while somebody else has it open.
    pub fn detach(&self, device: Device) -> SysResult<()> {
        let Some(held) = self.held(device.number) else { return Ok(()) };
        // Device managers briefly open every device when it changes.
        for pause in [0, 1, 2, 4, 8, 16, 32, 12] {
            std::thread::sleep(Duration::from_millis(pause));
            match loopdevice::unbind(&held) {
                Ok(()) | Err(Errno::NXIO) => {}
                Err(errno) => return Err(errno),
            }
            // A device that is still bound may return another error, for example because its image is on a dead
            // filesystem.
            if loopdevice::binding(&held) == Err(Errno::NXIO) {
                return self.give_back(device, held);
            }
        }
        Err(Errno::BUSY)
    }

    /// Lets go of a device that is unbound, and notes it as idle.
    fn give_back(&self, device: Device, held: Arc<OwnedFd>) -> SysResult<()> {
        if device.read_only {
            // It would stay read-only for the next user, which may be another program.
            let _raised = raise(Capability::CAP_SYS_ADMIN)?;
            loopdevice::set_read_only(&held, false)?;
        }
        lock(&self.held).remove(&device.number);
        // Since Linux 6.10 this close is what unbinds the device: only now can the number be used again.
        drop(held);
        self.remove_node(device.number);
        let mut idle = lock(&self.idle);
        if idle.kept.len() < MOST_IDLE {
            idle.kept.push_back(device.number);
        } else {
            idle.surplus.push_back(device.number);
            self.surplus.notify_one();
        }
        Ok(())
    }

    /// Undoes what others may have done to an attached device, so that it stays bound. Returns whether it is still
    /// bound to the image.
    pub fn revive(&self, number: u32, image: FileId) -> SysResult<bool> {
        let Some(held) = self.held(number) else { return Ok(false) };
        let binding = match loopdevice::binding(&held) {
            Err(Errno::NXIO) => return Ok(false),
            binding => binding?,
        };
        if binding.altered {
            let _raised = raise(Capability::CAP_SYS_ADMIN)?;
            loopdevice::take_back(&held)?;
        }
        Ok(binding.image == image)
    }

    /// Makes a device take on its image's new length.
    pub fn refresh(&self, number: u32) -> SysResult<()> {
        let held = self.held(number).ok_or(Errno::NXIO)?;
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        loopdevice::refresh_capacity(held)
    }

    /// The node of a device, to be bound to a target.
    pub fn node(&self, number: u32) -> SysResult<OwnedFd> {
        file::open_entry(&self.nodes, &node_name(number))
    }

    fn held(&self, number: u32) -> Option<Arc<OwnedFd>> {
        lock(&self.held).get(&number).cloned()
    }

    fn open(&self, number: u32, access: OFlags) -> SysResult<OwnedFd> {
        self.make_node(number)?;
        loopdevice::open_node(self.nodes.as_fd(), &node_name(number), access)
    }

    fn make_node(&self, number: u32) -> SysResult<()> {
        let _raised = raise(Capability::CAP_MKNOD)?;
        match loopdevice::make_node(self.nodes.as_fd(), &node_name(number), number) {
            Err(Errno::EXIST) => Ok(()),
            made => made,
        }
    }

    fn remove_node(&self, number: u32) {
        // This can fail only if the node is already missing.
        let _ = file::remove(&self.nodes, node_name(number));
    }
}

impl Idle {
    fn take(&mut self) -> Option<u32> {
        self.kept.pop_front().or_else(|| self.surplus.pop_front())
    }
}

/// The name of a device's node.
pub fn node_name(number: u32) -> String {
    format!("loop{number}")
}
