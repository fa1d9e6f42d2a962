//! The end of deleted volumes: emptied by their pool's emptier, then released here.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bulkhead_protocol::{Error, PoolName};

use super::room::Share;
use crate::emptier::{Outcome, Report, WAKE, WAKE_IN_PLACE};
use crate::log;
use crate::state::{Deleted, Pool, Served, Volumes, failed, lock};
use crate::sys::packet::Received;
use crate::sys::quota::ProjectQuota;
use crate::sys::{Errno, Error as SysError, Result as SysResult, failed_with, file, packet, socket};

/// How far the end of a deleted volume has progressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// It waits for the emptier.
    #[default]
    Waiting,
    /// The emptier has been working on it since this moment.
    Emptying(Instant),
    /// Nothing is left of it, but something may still be charged to its project.
    Emptied(Emptied),
}

/// What is known of a deleted volume of which nothing is left: only this file makes one, of a report of the emptier's, or of
/// what the pool or the quotas show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emptied {
    since: Instant,
    /// When it is checked again whether anything is charged to its project.
    next: Instant,
}

/// A deleted volume of which nothing is left, and to whose project nothing is charged any more: only [`Emptied::release`]
/// makes one, and without it no row of a deleted volume goes.
#[derive(Debug)]
pub struct Released {
    name: String,
}

/// The connection to a pool's emptier, and the table of what it is to empty: it is not woken before the start has filled that.
#[derive(Debug)]
pub struct Deletions {
    emptier: OwnedFd,
    volumes: Arc<Volumes>,
    /// When the release of emptied volumes in progress began, if there is one.
    releasing: Mutex<Option<Instant>>,
    /// Set when the emptier could not be woken: whether for something in its place.
    missed: Mutex<Option<bool>>,
}

/// The shortest and longest pause between checks whether anything is charged to an emptied volume's project.
const RELEASE_INTERVAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// How long something may stay charged to an emptied volume's project before that is reported.
const CHARGED_LIMIT: Duration = Duration::from_secs(60);
/// How long to wait for a report if nothing is to be checked: one may have been lost, or what wakes the emptier.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);
/// How long a filesystem may fail to answer before that is reported. The emptier interrupts its own work far sooner.
const STUCK_LIMIT: Duration = Duration::from_secs(60);

impl Deletions {
    /// The emptier is at the other end of the socket, and these are all volumes that the start has found.
    pub fn new(emptier: OwnedFd, volumes: Arc<Volumes>) -> Self {
        Self { emptier, volumes, releasing: Mutex::default(), missed: Mutex::default() }
    }

    /// Tells the emptier that there is something to empty, perhaps under a name that it does not know by sight.
    pub fn wake(&self, in_place: bool) {
        let packet = if in_place { WAKE_IN_PLACE } else { WAKE };
        if socket::send_at_once(&self.emptier, &[packet]).is_err() {
            // `finish` tries again; or if the emptier is gone, it is about to end the process.
            let mut missed = lock(&self.missed);
            *missed = Some(in_place || *missed == Some(true));
        }
    }

    /// Returns how long the filesystem has not answered, once that is too long.
    pub fn stuck(&self, pool: &PoolName) -> Option<Duration> {
        let emptying = self.volumes.deleted(pool, |_, deleted| match deleted.progress {
            Progress::Emptying(since) => Some(since),
            _ => None,
        });
        let oldest = emptying.into_iter().chain(*lock(&self.releasing)).min();
        oldest.map(|since| since.elapsed()).filter(|elapsed| *elapsed >= STUCK_LIMIT)
    }

    /// Returns when the release of emptied volumes that is in progress began.
    pub fn releasing_since(&self) -> Option<Instant> {
        *lock(&self.releasing)
    }

    /// Waits for the emptier's reports and releases what it has emptied, for as long as the emptier lives.
    ///
    /// # Errors
    /// When it is gone: the helper must not continue without it.
    pub fn finish(&self, pool: &Pool) -> Result<(), Error> {
        let gone = |error: SysError| failed("receive a report from", "the emptier", error);
        let (name, volumes) = (&pool.config.name, &self.volumes);
        let mut buffer = [0; bulkhead_protocol::MAX_PACKET];
        let mut looked = Instant::now();
        loop {
            let limit = wait(volumes, name, Instant::now());
            packet::set_timeout(&self.emptier, packet::Timeout::Recv, Some(limit)).map_err(gone)?;
            match packet::receive(&self.emptier, &mut buffer) {
                Ok(Received::Packet(length)) => {
                    let report =
                        buffer.get(..length).and_then(|packet| bulkhead_protocol::decode::<Report>(packet).ok());
                    let report = report.ok_or_else(|| gone(SysError::of(Errno::BADMSG)))?;
                    volumes.progress(name, report.name.as_str(), progress(&report, Instant::now()));
                }
                Ok(_) => return Err(gone(SysError::of(Errno::PIPE))),
                Err(SysError { errno: Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM, .. }) => {}
                Err(error) => return Err(gone(error)),
            }
            let missed = lock(&self.missed).take();
            if let Some(in_place) = missed {
                self.wake(in_place);
            }
            *lock(&self.releasing) = Some(Instant::now());
            if looked.elapsed() >= REPORT_INTERVAL {
                looked = Instant::now();
                find_gone(volumes, name, looked, |name| is_gone(pool, name));
            }
            for (one, Deleted { share, call, .. }, emptied) in due(volumes, name, Instant::now()) {
                match emptied.release(pool, &one, share) {
                    Some(released) => {
                        log::info!("a deleted volume is gone pool={name} name={one:?} call={call}");
                        volumes.forget(name, &released);
                    }
                    None => volumes.progress(name, &one, Progress::Emptied(emptied.again(Instant::now()))),
                }
            }
            *lock(&self.releasing) = None;
        }
    }
}

/// The deleted volumes of a pool that cannot be released because something has stayed charged to their projects for too
/// long.
pub fn charged(volumes: &Volumes, pool: &PoolName) -> Vec<Share> {
    volumes.deleted(pool, |_, deleted| match deleted.progress {
        Progress::Emptied(emptied) if emptied.since.elapsed() >= CHARGED_LIMIT => Some(deleted.share),
        _ => None,
    })
}

fn progress(report: &Report, now: Instant) -> Progress {
    match report.outcome {
        Outcome::Begun => Progress::Emptying(now),
        Outcome::Emptied => Progress::Emptied(Emptied { since: now, next: now }),
        Outcome::Unfinished => Progress::Waiting,
        Outcome::Failed(errno) => {
            let errno = Errno::from_raw_os_error(errno);
            log::warning!("cannot empty a deleted volume; trying again name={:?} error={errno}", report.name.as_str());
            Progress::Waiting
        }
    }
}

/// Returns how long to wait for the next report.
fn wait(volumes: &Volumes, pool: &PoolName, now: Instant) -> Duration {
    let due = volumes.deleted(pool, |_, deleted| match deleted.progress {
        Progress::Emptied(emptied) => Some(emptied.next.saturating_duration_since(now)),
        _ => None,
    });
    // Zero would mean to wait forever (SO_RCVTIMEO).
    due.into_iter().min().unwrap_or(REPORT_INTERVAL).clamp(Duration::from_millis(1), REPORT_INTERVAL)
}

/// Finds deleted volumes of which nothing is left although no report has said so: the emptier may have found one before
/// it was known here.
fn find_gone(volumes: &Volumes, pool: &PoolName, now: Instant, is_gone: impl Fn(&str) -> bool) {
    let waiting =
        volumes.deleted(pool, |name, deleted| (deleted.progress == Progress::Waiting).then(|| name.to_owned()));
    for name in waiting.into_iter().filter(|name| is_gone(name)) {
        volumes.progress(pool, &name, Progress::Emptied(Emptied { since: now, next: now }));
    }
}

fn is_gone(pool: &Pool, name: &str) -> bool {
    pool.state.as_ref().is_ok_and(|served| failed_with(&file::status_at(&served.directory, name), Errno::NOENT))
}

/// The emptied volumes whose projects are to be checked now.
fn due(volumes: &Volumes, pool: &PoolName, now: Instant) -> Vec<(String, Deleted, Emptied)> {
    volumes.deleted(pool, |name, deleted| match deleted.progress {
        Progress::Emptied(emptied) if emptied.next <= now => Some((name.to_owned(), deleted.clone(), emptied)),
        _ => None,
    })
}

impl Emptied {
    /// What is known of a project to which nothing is charged.
    pub fn by_quota(quota: &ProjectQuota) -> Option<Self> {
        let now = Instant::now();
        quota.is_unused().then_some(Self { since: now, next: now })
    }

    /// One that cannot be released yet is due again once it has waited twice as long.
    fn again(self, now: Instant) -> Self {
        let (soonest, latest) = RELEASE_INTERVAL;
        let pause = now.saturating_duration_since(self.since).clamp(soonest, latest);
        Self { next: now.checked_add(pause).unwrap_or(now), ..self }
    }

    /// Releases the quota of the volume with this name once nothing is charged to its project any more: an unlinked file may
    /// still be open, or the filesystem may take a while.
    fn release(self, pool: &Pool, name: &str, share: Share) -> Option<Released> {
        let released = Released { name: name.to_owned() };
        let (Some(project), Ok(Served { filesystem, .. })) = (share.project, &pool.state) else {
            return Some(released);
        };
        let release = || -> SysResult<Option<Released>> {
            if !filesystem.quota(project)?.is_unused() {
                return Ok(None);
            }
            filesystem.set_quota(project, (0, 0)).map(|()| Some(released))
        };
        release().unwrap_or_else(|error| {
            log::warning!("cannot release a deleted volume's quota; trying again project={} error={error}", project.0);
            None
        })
    }
}

impl Released {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
pub mod testing {
    use super::*;

    /// What would have been released under this name.
    pub fn released(name: &str) -> Released {
        Released { name: name.to_owned() }
    }
}

#[cfg(test)]
mod tests;
