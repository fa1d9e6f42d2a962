//! Deleted volumes until nothing is left of them: emptied by the second process, then released here.

use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bulkhead_protocol::{Error, Text};

use super::{Share, failed, lock};
use crate::emptier::{Job, Report};
use crate::log;
use crate::sys::socket::{self, Received};
use crate::sys::{Errno, Result as SysResult};

/// A deleted volume, or one whose creation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// Index of its pool.
    pub pool: usize,
    /// Its name in the pool.
    pub name: String,
    /// What it takes of the filesystem until nothing is left of it.
    pub share: Share,
}

/// How far a deletion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It waits for its turn; not before the moment, if one is given.
    Waiting(Option<Instant>),
    /// The emptier works on it.
    Emptying,
    /// It is empty since the first moment, but something may still be charged to its project: that is looked at again at
    /// the second.
    Emptied(Instant, Instant),
}

/// All deletions that are not finished, and the connection to the emptier.
#[derive(Debug)]
pub struct Deletions {
    emptier: OwnedFd,
    /// The highest number in the name of a deleted volume.
    last_number: AtomicU64,
    queue: Mutex<Queue>,
}

/// The deletions, in the order in which they have their turns.
#[derive(Debug, Default)]
struct Queue(Vec<(Stage, Deletion)>);

/// How soon, and how late at most, it is looked again whether anything is charged to an emptied volume's project.
const RELEASE_INTERVAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// After which time something that is still charged to an emptied volume's project is reported.
const CHARGED_LIMIT: Duration = Duration::from_secs(60);
/// When a volume that could not be emptied is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

impl Deletions {
    /// No deletions, with the emptier at the other end of the socket.
    pub fn new(emptier: OwnedFd) -> Self {
        Self { emptier, last_number: AtomicU64::new(0), queue: Mutex::default() }
    }

    /// A number that no other deleted volume has in its name.
    pub fn new_number(&self) -> u64 {
        self.last_number.fetch_add(1, Relaxed).saturating_add(1)
    }

    /// Notes a number that was found in the name of a deleted volume at start.
    pub fn note_number(&self, found: u64) {
        self.last_number.fetch_max(found, Relaxed);
    }

    /// Has a deleted volume emptied in the background.
    pub fn add(&self, deletion: Deletion) {
        let mut queue = lock(&self.queue);
        queue.0.push((Stage::Waiting(None), deletion));
        self.give_job(&mut queue);
    }

    /// How many deletions in a pool are not finished.
    pub fn count(&self, pool: usize) -> usize {
        lock(&self.queue).0.iter().filter(|(_, deletion)| deletion.pool == pool).count()
    }

    /// The deletions in a pool that cannot be finished because something has been charged to their projects for long.
    pub fn charged(&self, pool: usize) -> Vec<Deletion> {
        let queue = lock(&self.queue);
        let charged = queue.0.iter().filter(|(stage, deletion)| {
            deletion.pool == pool && matches!(stage, Stage::Emptied(since, _) if since.elapsed() >= CHARGED_LIMIT)
        });
        charged.map(|(_, deletion)| deletion.clone()).collect()
    }

    /// Waits for the emptier's reports and finishes what it has emptied. `release` gives a volume's quota and share
    /// back, and returns whether it could.
    ///
    /// # Errors
    /// When the emptier is gone: without it the helper must not go on.
    pub fn finish_all(&self, release: impl Fn(&Deletion) -> bool) -> Result<(), Error> {
        let gone = |errno| failed("receive a report from", "the emptier", errno);
        let mut buffer = [0; 64];
        loop {
            let patience = lock(&self.queue).patience(Instant::now());
            socket::set_receive_timeout(&self.emptier, patience).map_err(gone)?;
            match socket::receive(&self.emptier, &mut buffer) {
                Ok(Received::Packet(length)) => {
                    let report =
                        buffer.get(..length).and_then(|packet| bulkhead_protocol::decode::<Report>(packet).ok());
                    let report = report.ok_or(Errno::BADMSG).map_err(gone)?;
                    lock(&self.queue).note(&report, Instant::now());
                }
                Ok(_) => return Err(gone(Errno::PIPE)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(gone(errno)),
            }
            // The queue is not locked meanwhile: a system call on a frozen filesystem waits, and no request may.
            let emptied = lock(&self.queue).emptied(Instant::now());
            let released: Vec<Deletion> = emptied.into_iter().filter(&release).collect();
            let mut queue = lock(&self.queue);
            queue.0.retain(|(_, deletion)| !released.contains(deletion));
            self.give_job(&mut queue);
        }
    }

    /// Gives the emptier its next job if it has none. One at a time, so that sending never blocks.
    fn give_job(&self, queue: &mut Queue) {
        let Some((stage, deletion)) = queue.next(Instant::now()) else { return };
        match self.send_job(deletion) {
            Ok(()) => *stage = Stage::Emptying,
            // The emptier is gone, and `finish_all` is about to end the process.
            Err(errno) => log::error!("cannot send a job to the emptier errno={errno}"),
        }
    }

    fn send_job(&self, deletion: &Deletion) -> SysResult<()> {
        let job = Job { pool: deletion.pool as u64, name: Text::new(deletion.name.clone()) };
        let packet = bulkhead_protocol::encode(&job).map_err(|_| Errno::MSGSIZE)?;
        socket::send(&self.emptier, &packet, None)
    }
}

impl Queue {
    /// How long there is nothing to do unless the emptier reports.
    fn patience(&self, now: Instant) -> Option<Duration> {
        let stages = self.0.iter().map(|(stage, _)| stage);
        stages
            .filter_map(|stage| match stage {
                // No time at all would mean to wait for ever (SO_RCVTIMEO).
                Stage::Emptied(_, next) => Some(next.saturating_duration_since(now).max(Duration::from_millis(1))),
                Stage::Waiting(Some(_)) => Some(RETRY_INTERVAL),
                Stage::Waiting(None) | Stage::Emptying => None,
            })
            .min()
    }

    /// What is to be emptied next, if nothing is being emptied.
    fn next(&mut self, now: Instant) -> Option<&mut (Stage, Deletion)> {
        if self.0.iter().any(|(stage, _)| *stage == Stage::Emptying) {
            return None;
        }
        let is_due = |stage: &Stage| matches!(stage, Stage::Waiting(when) if when.is_none_or(|when| when <= now));
        self.0.iter_mut().find(|(stage, _)| is_due(stage))
    }

    /// Notes how the current job ended. What is not empty yet goes to the end of the queue.
    fn note(&mut self, report: &Report, now: Instant) {
        let Some(current) = self.0.iter().position(|(stage, _)| *stage == Stage::Emptying) else { return };
        let (_, deletion) = self.0.remove(current);
        let stage = match report.errno.map(Errno::from_raw_os_error) {
            None => Stage::Emptied(now, now),
            // It takes long, and others wait.
            Some(Errno::TIME) => Stage::Waiting(None),
            Some(errno) => {
                log::warning!("cannot empty a deleted volume; trying again name={} errno={errno}", deletion.name);
                Stage::Waiting(now.checked_add(RETRY_INTERVAL))
            }
        };
        self.0.push((stage, deletion));
    }

    /// The emptied volumes whose projects are to be looked at now; each is due again when it has waited twice as long.
    fn emptied(&mut self, now: Instant) -> Vec<Deletion> {
        let (soonest, latest) = RELEASE_INTERVAL;
        let mut due = Vec::new();
        for (stage, deletion) in &mut self.0 {
            if let Stage::Emptied(since, next) = stage
                && *next <= now
            {
                let pause = now.saturating_duration_since(*since).clamp(soonest, latest);
                *next = now.checked_add(pause).unwrap_or(now);
                due.push(deletion.clone());
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(names: &[&str]) -> Queue {
        let entry = |name: &&str| {
            (Stage::Waiting(None), Deletion { pool: 0, name: (*name).to_owned(), share: Share::default() })
        };
        Queue(names.iter().map(entry).collect())
    }

    /// Begins the next job, and returns its name.
    fn begin(queue: &mut Queue, now: Instant) -> Option<String> {
        let (stage, deletion) = queue.next(now)?;
        *stage = Stage::Emptying;
        Some(deletion.name.clone())
    }

    fn report(errno: Option<Errno>) -> Report {
        Report { errno: errno.map(Errno::raw_os_error) }
    }

    #[test]
    fn one_job_is_given_at_a_time_in_the_order_of_deletion() {
        let (mut queue, now) = (queue(&["a", "b"]), Instant::now());
        assert_eq!(queue.patience(now), None);
        assert_eq!(begin(&mut queue, now).as_deref(), Some("a"));
        assert_eq!(begin(&mut queue, now), None, "the emptier has a job");
        queue.note(&report(None), now);
        assert_eq!(begin(&mut queue, now).as_deref(), Some("b"));
        let emptied: Vec<_> = queue.emptied(now).into_iter().map(|deletion| deletion.name).collect();
        assert_eq!(emptied, ["a"]);
        assert_eq!(queue.patience(now), Some(RELEASE_INTERVAL.0));
    }

    #[test]
    fn a_project_that_stays_charged_is_looked_at_less_and_less_often() {
        let (mut queue, start) = (queue(&["a"]), Instant::now());
        begin(&mut queue, start);
        queue.note(&report(None), start);
        let mut looks = Vec::new();
        for tenths in 0..=1200 {
            let now = start + Duration::from_millis(100) * tenths;
            if !queue.emptied(now).is_empty() {
                looks.push(tenths);
                assert_eq!(queue.emptied(now), []);
            }
            assert!(queue.patience(now).is_some_and(|patience| !patience.is_zero()));
        }
        assert_eq!(looks, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 812, 1112]);
    }

    #[test]
    fn a_job_that_takes_long_lets_the_others_go_first() {
        let (mut queue, now) = (queue(&["a", "b"]), Instant::now());
        begin(&mut queue, now);
        queue.note(&report(Some(Errno::TIME)), now);
        assert_eq!(queue.patience(now), None);
        assert_eq!(begin(&mut queue, now).as_deref(), Some("b"));
        queue.note(&report(None), now);
        assert_eq!(begin(&mut queue, now).as_deref(), Some("a"));
    }

    #[test]
    fn a_job_that_failed_is_tried_again_after_a_while() {
        let (mut queue, now) = (queue(&["a"]), Instant::now());
        begin(&mut queue, now);
        queue.note(&report(Some(Errno::IO)), now);
        assert_eq!(queue.patience(now), Some(RETRY_INTERVAL));
        assert_eq!(begin(&mut queue, now), None);
        assert_eq!(begin(&mut queue, now + RETRY_INTERVAL - Duration::from_millis(1)), None);
        assert_eq!(begin(&mut queue, now + RETRY_INTERVAL).as_deref(), Some("a"));
    }

    #[test]
    fn a_report_without_a_job_changes_nothing() {
        let (mut queue, now) = (queue(&["a"]), Instant::now());
        queue.note(&report(None), now);
        assert_eq!(begin(&mut queue, now).as_deref(), Some("a"));
    }
}
