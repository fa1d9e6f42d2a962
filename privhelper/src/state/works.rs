//! What is done to a mounted filesystem of a tenant's as a whole, by a child of the mounter's: it takes as long as whoever has
//! written to that likes. The placer has it begun, and does not wait; an operation of the keeper's waits for a while.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bulkhead_protocol::PoolName;

use super::{Placer, lock};
use crate::mounter::{FROZEN, Work};
use crate::place::wire::{OnFilesystem, answered};
use crate::sys::packet::Received;
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, packet};

/// How long an operation waits for work on a filesystem. The helper ends in order within five seconds.
pub const PATIENCE: Duration = Duration::from_secs(4);

/// Until when something is waited for, alone or together with others.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    begun: Instant,
    length: Duration,
}

impl Limit {
    /// So long from now on.
    pub fn from_now(length: Duration) -> Self {
        Self { begun: Instant::now(), length }
    }

    /// How much is left; zero once it is over.
    pub fn left(self) -> Duration {
        self.length.saturating_sub(self.begun.elapsed())
    }
}

/// The work that takes long, by the number of the device: each has a line of its own, over which it is answered.
#[derive(Debug, Default)]
pub struct Works(Mutex<BTreeMap<u32, (Work, OwnedFd)>>);

impl Works {
    /// Returns whether something that was to be done to the filesystem on a device takes long.
    fn is_awaited(&self, number: u32) -> bool {
        lock(&self.0).contains_key(&number)
    }

    /// Waits for what was to be done to the filesystem on a device and took long, and returns what it was, and the answer.
    fn finish(&self, number: u32, limit: Limit) -> Option<(Work, SysResult<()>)> {
        let (work, line) = lock(&self.0).remove(&number)?;
        Some((work, self.wait(number, work, line, limit)))
    }

    /// Waits for the answer over a line. `INPROGRESS` if it takes longer, or nobody is left to give one.
    fn wait(&self, number: u32, work: Work, line: OwnedFd, limit: Limit) -> SysResult<()> {
        let (mut answer, mut was_frozen) = ([0; 4], false);
        loop {
            set_patience(&line, limit.left())?;
            let received = packet::receive(&line, &mut answer);
            let is_interrupted = matches!(received, Err(SysError { errno: Errno::INTR, .. }));
            // That it was kept frozen for a while is not how it ended.
            let is_frozen = matches!(received, Ok(Received::Packet(4))) && i32::from_ne_bytes(answer) == FROZEN;
            // The end may be there already; but whoever answers may go on like that.
            let is_first = is_frozen && !std::mem::replace(&mut was_frozen, true);
            if is_first || ((is_interrupted || is_frozen) && !limit.left().is_zero()) {
                continue;
            }
            if is_interrupted || is_frozen || matches!(received, Err(SysError { errno: Errno::AGAIN, .. })) {
                lock(&self.0).insert(number, (work, line));
                return Err(Errno::INPROGRESS).by("the mounter");
            }
            return answered(received, answer);
        }
    }
}

/// A filesystem that is kept frozen, or is about to be, by whoever is at the other end of the line: until told otherwise, or
/// the line is gone, but no longer than two seconds.
#[derive(Debug)]
pub struct Hold {
    number: u32,
    line: OwnedFd,
    /// Whether it was refused: the filesystem was not frozen by this, and may be by others.
    is_refused: bool,
}

impl Hold {
    /// Waits until the filesystem is frozen.
    ///
    /// # Errors
    /// The kernel's, if it cannot be frozen, `BUSY` if it is already; `INPROGRESS` when that takes longer.
    pub fn wait(&mut self, limit: Limit) -> SysResult<()> {
        set_patience(&self.line, limit.left())?;
        let mut answer = [0; 4];
        match packet::receive(&self.line, &mut answer) {
            Ok(Received::Packet(4)) if i32::from_ne_bytes(answer) == FROZEN => Ok(()),
            Err(SysError { errno: Errno::AGAIN | Errno::INTR, .. }) => Err(Errno::INPROGRESS).by("the mounter"),
            received => {
                let refusal = answered(received, answer).err().unwrap_or(SysError::of(Errno::BADMSG));
                self.is_refused = refusal.errno != Errno::INPROGRESS;
                Err(refusal)
            }
        }
    }

    /// Has it thawed, now or as soon as it is frozen. [`Placer::end_hold`] says how that went.
    pub fn release(&self) {
        // Whoever has ended has said so, or left it frozen, which is noted.
        let _ = packet::send(&self.line, &[0], None);
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
            OnFilesystem::Mount(..) | OnFilesystem::Work(_) => self.work(pool, number, what, Limit::from_now(PATIENCE)),
            OnFilesystem::Release => self.release(pool, number),
        }
    }

    /// Thaws a filesystem that was left frozen, unless whoever froze it has thawed it by now: then its pod may have frozen
    /// it.
    ///
    /// # Errors
    /// As [`Self::on_filesystem`], when the limit is over.
    pub fn thaw(&self, pool: &PoolName, number: u32, limit: Limit) -> SysResult<()> {
        match self.works.finish(number, limit) {
            Some((Work::Settle | Work::Hold | Work::Thaw, Ok(()))) => Ok(()),
            Some((Work::Settle | Work::Hold, Err(error))) if error.errno != Errno::INPROGRESS => Ok(()),
            Some((Work::Thaw, Err(error))) if error.errno == Errno::INVAL => Ok(()),
            _ => self.work(pool, number, OnFilesystem::Work(Work::Thaw), limit),
        }
    }

    /// Begins to freeze the filesystem on a loop device, for two seconds at most. It waits for nothing: others are frozen
    /// already.
    ///
    /// # Errors
    /// As [`Self::on_filesystem`].
    pub fn begin_hold(&self, pool: &PoolName, number: u32) -> SysResult<Hold> {
        self.none_in_progress(number, Limit::from_now(Duration::ZERO))?;
        let line = self.begin(pool, number, OnFilesystem::Work(Work::Hold))?;
        line.map(|line| Hold { number, line, is_refused: false }).ok_or(SysError::of(Errno::NXIO))
    }

    /// Waits for the end of a hold that was released.
    ///
    /// # Errors
    /// `TIMEDOUT` when the filesystem was thawed before, or never frozen; as [`Self::on_filesystem`] otherwise.
    pub fn end_hold(&self, hold: Hold, limit: Limit) -> SysResult<()> {
        let Hold { number, line, is_refused } = hold;
        if is_refused { Err(SysError::of(Errno::TIMEDOUT)) } else { self.works.wait(number, Work::Hold, line, limit) }
    }

    /// Returns whether somebody has yet to say how something ended that was to be done to the filesystem on a device.
    pub fn is_awaited(&self, number: u32) -> bool {
        self.works.is_awaited(number)
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

    /// Waits for what is in progress. What was done before has nothing to say about now.
    fn none_in_progress(&self, number: u32, limit: Limit) -> SysResult<()> {
        let _ = self.works.finish(number, limit);
        if self.works.is_awaited(number) { Err(Errno::INPROGRESS).by("the mounter") } else { Ok(()) }
    }

    /// Begins it once what is in progress is over, and waits for it.
    fn work(&self, pool: &PoolName, number: u32, what: OnFilesystem, limit: Limit) -> SysResult<()> {
        self.none_in_progress(number, limit)?;
        let line = self.begin(pool, number, what.clone())?;
        let (Some(line), OnFilesystem::Work(work)) = (line, what) else { return Ok(()) };
        self.works.wait(number, work, line, limit)
    }
}

/// Sets how long to wait for an answer over a line.
fn set_patience(line: &OwnedFd, patience: Duration) -> SysResult<()> {
    // Zero would mean to wait forever (SO_RCVTIMEO).
    packet::set_timeout(line, packet::Timeout::Recv, Some(patience.max(Duration::from_millis(1))))
}
