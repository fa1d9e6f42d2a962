//! The numbers of loop devices. A container may keep a node of a number for ever, so each is a volume's once only; that of a
//! hold, of which nobody gets a node, is used again. What may be bound is a value that is used up, and only this file makes
//! one.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::sys::loopdevice::OURS;
use crate::sys::{Errno, Error as SysError, Result as SysResult, loopcontrol};

/// What makes devices, one number after the other.
#[derive(Debug)]
pub struct Numbers {
    control: OwnedFd,
    /// How many have been used since the machine started. One is used again only after all others.
    used: AtomicU64,
}

/// The number of a device that was just made, or whose hold was taken off: nobody had a node of it.
#[derive(Debug)]
pub struct Unused(u32);

/// The number of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold(u32);

impl Numbers {
    /// Devices are made through this control device, after so many numbers were used.
    pub fn new(control: OwnedFd, used: u64) -> Self {
        Self { control, used: AtomicU64::new(used) }
    }

    /// How many have been used.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Makes a device with the next number.
    pub fn make(&self) -> SysResult<Unused> {
        let size = OURS.end().saturating_sub(*OURS.start());
        for _ in 0..size {
            let step = self.used.fetch_add(1, Relaxed).checked_rem(size.into()).unwrap_or_default();
            let number = OURS.start().saturating_add(u32::try_from(step).unwrap_or_default());
            match loopcontrol::add(&self.control, number) {
                Err(SysError { errno: Errno::EXIST, .. }) => {}
                made => return made.map(|()| Unused(number)),
            }
        }
        Err(SysError::of(Errno::NODEV))
    }

    /// Removes a device.
    ///
    /// # Errors
    /// `BUSY` when it is bound or open.
    pub fn remove(&self, number: u32) -> SysResult<()> {
        loopcontrol::remove(&self.control, number)
    }
}

impl Unused {
    /// The number, to bind the device.
    pub fn number(&self) -> u32 {
        self.0
    }

    /// It is a volume's now, or nobody's: nothing leads back from there.
    pub fn spend(self) -> u32 {
        self.0
    }

    /// It is a hold now.
    pub fn become_hold(self) -> Hold {
        Hold(self.0)
    }
}

impl Hold {
    /// The number, to look at the device or unbind it.
    pub fn number(self) -> u32 {
        self.0
    }

    /// It was unbound, and can be used again.
    pub fn taken_off(self) -> Unused {
        Unused(self.0)
    }
}
