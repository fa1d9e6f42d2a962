//! One moment of several filesystems in images: none of them can be written to from before something is done until after it.
//! Of what programs have written one after the other, to whichever of them, whatever is missing from one of them then is
//! followed by nothing in another.

use std::time::{Duration, Instant};

use bulkhead_protocol::{Error, VolumeId};

use super::filesystem::Mounted;
use crate::mounter::LONGEST_HOLD;
use crate::state::{Hold, busy, failed};
use crate::sys::{Errno, Error as SysError};

/// How long to wait until all are thawed again. The helper ends in order within five seconds.
const PATIENCE: Duration = Duration::from_secs(4);

/// Does something while all of these are frozen.
///
/// # Errors
/// `Busy` when one cannot be frozen in time, or was thawed before the end: what was done is worth nothing then.
pub fn at_one_moment(mounted: &[Mounted<'_>], act: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let mut holds = Vec::new();
    let done = freeze(mounted, &mut holds).and_then(|()| act());
    holds.iter().for_each(Hold::release);
    let end = Limit::from_now(PATIENCE);
    let mut thawed = Ok(());
    for (one, hold) in mounted.iter().zip(holds) {
        // All of them are waited for, whatever has become of one.
        thawed = thawed.and(one.end_hold(hold, end.left()).map_err(|error| cannot_hold(one.id, error)));
    }
    done.and(thawed)
}

/// Freezes all of these, each at its own pace, within the time for which the first one stays frozen.
fn freeze(mounted: &[Mounted<'_>], holds: &mut Vec<Hold>) -> Result<(), Error> {
    for one in mounted {
        holds.push(one.begin_hold().map_err(|error| cannot_freeze(one.id, error))?);
    }
    let end = Limit::from_now(LONGEST_HOLD);
    let mut frozen = mounted.iter().zip(holds);
    frozen.try_for_each(|(one, hold)| hold.wait(end.left()).map_err(|error| cannot_freeze(one.id, error)))
}

/// Until when several things are waited for together.
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

fn cannot_freeze(id: &VolumeId, error: SysError) -> Error {
    match error.errno {
        Errno::BUSY => busy(format!(
            "volume {id} cannot be copied along with others while its filesystem is frozen; whoever froze it has to thaw it (fsfreeze --unfreeze)"
        )),
        Errno::INPROGRESS => busy(format!(
            "the filesystem of volume {id} is not frozen within two seconds: there is too much to write, or its disk does not answer; try again"
        )),
        _ => failed("freeze the filesystem of volume", id, error),
    }
}

fn cannot_hold(id: &VolumeId, error: SysError) -> Error {
    match error.errno {
        Errno::TIMEDOUT => busy(format!(
            "the filesystem of volume {id} did not stay frozen until all were copied, which takes two seconds at most; try again"
        )),
        _ => failed("thaw the filesystem of volume", id, error),
    }
}
