//! Loop devices: one for each attached volume, opened by the placer, and a second one on top of it.
//!
//! Anybody who can open a loop device's node controls the device: unbinding it and setting its flags need no
//! capability. But a device that is open is only marked when somebody unbinds it. So each device of a volume backs
//! another device, the hold, of which nobody gets a node: the kernel itself then has it open, whether the helper lives
//! or not, and its number cannot come to stand for another file while a pod still has a node for it.

mod numbers;

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use bulkhead_protocol::{BlockSize, VolumeId};

use self::numbers::{Hold, Numbers, Unused};
use super::{Placer, lock};
use crate::log;
use crate::place::wire::{Access, Command};
use crate::sys::file::{self, FileId};
use crate::sys::loopcontrol::Configuration;
use crate::sys::{Errno, Error as SysError, Result as SysResult, failed_with, loopcontrol};

/// The loop device of a volume, which has been given a hold: only [`Loops`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    number: u32,
    /// The device that it backs, so that it stays bound.
    hold: Hold,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Whether it passes by the page cache.
    pub direct: bool,
}

/// A device of which [`Loops`] has just seen that it is bound to its volume's image, and that its hold is in place. Who
/// [notes](super::Served::lend) its number as well may hand out a node of it.
#[derive(Debug)]
pub struct Attached(Device);

/// Loop devices, and who opens them.
#[derive(Debug)]
pub struct Loops {
    numbers: Numbers,
    placer: Arc<Placer>,
    stock: Mutex<Stock>,
    /// Notified when there is something to do for the stock.
    changed: Condvar,
    /// The labels of devices that did not answer at start: they may be bound to the images of these volumes.
    silent: BTreeSet<String>,
}

/// Unbound devices.
#[derive(Debug, Default)]
struct Stock {
    /// How many are to be made in advance. None are as long as no volume is attached.
    wanted: usize,
    /// Made in advance: the kernel takes a while for each.
    ready: VecDeque<Unused>,
    /// Holds that were given back.
    holds: VecDeque<Unused>,
    /// To be removed.
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

impl Device {
    /// Its number.
    pub fn number(self) -> u32 {
        self.number
    }
}

impl Attached {
    /// The device.
    pub fn device(&self) -> Device {
        self.0
    }
}

impl Loops {
    /// Loop devices managed through this control device, and opened by the placer, after so many numbers were used. Devices
    /// with the labels in `silent` did not answer.
    pub fn new(control: OwnedFd, placer: Arc<Placer>, used: u64, silent: BTreeSet<String>) -> Self {
        let numbers = Numbers::new(control, used);
        Self { numbers, placer, stock: Mutex::default(), changed: Condvar::new(), silent }
    }

    /// Returns how many numbers have been used.
    pub fn used(&self) -> u64 {
        self.numbers.used()
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
                None => match self.numbers.make() {
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
        let is_busy = || failed_with(&self.numbers.remove(number), Errno::BUSY);
        (0..20).take_while(|_| is_busy()).for_each(|_| std::thread::sleep(Duration::from_millis(50)));
    }

    /// Returns whether a device of a volume's did not answer at start: nothing is known of it.
    pub fn is_silent(&self, volume: &VolumeId) -> bool {
        self.silent.contains(label(volume))
    }

    /// Attaches an image, which is open for writing, to a device that is not in use.
    pub fn attach(
        &self,
        volume: &VolumeId,
        image: impl AsFd,
        block: BlockSize,
        read_only: bool,
    ) -> SysResult<Attached> {
        {
            let mut stock = lock(&self.stock);
            if self.is_silent(volume) || stock.spent.len().saturating_sub(stock.found) > MOST_SPENT {
                return Err(SysError::of(Errno::BUSY));
            }
            stock.wanted = READY;
        }
        let how = Configuration { label: label(volume), block_size: block.get(), direct: true, read_only: false };
        let (number, bound) = self.bind(&image, how, |stock| stock.ready.pop_front())?;
        let number = number.spend();
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
        Ok(Attached(Device { number, hold, read_only, direct }))
    }

    /// Binds a device to another on top of it, so that the kernel keeps that one open. The hold's label says which volume's
    /// it is: nobody else can change that one.
    fn hold(&self, volume: &VolumeId, device: &OwnedFd) -> SysResult<Hold> {
        let how = Configuration { label: label(volume), block_size: 0, direct: false, read_only: true };
        let (hold, _) = self.bind(device, how, |stock| stock.holds.pop_front().or_else(|| stock.ready.pop_front()))?;
        // Nobody gets a node of it.
        let _ = self.placer.command(hold.number(), Command::Forget);
        Ok(hold.become_hold())
    }

    /// Binds a file to a device that is not in use, and returns its number and the device, open.
    fn bind(
        &self,
        file: impl AsFd,
        how: Configuration<'_>,
        take: impl Fn(&mut Stock) -> Option<Unused>,
    ) -> SysResult<(Unused, OwnedFd)> {
        for _ in 0..TRIES {
            let ready = take(&mut lock(&self.stock));
            let number = ready.map_or_else(|| self.numbers.make(), Ok)?;
            let access = if how.read_only { Access::Read } else { Access::Write };
            let bound = self.placer.open(number.number(), access).and_then(|device| {
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
                    self.discard(number.spend());
                    // Otherwise it is being removed, or somebody has it open or uses it. It is removed when that is over.
                    if !matches!(error.errno, Errno::NXIO | Errno::BUSY) {
                        return Err(error);
                    }
                }
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
        match self.open_existing(device.hold.number()).and_then(loopcontrol::binding) {
            Err(SysError { errno: Errno::NXIO, .. }) => Ok(false),
            hold => hold.map(|hold| hold.on == Some(device.number)),
        }
    }

    /// Unbinds a hold that this helper has made.
    fn release(&self, hold: Hold) -> SysResult<()> {
        // Since Linux 6.10 the close at the end of this is what unbinds it.
        loopcontrol::unbind(self.open_existing(hold.number())?)?;
        if lock(&self.stock).holds.len() < READY {
            lock(&self.stock).holds.push_back(hold.taken_off());
        } else {
            self.discard(hold.number());
        }
        Ok(())
    }

    /// Undoes what others may have done to an attached device, so that it stays bound. Returns the device with the hold
    /// that it has now, or `None` if it is no longer bound to the image.
    pub fn revive(&self, volume: &VolumeId, device: Device, image: FileId) -> SysResult<Option<Attached>> {
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
        Ok(Some(Attached(Device { hold, ..device })))
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
