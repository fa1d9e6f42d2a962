//! What is done to a mounted filesystem of a tenant's as a whole, by a child of the mounter's: it takes as long as whoever has
//! written to that likes. The placer has it begun, and does not wait; an operation of the keeper's waits for a while.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::Duration;

use bulkhead_protocol::PoolName;

use super::{Placer, lock};
use crate::mounter::Work;
use crate::place::wire::{OnFilesystem, answered};
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, packet};

/// How long an operation waits for work on a filesystem. The helper ends in order within five seconds.
const PATIENCE: Duration = Duration::from_secs(4);

/// The work that takes long, by the number of the device: each has a line of its own, over which it is answered.
#[derive(Debug, Default)]
pub struct Works(Mutex<BTreeMap<u32, (Work, OwnedFd)>>);

impl Works {
    /// Returns whether something that was to be done to the filesystem on a device takes long.
    fn is_awaited(&self, number: u32) -> bool {
        lock(&self.0).contains_key(&number)
    }

    /// Waits for what was to be done to the filesystem on a device and took long, and returns what it was, and the answer.
    fn finish(&self, number: u32) -> Option<(Work, SysResult<()>)> {
        let (work, line) = lock(&self.0).remove(&number)?;
        Some((work, self.wait(number, work, line)))
    }

    /// Waits for the answer over a line. `INPROGRESS` if it takes long, or nobody is left to give one.
    fn wait(&self, number: u32, work: Work, line: OwnedFd) -> SysResult<()> {
        packet::set_timeout(&line, packet::Timeout::Recv, Some(PATIENCE))?;
        let mut answer = [0; 4];
        loop {
            return match packet::receive(&line, &mut answer) {
                Err(SysError { errno: Errno::INTR, .. }) => continue,
                Err(SysError { errno: Errno::AGAIN, .. }) => {
                    lock(&self.0).insert(number, (work, line));
                    Err(Errno::INPROGRESS).by("the mounter")
                }
                received => answered(received, answer),
            };
        }
    }
}

impl Placer {
    /// Does something about the filesystem on a loop device.
    ///
    /// # Errors
    /// The kernel's, if that fails; `INPROGRESS` when it takes longer than four seconds: it goes on, and the next call waits
    /// for it first.
    pub fn on_filesystem(&self, pool: &PoolName, number: u32, what: OnFilesystem) -> SysResult<()> {
        match what {
            OnFilesystem::Look | OnFilesystem::Prepare(_) => self.begin(pool, number, what).map(drop),
            OnFilesystem::Mount(_) | OnFilesystem::Work(_) => self.work(pool, number, what),
            OnFilesystem::Release => self.release(pool, number),
        }
    }

    /// Thaws a filesystem that was left frozen, unless whoever froze it has thawed it by now: then its pod may have frozen
    /// it.
    pub fn thaw(&self, pool: &PoolName, number: u32) -> SysResult<()> {
        match self.works.finish(number) {
            Some((Work::Settle, Ok(()))) => Ok(()),
            Some((Work::Settle, Err(error))) if error.errno != Errno::INPROGRESS => Ok(()),
            _ => self.on_filesystem(pool, number, OnFilesystem::Work(Work::Thaw)),
        }
    }

    /// Unmounts the filesystem, if it is kept.
    ///
    /// # Errors
    /// `BUSY` when it is still in use.
    fn release(&self, pool: &PoolName, number: u32) -> SysResult<()> {
        // There may be much to write, and unmounting waits for all of it. One that has shut down has nothing to write.
        if let Err(error) = self.on_filesystem(pool, number, OnFilesystem::Work(Work::Sync))
            && error.errno == Errno::INPROGRESS
        {
            return Err(error);
        }
        lock(&self.works.0).remove(&number);
        self.begin(pool, number, OnFilesystem::Release).map(drop)
    }

    /// Begins it once what is in progress is over, and waits for it. What was done before has nothing to say about now.
    fn work(&self, pool: &PoolName, number: u32, what: OnFilesystem) -> SysResult<()> {
        let _ = self.works.finish(number);
        if self.works.is_awaited(number) {
            return Err(Errno::INPROGRESS).by("the mounter");
        }
        let line = self.begin(pool, number, what.clone())?;
        let (Some(line), OnFilesystem::Work(work)) = (line, what) else { return Ok(()) };
        self.works.wait(number, work, line)
    }
}
