//! Deleted volumes on their way out: queued for the emptier, then settled when nothing is charged to them any more.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bulkhead_protocol::Error;

use super::{Share, failed, lock};
use crate::emptier::{Job, Report};
use crate::log;
use crate::sys::quota::ProjectId;
use crate::sys::{Errno, socket};

/// A deleted volume.
#[derive(Clone, Debug)]
pub struct Doomed {
    /// Index of its pool.
    pub pool: usize,
    /// Its name in the pool, which begins with a dot.
    pub name: String,
    /// Its project, whose quota is released last.
    pub project: Option<ProjectId>,
    /// What it was promised.
    pub share: Share,
}

/// All deleted volumes that are not settled, and the line to the emptier.
#[derive(Debug)]
pub struct Graveyard {
    emptier: OwnedFd,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// The next number for a doomed name.
    next: u64,
    waiting: VecDeque<Doomed>,
    /// What the emptier works on.
    current: Option<Doomed>,
    /// Emptied, but something is still charged to the project.
    charged: Vec<Doomed>,
    /// What the emptier could not remove, and when to try again.
    failed: Vec<(Instant, Doomed)>,
}

/// How settling a volume went.
#[derive(Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Nothing is left of it.
    Settled,
    /// Something is still charged to its project: an unlinked file that is open, or the filesystem's own delay.
    Charged,
}

/// How often the charges of emptied volumes are looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// When what could not be removed is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(10);

impl Graveyard {
    /// An empty one, for the emptier at the other end of the socket.
    pub fn new(emptier: OwnedFd) -> Self {
        Self { emptier, queue: Mutex::default() }
    }

    /// A number for the name of a doomed volume that no other has had.
    pub fn number(&self) -> u64 {
        let mut queue = lock(&self.queue);
        queue.next = queue.next.saturating_add(1);
        queue.next
    }

    /// Begins numbering behind a number found at start.
    pub fn number_beyond(&self, found: u64) {
        let mut queue = lock(&self.queue);
        queue.next = queue.next.max(found);
    }

    /// Has a deleted volume emptied, in the background.
    pub fn bury(&self, doomed: Doomed) {
        let mut queue = lock(&self.queue);
        queue.waiting.push_back(doomed);
        self.feed(&mut queue);
    }

    /// How many deleted volumes of a pool are not settled.
    pub fn count(&self, pool: usize) -> usize {
        let queue = lock(&self.queue);
        let failed = queue.failed.iter().map(|(_, doomed)| doomed);
        let all = queue.waiting.iter().chain(&queue.current).chain(&queue.charged).chain(failed);
        all.filter(|doomed| doomed.pool == pool).count()
    }

    /// Waits for the emptier, and settles what it has emptied; `settle` releases quota and room.
    ///
    /// # Errors
    /// When the emptier is gone: without it the helper must not go on.
    pub fn attend(&self, mut settle: impl FnMut(&Doomed) -> Settlement) -> Result<(), Error> {
        let gone = |errno| failed("hear from", "the emptier", errno);
        let mut buffer = [0; 64];
        loop {
            let patience = self.patience();
            socket::set_receive_timeout(&self.emptier, patience).map_err(gone)?;
            match socket::receive(&self.emptier, &mut buffer) {
                Ok(socket::Received::Packet(length)) => {
                    let report =
                        buffer.get(..length).and_then(|packet| bulkhead_protocol::decode::<Report>(packet).ok());
                    self.note(report.ok_or(Errno::BADMSG).map_err(gone)?);
                }
                Ok(_) => return Err(gone(Errno::PIPE)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(gone(errno)),
            }
            let charged = std::mem::take(&mut lock(&self.queue).charged);
            let still: Vec<Doomed> =
                charged.into_iter().filter(|doomed| settle(doomed) == Settlement::Charged).collect();
            let mut queue = lock(&self.queue);
            queue.charged.extend(still);
            let now = Instant::now();
            while let Some(index) = queue.failed.iter().position(|(when, _)| *when <= now) {
                let (_, doomed) = queue.failed.swap_remove(index);
                queue.waiting.push_back(doomed);
            }
            self.feed(&mut queue);
        }
    }

    /// How long there is nothing to do unless the emptier reports.
    fn patience(&self) -> Option<Duration> {
        let queue = lock(&self.queue);
        match (queue.charged.is_empty(), queue.failed.is_empty()) {
            (false, _) => Some(LOOK_AGAIN),
            (true, false) => Some(TRY_AGAIN),
            (true, true) => None,
        }
    }

    fn note(&self, report: Report) {
        let mut queue = lock(&self.queue);
        let Some(doomed) = queue.current.take() else { return };
        match report.errno {
            None => queue.charged.push(doomed),
            // It took long, and others wait.
            Some(errno) if errno == Errno::TIME.raw_os_error() => queue.waiting.push_back(doomed),
            Some(errno) => {
                let errno = Errno::from_raw_os_error(errno);
                log::warning!(
                    "a deleted volume could not be emptied; it is tried again name={} errno={errno}",
                    doomed.name
                );
                let when = Instant::now().checked_add(TRY_AGAIN).unwrap_or_else(Instant::now);
                queue.failed.push((when, doomed));
            }
        }
    }

    /// Gives the emptier its next job if it has none. One at a time, so that sending never blocks.
    fn feed(&self, queue: &mut Queue) {
        if queue.current.is_some() {
            return;
        }
        if let Some(doomed) = queue.waiting.pop_front() {
            let job = Job { pool: doomed.pool as u64, name: bulkhead_protocol::Text::new(doomed.name.clone()) };
            let sent = bulkhead_protocol::encode(&job).map_err(|_| Errno::MSGSIZE);
            match sent.and_then(|packet| socket::send(&self.emptier, &packet, None)) {
                Ok(()) => queue.current = Some(doomed),
                // The emptier is gone, and `attend` is about to end the process.
                Err(errno) => log::error!("the emptier takes no job errno={errno}"),
            }
        }
    }
}
