//! What earlier helpers have left visible on the host. It is opened while the host is in sight, and read later.

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;

use super::mountinfo::{self, Table};
use crate::sys::{Errno, Result as SysResult, file};

/// The longest mount table that is read, in bytes: about a million mounts.
const MAX_TABLE: usize = 256 << 20;

/// Where the traces are.
#[derive(Debug)]
pub struct Traces {
    /// This also keeps the namespace that it lists alive: in a container nobody else may be in it, so that it would end
    /// when the helper leaves it, and no mounts would be listed any more.
    mounts: OwnedFd,
    devices: OwnedFd,
}

impl Traces {
    /// Opens the mount table of this namespace, which remains readable after the process has left it, and `/sys/block`.
    ///
    /// # Errors
    /// A sentence when either cannot be opened.
    pub fn open() -> Result<Self, String> {
        let open = |path: &str, flags| {
            file::open_at_start(path, OFlags::RDONLY | flags).map_err(|errno| format!("cannot open {path}: {errno}"))
        };
        let mounts = open("/proc/self/mountinfo", OFlags::empty())?;
        Ok(Self { mounts, devices: open("/sys/block", OFlags::DIRECTORY)? })
    }

    /// All mounts, as they are now.
    ///
    /// # Errors
    /// A sentence when the table cannot be read, or a line is not understood: it might be the mount of a volume.
    pub fn mounts(&self) -> Result<Table, String> {
        let table = file::rewind(&self.mounts).and_then(|()| file::read_up_to(&self.mounts, MAX_TABLE));
        mountinfo::parse(&table.map_err(|errno| format!("cannot read the table of mounts: {errno}"))?)
    }

    /// The numbers of the loop devices that exist now.
    ///
    /// # Errors
    /// A sentence when they cannot be listed.
    pub fn loops(&self) -> Result<Vec<u32>, String> {
        let mut numbers = Vec::new();
        let listed: SysResult<()> = file::each_entry(&self.devices, |name| {
            if let Some(number) = name.to_bytes().strip_prefix(b"loop") {
                let number = std::str::from_utf8(number).ok().and_then(|number| number.parse::<u32>().ok());
                numbers.push(number.ok_or(Errno::INVAL)?);
            }
            Ok(())
        });
        listed.map_err(|errno| format!("cannot list the loop devices in /sys/block: {errno}"))?;
        numbers.sort_unstable();
        Ok(numbers)
    }
}
