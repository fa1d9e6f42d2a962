//! Loop devices: one for each attached volume, opened by the placer, and a second one on top of it.
//!
//! Anybody who can open a loop device's node controls the device: unbinding it and setting its flags need no
//! capability. But a device that is open is only marked when somebody unbinds it. So each device of a volume backs
//! another device, the hold, of which nobody gets a node: the kernel itself then has it open, whether the helper lives
//! or not, and its number cannot come to stand for another file while a pod still has a node for it.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use bulkhead_protocol::{BlockSize, VolumeId};

use super::{Placer, lock};
use crate::log;
use crate::place::wire::{Access, Command};
use crate::sys::file::{self, FileId};
use crate::sys::loopcontrol::Configuration;
use crate::sys::loopdevice::OURS;
use crate::sys::{Errno, Error as SysError, Result as SysResult, failed_with, loopcontrol};

/// The loop device of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub number: u32,
    /// The number of the device that it backs, so that it stays bound.
    pub hold: u32,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Whether it passes by the page cache.
    pub direct: bool,
}

/// Loop devices, and who opens them.
#[derive(Debug)]
pub struct Loops {
    control: OwnedFd,
    placer: Arc<Placer>,
    /// How many numbers have been used since the machine started. They are used one after the other, and again only after
    /// all others.
    used: AtomicU64,
    stock: Mutex<Stock>,
    /// Notified when there is something to do for the stock.
    changed: Condvar,
    /// The labels of devices that did not answer at start: they may be bound to the images of these volumes.
    silent: BTreeSet<String>,
}

/// Numbers of unbound devices.
#[derive(Debug, Default)]
struct Stock {
    /// How many are to be made in advance. None are as long as no volume is attached.
    wanted: usize,
    /// Made in advance: the kernel takes a while for each.
    ready: VecDeque<u32>,
    /// Holds that were given back. Nobody ever had a node of one, so it can be used again.
    holds: VecDeque<u32>,
    /// To be removed. A container's own node for one of these may still exist, so it is never used again.
    spent: VecDeque<u32>,
    /// How many of the spent ones were there before this helper attached anything, at most: nobody can add to these.
    found: usize,
}

/// How many numbers to try before giving up: other programs bind unbound devices too.
const TRIES: usize = 64;
/// How many devices are made in advance.
const READY: usize = 4;
/// How many spent devices, beyond those that the start found, may wait to be removed before nothing more is attached: the
/// kernel takes long to remove one, and each takes memory.
const MOST_SPENT: usize = 128;
/// How many threads keep the stock.
pub const KEEPERS: usize = 4;
/// The length of a device's label in bytes, as the kernel keeps it.
const MAX_LABEL: usize = 63;

/// The label of a volume's device, and of its hold.
pub fn label(volume: &VolumeId) -> &str {
    volume.as_str().get(..MAX_LABEL).unwrap_or(volume.as_str())
}

impl Loops {
    /// Loop devices managed through this control device, and opened by the placer, after so many numbers were used. Devices
    /// with the labels in `silent` did not answer.
    pub fn new(control: OwnedFd, placer: Arc<Placer>, used: u64, silent: BTreeSet<String>) -> Self {
        let used = AtomicU64::new(used);
        Self { control, placer, used, stock: Mutex::default(), changed: Condvar::new(), silent }
    }

    /// Returns how many numbers have been used.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Opens an existing device to inspect it.
    pub fn open_existing(&self, number: u32) -> SysResult<OwnedFd> {
        self.placer.open(number, Access::Look)
    }

    /// Takes over a device that is bound to a volume's image, with a new hold.
    pub fn adopt(&self, volume: &VolumeId, number: u32) -> SysResult<Device> {
        let device = self.placer.open(number, Access::Read)?;
        let read_only = loopcontrol::is_read_only(&device)?;
        let direct = loopcontrol::binding(&device)?.direct;
        let hold = self.hold(volume, &device)?;
        Ok(Device { number, hold, read_only, direct })
    }

    /// Unbinds what was found on a device, and never uses its number again: somebody may have a node of it.
    pub fn give_up(&self, hold: u32) {
        let _ = self.open_existing(hold).and_then(loopcontrol::unbind);
        self.discard(hold);
    }

    /// Gives up a number for ever. Its device is unbound, and removed in the background.
    pub fn discard(&self, number: u32) {
        // What fails here leaves a node that nobody uses.
        let _ = self.placer.command(number, Command::Forget);
        let mut stock = lock(&self.stock);
        stock.spent.push_back(number);
        if stock.wanted == 0 {
            stock.found = stock.spent.len();
        }
        self.changed.notify_one();
    }

    /// Makes devices in advance and removes spent ones, for as long as the process lives: the kernel takes long for both,
    /// and this way no operation waits for it. Several threads do so at a time.
    pub fn keep_stock(&self) {
        loop {
            let is_idle = |stock: &mut Stock| stock.ready.len() >= stock.wanted && stock.spent.is_empty();
            let stock = self.changed.wait_while(lock(&self.stock), is_idle);
            let mut stock = stock.unwrap_or_else(PoisonError::into_inner);
            let is_full = stock.ready.len() >= stock.wanted;
            let is_first = is_full || stock.spent.len().saturating_sub(stock.found) > MOST_SPENT / 2;
            let spent = if is_first { stock.spent.pop_front() } else { None };
            stock.found = stock.found.min(stock.spent.len());
            drop(stock);
            match spent {
                Some(number) => self.remove(number),
                None => match self.make() {
                    Ok(number) => lock(&self.stock).ready.push_back(number),
                    Err(error) => {
                        log::warning!("cannot make a loop device in advance error={error}");
                        std::thread::sleep(Duration::from_secs(1));
                    }
                },
            }
        }
    }

    fn remove(&self, number: u32) {
        // A device manager may have it open for a moment; or another program has taken it by now, and keeps it.
        let is_busy = || failed_with(&loopcontrol::remove(&self.control, number), Errno::BUSY);
        (0..20).take_while(|_| is_busy()).for_each(|_| std::thread::sleep(Duration::from_millis(50)));
    }

    /// Attaches an image, which is open for writing, to a device that is not in use.
    pub fn attach(&self, volume: &VolumeId, image: impl AsFd, block: BlockSize, read_only: bool) -> SysResult<Device> {
        {
            let mut stock = lock(&self.stock);
            if self.silent.contains(label(volume)) || stock.spent.len().saturating_sub(stock.found) > MOST_SPENT {
                return Err(SysError::of(Errno::BUSY));
            }
            stock.wanted = READY;
        }
        let how = Configuration { label: label(volume), block_size: block.get(), direct: true, read_only: false };
        let (number, bound) = self.bind(&image, how, |stock| stock.ready.pop_front())?;
        self.changed.notify_one();
        let held = || -> SysResult<_> {
            // Open for reading only: while a device is open for writing, some kernels refuse to mount what is on it.
            let device = self.placer.open(number, Access::Read)?;
            self.placer.command(number, Command::SetReadOnly(read_only))?;
            // The hold comes last: nothing that fails takes it off again.
            let direct = loopcontrol::binding(&device)?.direct;
            Ok((self.hold(volume, &device)?, direct))
        };
        let (hold, direct) = held().inspect_err(|_| {
            // Nobody knows the device yet. If this fails as well, the next start finds it.
            let _ = loopcontrol::unbind(&bound);
            self.discard(number);
        })?;
        Ok(Device { number, hold, read_only, direct })
    }

    /// Binds a device to another on top of it, so that the kernel keeps that one open. The hold's label says which volume's
    /// it is: nobody else can change that one.
    fn hold(&self, volume: &VolumeId, device: &OwnedFd) -> SysResult<u32> {
        let how = Configuration { label: label(volume), block_size: 0, direct: false, read_only: true };
        let (hold, _) = self.bind(device, how, |stock| stock.holds.pop_front().or_else(|| stock.ready.pop_front()))?;
        // Nobody gets a node of it.
        let _ = self.placer.command(hold, Command::Forget);
        Ok(hold)
    }

    /// Binds a file to a device that is not in use, and returns its number and the device, open.
    fn bind(
        &self,
        file: impl AsFd,
        how: Configuration<'_>,
        take: impl Fn(&mut Stock) -> Option<u32>,
    ) -> SysResult<(u32, OwnedFd)> {
        for _ in 0..TRIES {
            let ready = take(&mut lock(&self.stock));
            let number = ready.map_or_else(|| self.make(), Ok)?;
            let access = if how.read_only { Access::Read } else { Access::Write };
            let bound = self.placer.open(number, access).and_then(|device| {
                // A backing file may not support direct I/O, or not with this block size.
                let configured = match loopcontrol::configure(&device, &file, how) {
                    Err(SysError { errno: Errno::INVAL, .. }) if how.direct => {
                        loopcontrol::configure(&device, &file, Configuration { direct: false, ..how })
                    }
                    configured => configured,
                };
                configured.map(|()| device)
            });
            match bound {
                Ok(device) => return Ok((number, device)),
                Err(error) => {
                    self.discard(number);
                    // Otherwise it is being removed, or somebody has it open or uses it. It is removed when that is over.
                    if !matches!(error.errno, Errno::NXIO | Errno::BUSY) {
                        return Err(error);
                    }
                }
            }
        }
        Err(SysError::of(Errno::NODEV))
    }

    /// Makes a device with the next number.
    fn make(&self) -> SysResult<u32> {
        let size = OURS.end().saturating_sub(*OURS.start());
        for _ in 0..size {
            let step = self.used.fetch_add(1, Relaxed).checked_rem(size.into()).unwrap_or_default();
            let number = OURS.start().saturating_add(u32::try_from(step).unwrap_or_default());
            match loopcontrol::add(&self.control, number) {
                Err(SysError { errno: Errno::EXIST, .. }) => {}
                made => return made.map(|()| number),
            }
        }
        Err(SysError::of(Errno::NODEV))
    }

    /// Detaches a device that is bound to an image. Returns the device as it is now if somebody else has it open, so that
    /// it stays attached.
    pub fn detach(&self, volume: &VolumeId, device: Device, image: FileId) -> SysResult<Option<Device>> {
        let opened = match self.placer.open(device.number, Access::Read) {
            Err(SysError { errno: Errno::NXIO, .. }) => return Ok(None),
            opened => opened?,
        };
        let held = self.holds(device)?;
        match loopcontrol::binding(&opened) {
            // Another program has bound it to something else, since it was unbound.
            Ok(binding) if binding.image != image && !held => return Ok(None),
            Err(error) if error.errno != Errno::NXIO && !held => return Err(error),
            _ => {}
        }
        // What was written to the device and not synced is in the kernel's memory. It would be lost: the hold has kept the
        // last close by anybody else from writing it out, and a device that is being unbound takes no more writes.
        if let Err(error) = file::sync(&opened) {
            log::warning!("what was last written to a device may be lost volume={volume} error={error}");
        }
        if held {
            self.release(device.hold)?;
        }
        // Device managers briefly open every device when it changes.
        for pause in [0, 1, 2, 4, 8, 16, 32, 12] {
            std::thread::sleep(Duration::from_millis(pause));
            match loopcontrol::unbind(&opened) {
                Ok(()) | Err(SysError { errno: Errno::NXIO, .. }) => {}
                Err(error) => return Err(error),
            }
            // A device that is still bound may return another error, for example because its image is on a dead
            // filesystem.
            if failed_with(&loopcontrol::binding(&opened), Errno::NXIO) {
                // Since Linux 6.10 this close is what unbinds it.
                drop(opened);
                self.discard(device.number);
                return Ok(None);
            }
        }
        // It must stay bound when whoever has it open lets go.
        let hold = self.hold(volume, &opened)?;
        // Whatever cannot be undone now is undone before the device is handed out again. The hold must not be forgotten.
        let _ = self.placer.command(device.number, Command::TakeBack);
        Ok(Some(Device { hold, ..device }))
    }

    /// Returns whether the hold on a device is in place. It proves that the device was never unbound.
    fn holds(&self, device: Device) -> SysResult<bool> {
        match self.open_existing(device.hold).and_then(loopcontrol::binding) {
            Err(SysError { errno: Errno::NXIO, .. }) => Ok(false),
            hold => hold.map(|hold| hold.on == Some(device.number)),
        }
    }

    /// Unbinds a hold that this helper has made.
    fn release(&self, hold: u32) -> SysResult<()> {
        // Since Linux 6.10 the close at the end of this is what unbinds it.
        loopcontrol::unbind(self.open_existing(hold)?)?;
        if lock(&self.stock).holds.len() < READY {
            lock(&self.stock).holds.push_back(hold);
        } else {
            self.discard(hold);
        }
        Ok(())
    }

    /// Undoes what others may have done to an attached device, so that it stays bound. Returns the device with the hold
    /// that it has now, or `None` if it is no longer bound to the image.
    pub fn revive(&self, volume: &VolumeId, device: Device, image: FileId) -> SysResult<Option<Device>> {
        let opened = match self.placer.open(device.number, Access::Read) {
            Err(SysError { errno: Errno::NXIO, .. }) => return Ok(None),
            opened => opened?,
        };
        let binding = match loopcontrol::binding(&opened) {
            Err(SysError { errno: Errno::NXIO, .. }) => return Ok(None),
            Ok(binding) if binding.image != image => return Ok(None),
            binding => binding?,
        };
        if binding.altered {
            self.placer.command(device.number, Command::TakeBack)?;
        }
        let hold = if self.holds(device)? { device.hold } else { self.hold(volume, &opened)? };
        Ok(Some(Device { hold, ..device }))
    }

    /// Makes a device take on its image's new length.
    ///
    /// # Errors
    /// `NXIO` when it is not bound to the image any more.
    pub fn refresh(&self, number: u32, image: FileId) -> SysResult<()> {
        if loopcontrol::binding(self.open_existing(number)?)?.image != image {
            return Err(SysError::of(Errno::NXIO));
        }
        self.placer.command(number, Command::Refresh)
    }
}
