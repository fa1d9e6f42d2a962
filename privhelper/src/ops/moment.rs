//! One moment of several filesystems in images: none of them can be written to from before something is done until after it.
//! Of what programs have written one after the other, to whichever of them, whatever is missing from one of them then is
//! followed by nothing in another.

use bulkhead_protocol::{Error, VolumeId};

use super::filesystem::Mounted;
use crate::mounter::LONGEST_HOLD;
use crate::state::{Hold, Limit, PATIENCE, busy, failed};
use crate::sys::{Errno, Error as SysError};

/// Does something while all of these are frozen.
///
/// # Errors
/// `Busy` when one cannot be frozen in time, or was thawed before the end: what was done is worth nothing then.
pub fn at_one_moment(mounted: &[Mounted<'_>], act: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let limit = Limit::from_now(PATIENCE);
    // Before any is frozen, as this may take long.
    for one in mounted {
        one.thaw_left_within(limit).map_err(|error| cannot_freeze(one.id, error))?;
    }
    let mut holds = Vec::new();
    let done = freeze(mounted, &mut holds).and_then(|()| act());
    holds.iter().for_each(Hold::release);
    let limit = Limit::from_now(PATIENCE);
    // All of them are waited for, whatever has become of one.
    let ended: Vec<_> = mounted.iter().zip(holds).map(|(one, hold)| (one, one.end_hold(hold, limit))).collect();
    let limit = Limit::from_now(PATIENCE);
    for (one, _) in
        ended.iter().filter(|(_, ended)| ended.as_ref().is_err_and(|error| error.errno == Errno::INPROGRESS))
    {
        // If this fails too, whatever is done about it next begins with it.
        let _ = one.thaw_abandoned(limit);
    }
    let thawed = ended.into_iter().map(|(one, ended)| ended.map_err(|error| cannot_hold(one.id, error)));
    done.and(thawed.fold(Ok(()), Result::and))
}

/// Freezes all of these, each at its own pace, within the time for which the first one stays frozen.
fn freeze(mounted: &[Mounted<'_>], holds: &mut Vec<Hold>) -> Result<(), Error> {
    let limit = Limit::from_now(LONGEST_HOLD);
    for one in mounted {
        holds.push(one.begin_hold().map_err(|error| cannot_freeze(one.id, error))?);
    }
    let mut frozen = mounted.iter().zip(holds);
    frozen.try_for_each(|(one, hold)| hold.wait(limit).map_err(|error| cannot_freeze(one.id, error)))
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
