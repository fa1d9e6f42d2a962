//! Waiting for a condition, or for the end of a process.

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::pace::Allowance;

/// The most that is waited because a look takes long.
const LONGEST: Duration = Duration::from_secs(1);

/// Waits until `check` succeeds, and returns what it returns.
pub fn until<T>(limit: Duration, check: impl FnMut() -> Result<T>) -> Result<T> {
    within(Allowance::at_this_pace(limit), check)
}

/// The same within this allowance. Between two looks it waits three times as long as a look took, so that what is waited for
/// has the processor: some start a program that calculates for a tenth of a second.
pub fn within<T>(mut allowance: Allowance, mut check: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        let begun = Instant::now();
        let looked = check();
        let took = begun.elapsed();
        match looked {
            Ok(found) => return Ok(found),
            Err(complaint) if allowance.is_spent() => {
                bail!("still after {:.1} s: {complaint:#}", start.elapsed().as_secs_f64())
            }
            Err(_) => std::thread::sleep(pause.max((took * 3).min(LONGEST))),
        }
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Waits until a process has ended, but no longer than this, and returns how it has ended, if it has.
pub fn ended(child: &mut Child, at_most: Duration) -> Result<Option<ExitStatus>> {
    if let Some(status) = child.try_wait()? {
        return Ok(Some(status));
    }
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).context("open a process")?;
    // A signal is as good a reason to look again as any.
    let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&at_most.try_into()?));
    Ok(child.try_wait()?)
}
