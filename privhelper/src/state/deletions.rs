//! The deleted volumes of a pool until nothing is left of them: emptied by the pool's emptier, then released here.

use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bulkhead_protocol::{Error, Text};

use super::{Ballast, Share, failed, lock};
use crate::emptier::{Job, Report};
use crate::log;
use crate::sys::socket::{self, Received};
use crate::sys::{Errno, Result as SysResult};

/// A deleted volume, or one whose creation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// Its name in the pool.
    pub name: String,
    /// What it takes up on the filesystem until nothing is left of it.
    pub share: Share,
}

/// How far a deletion has progressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waiting for its turn, which does not come before this moment, if one is given.
    Waiting(Option<Instant>),
    /// The emptier has been working on it since this moment.
    Emptying(Instant),
    /// Empty since the first moment, but something may still be charged to its project; that is checked again at the
    /// second.
    Emptied(Instant, Instant),
}

/// The unfinished deletions of a pool, and the connection to its emptier.
#[derive(Debug)]
pub struct Deletions {
    emptier: OwnedFd,
    /// The highest number in the name of a deleted volume.
    last_number: AtomicU64,
    queue: Mutex<Queue>,
}

/// The deletions, in the order of their turns.
#[derive(Debug, Default)]
struct Queue {
    deletions: Vec<(Stage, Deletion)>,
    /// When the release of emptied volumes in progress began, if there is one.
    releasing: Option<Instant>,
}

/// The shortest and longest pause between checks whether anything is charged to an emptied volume's project.
const RELEASE_INTERVAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// How long something may stay charged to an emptied volume's project before that is reported.
const CHARGED_LIMIT: Duration = Duration::from_secs(60);
/// How long to wait before retrying a volume that could not be emptied.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// How long a filesystem may fail to answer before that is reported. The emptier interrupts its own work far sooner.
const STUCK_LIMIT: Duration = Duration::from_secs(60);

impl Deletions {
    /// No deletions yet; the emptier is at the other end of the socket.
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

    /// Queues a deleted volume to be emptied in the background.
    pub fn add(&self, deletion: Deletion) {
        let mut queue = lock(&self.queue);
        queue.deletions.push((Stage::Waiting(None), deletion));
        self.give_job(&mut queue);
    }

    /// The number of unfinished deletions.
    pub fn count(&self) -> usize {
        lock(&self.queue).deletions.len()
    }

    /// The deletions that cannot be finished because something has stayed charged to their projects for too long.
    pub fn charged(&self) -> Vec<Deletion> {
        let queue = lock(&self.queue);
        let charged = queue
            .deletions
            .iter()
            .filter(|(stage, _)| matches!(stage, Stage::Emptied(since, _) if since.elapsed() >= CHARGED_LIMIT));
        charged.map(|(_, deletion)| deletion.clone()).collect()
    }

    /// How long the filesystem has not answered, if that is too long.
    pub fn stuck(&self) -> Option<Duration> {
        lock(&self.queue).busy_since().map(|since| since.elapsed()).filter(|elapsed| *elapsed >= STUCK_LIMIT)
    }

    /// Waits for the emptier's reports and finishes what it has emptied. `release` gives a volume's quota and share
    /// back, and returns whether it could; space freed by then refills the ballast.
    ///
    /// # Errors
    /// When the emptier is gone: the helper must not continue without it.
    pub fn finish_all(&self, ballast: &Ballast, release: impl Fn(&Deletion) -> bool) -> Result<(), Error> {
        let gone = |errno| failed("receive a report from", "the emptier", errno);
        let mut buffer = [0; 64];
        loop {
            let patience = lock(&self.queue).patience(Instant::now());
            socket::set_receive_timeout(&self.emptier, Some(patience)).map_err(gone)?;
            match socket::receive(&self.emptier, &mut buffer) {
                Ok(Received::Packet(length)) => {
                    let report =
                        buffer.get(..length).and_then(|packet| bulkhead_protocol::decode::<Report>(packet).ok());
                    let report = report.ok_or(Errno::BADMSG).map_err(gone)?;
                    lock(&self.queue).note(&report, Instant::now());
                }
                Ok(_) => return Err(gone(Errno::PIPE)),
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => {}
                Err(errno) => return Err(gone(errno)),
            }
            // The queue is not locked during this: a system call on a frozen filesystem blocks, and no request may.
            let emptied = lock(&self.queue).begin_release(Instant::now());
            let released: Vec<Deletion> = emptied.into_iter().filter(&release).collect();
            ballast.take();
            let mut queue = lock(&self.queue);
            queue.releasing = None;
            queue.deletions.retain(|(_, deletion)| !released.contains(deletion));
            self.give_job(&mut queue);
        }
    }

    /// Gives the emptier its next job if it has none. One at a time, so that sending never blocks.
    fn give_job(&self, queue: &mut Queue) {
        let now = Instant::now();
        let Some((stage, deletion)) = queue.next(now) else { return };
        match self.send_job(deletion) {
            Ok(()) => *stage = Stage::Emptying(now),
            // Either the kernel is out of memory, and the next look at the queue tries again; or the emptier is gone,
            // and `finish_all` is about to end the process.
            Err(errno) => log::error!("cannot send a job to the emptier errno={errno}"),
        }
    }

    fn send_job(&self, deletion: &Deletion) -> SysResult<()> {
        let job = Job { name: Text::new(deletion.name.clone()) };
        let packet = bulkhead_protocol::encode(&job).map_err(|_| Errno::MSGSIZE)?;
        socket::send(&self.emptier, &packet, None)
    }
}

impl Queue {
    /// How long to wait before the next look at the queue, unless the emptier reports first. There is always a next
    /// look: a job that could not be sent waits for it.
    fn patience(&self, now: Instant) -> Duration {
        let due = self.deletions.iter().filter_map(|(stage, _)| match stage {
            Stage::Emptied(_, next) => Some(next.saturating_duration_since(now)),
            _ => None,
        });
        // Zero would mean to wait forever (SO_RCVTIMEO).
        due.min().unwrap_or(RETRY_INTERVAL).clamp(Duration::from_millis(1), RETRY_INTERVAL)
    }

    fn busy_since(&self) -> Option<Instant> {
        let emptying = self.deletions.iter().find_map(|(stage, _)| match stage {
            Stage::Emptying(since) => Some(*since),
            _ => None,
        });
        emptying.into_iter().chain(self.releasing).min()
    }

    /// What is to be emptied next, if nothing is being emptied.
    fn next(&mut self, now: Instant) -> Option<&mut (Stage, Deletion)> {
        if self.deletions.iter().any(|(stage, _)| matches!(stage, Stage::Emptying(_))) {
            return None;
        }
        let is_due = |stage: &Stage| matches!(stage, Stage::Waiting(when) if when.is_none_or(|when| when <= now));
        self.deletions.iter_mut().find(|(stage, _)| is_due(stage))
    }

    /// Notes how the current job ended. What is not empty yet goes to the end of the queue.
    fn note(&mut self, report: &Report, now: Instant) {
        let mut stages = self.deletions.iter().map(|(stage, _)| stage);
        let Some(current) = stages.position(|stage| matches!(stage, Stage::Emptying(_))) else { return };
        let (_, deletion) = self.deletions.remove(current);
        let stage = match report.errno.map(Errno::from_raw_os_error) {
            None => Stage::Emptied(now, now),
            // It takes long, and others are waiting.
            Some(Errno::TIME) => Stage::Waiting(None),
            Some(errno) => {
                log::warning!("cannot empty a deleted volume; trying again name={:?} errno={errno}", deletion.name);
                Stage::Waiting(now.checked_add(RETRY_INTERVAL))
            }
        };
        self.deletions.push((stage, deletion));
    }

    /// The emptied volumes whose projects are to be checked now; each is due again once it has waited twice as long.
    fn begin_release(&mut self, now: Instant) -> Vec<Deletion> {
        self.releasing = Some(now);
        let (soonest, latest) = RELEASE_INTERVAL;
        let mut due = Vec::new();
        for (stage, deletion) in &mut self.deletions {
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

    fn deletion(name: &str) -> Deletion {
        Deletion { name: name.to_owned(), share: Share::default() }
    }

    fn queue(names: &[&str]) -> Queue {
        let entry = |name: &&str| (Stage::Waiting(None), deletion(name));
        Queue { deletions: names.iter().map(entry).collect(), releasing: None }
    }

    /// Begins the next job, and returns its name.
    fn begin(queue: &mut Queue, now: Instant) -> Option<String> {
        let (stage, deletion) = queue.next(now)?;
        *stage = Stage::Emptying(now);
        Some(deletion.name.clone())
    }

    fn report(errno: Option<Errno>) -> Report {
        Report { errno: errno.map(Errno::raw_os_error) }
    }

    #[test]
    fn one_job_is_given_at_a_time_in_the_order_of_deletion() {
        let (mut queue, now) = (queue(&["a", "b"]), Instant::now());
        assert_eq!(queue.patience(now), RETRY_INTERVAL);
        assert_eq!(begin(&mut queue, now).as_deref(), Some("a"));
        assert_eq!(begin(&mut queue, now), None, "the emptier has a job");
        queue.note(&report(None), now);
        assert_eq!(begin(&mut queue, now).as_deref(), Some("b"));
        let emptied: Vec<_> = queue.begin_release(now).into_iter().map(|deletion| deletion.name).collect();
        assert_eq!(emptied, ["a"]);
        assert_eq!(queue.patience(now), RELEASE_INTERVAL.0);
    }

    #[test]
    fn a_project_that_stays_charged_is_looked_at_less_and_less_often() {
        let (mut queue, start) = (queue(&["a"]), Instant::now());
        begin(&mut queue, start);
        queue.note(&report(None), start);
        let mut looks = Vec::new();
        for tenths in 0..=1200 {
            let now = start + Duration::from_millis(100) * tenths;
            if !queue.begin_release(now).is_empty() {
                looks.push(tenths);
                assert_eq!(queue.begin_release(now), []);
            }
            assert!(!queue.patience(now).is_zero());
        }
        assert_eq!(looks, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 812, 1112]);
    }

    #[test]
    fn a_job_that_takes_long_lets_the_others_go_first() {
        let (mut queue, now) = (queue(&["a", "b"]), Instant::now());
        begin(&mut queue, now);
        queue.note(&report(Some(Errno::TIME)), now);
        assert_eq!(queue.patience(now), RETRY_INTERVAL);
        assert_eq!(begin(&mut queue, now).as_deref(), Some("b"));
        queue.note(&report(None), now);
        assert_eq!(begin(&mut queue, now).as_deref(), Some("a"));
    }

    #[test]
    fn a_job_that_failed_is_tried_again_after_a_while() {
        let (mut queue, now) = (queue(&["a"]), Instant::now());
        begin(&mut queue, now);
        queue.note(&report(Some(Errno::IO)), now);
        assert_eq!(queue.patience(now), RETRY_INTERVAL);
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

    #[test]
    fn a_job_that_could_not_be_sent_is_sent_at_the_next_look() {
        let (line, emptier) = socket::pair().expect("sockets");
        socket::set_send_timeout(&line, Duration::from_millis(1)).expect("a timeout");
        while socket::send(&line, &[0; 1024], None).is_ok() {}
        let deletions = Deletions::new(line);
        deletions.add(deletion("a"));
        let mut buffer = [0; 1024];
        socket::set_receive_timeout(&emptier, Some(Duration::from_millis(1))).expect("a timeout");
        let mut receive = || socket::receive(&emptier, &mut buffer);
        while receive().is_ok_and(|received| received == Received::Packet(1024)) {}
        let mut queue = lock(&deletions.queue);
        assert_eq!(queue.busy_since(), None);
        assert_eq!(queue.patience(Instant::now()), RETRY_INTERVAL, "there is a next look");
        deletions.give_job(&mut queue);
        assert!(queue.busy_since().is_some());
        assert!(matches!(receive(), Ok(Received::Packet(length)) if length < 1024), "the job");
    }

    #[test]
    fn no_number_is_used_that_was_found_at_start() {
        let deletions = Deletions::new(socket::pair().expect("sockets").0);
        for found in [7, 0, 3] {
            deletions.note_number(found);
        }
        assert_eq!([deletions.new_number(), deletions.new_number()], [8, 9]);
    }

    #[test]
    fn a_filesystem_that_does_not_answer_is_reported_after_a_while() {
        let deletions = Deletions::new(socket::pair().expect("sockets").0);
        let ago = |ago| Instant::now().checked_sub(ago).expect("a moment");
        let set = |stage, releasing| {
            *lock(&deletions.queue) = Queue { deletions: vec![(stage, deletion("a"))], releasing };
            deletions.stuck().is_some()
        };
        assert!(!set(Stage::Waiting(None), None));
        assert!(!set(Stage::Emptying(ago(STUCK_LIMIT / 2)), None));
        assert!(set(Stage::Emptying(ago(STUCK_LIMIT)), None));
        assert!(set(Stage::Waiting(None), Some(ago(STUCK_LIMIT))));
    }
}
