//! Connections to the privileged helper: a few, each with one request at a time.
//!
//! Callers notice a restart of the helper as little as possible: a request waits a while for the helper to come back,
//! and one that was in progress is sent once more, since every request of the protocol may be repeated.

mod calls;
mod connection;
mod error;
mod link;
mod outcome;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_protocol::{Pace, Request, Response, Welcome};
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tokio::time::timeout;

use connection::Connection;
use link::Link;
use outcome::outcome;

use crate::metrics::METRICS;

pub use calls::{Counts, Owned, Ranges, Sharing};
pub use error::{CallError, Unreachable};
pub use outcome::COPY_REFUSALS;

/// The maximum number of connections, not counting those that hang. The helper serves seventeen, and more for each pool, and
/// works on sixteen requests of one pace for one filesystem at a time.
const CONNECTIONS: usize = 16;

/// How many of them may be used by requests that wait for the disk. One connection always remains for the others.
const FOR_SLOW_REQUESTS: usize = CONNECTIONS - 1;

/// How many of these may be used by deletions, which come in the hundreds and can wait. The rest remain for creations.
const FOR_DELETIONS: usize = FOR_SLOW_REQUESTS / 2;

/// How many of these may be used by requests that take as long as a tenant likes, for each of the three reasons: as many as the
/// helper works on at a time for one filesystem. Who comes first is served first, so none of many keeps another from it.
const FOR_CONTENT: usize = 4;
/// See [`FOR_CONTENT`].
const FOR_EXTENTS: usize = 1;

/// How many of these may be used by requests for what snapshots hold and share. They come in the thousands, for backups,
/// and all changes go before them.
const FOR_BULK: usize = 2;

/// A request that takes longer than this hangs: on a filesystem that is frozen, or whose disk does not answer. It
/// continues, but others do not wait for it. The helper limits how many hang on one filesystem.
const HANGS: Duration = Duration::from_secs(5);

/// How long a request waits for an unreachable helper before it fails.
const PATIENCE: Duration = Duration::from_secs(3);

/// A handle to the privileged helper.
#[derive(Clone)]
pub struct Helper(Arc<Shared>);

struct Shared {
    socket: PathBuf,
    any: Semaphore,
    slow: Semaphore,
    deletions: Semaphore,
    extents: Semaphore,
    bulk: Semaphore,
    content: Semaphore,
    device: Semaphore,
    idle: Mutex<Vec<Connection>>,
    link: watch::Sender<Link>,
    wanted: Notify,
}

impl Helper {
    /// The helper that listens on `socket`. From now on, a task of the current runtime keeps connecting to it.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        let helper = Self(Arc::new(Shared {
            socket: socket.into(),
            any: Semaphore::new(CONNECTIONS),
            slow: Semaphore::new(FOR_SLOW_REQUESTS),
            deletions: Semaphore::new(FOR_DELETIONS),
            extents: Semaphore::new(FOR_EXTENTS),
            bulk: Semaphore::new(FOR_BULK),
            content: Semaphore::new(FOR_CONTENT),
            device: Semaphore::new(FOR_CONTENT),
            idle: Mutex::new(Vec::with_capacity(CONNECTIONS)),
            link: watch::Sender::new(Link::away()),
            wanted: Notify::new(),
        }));
        tokio::spawn(link::keep(Arc::downgrade(&helper.0)));
        helper
    }

    /// The helper's welcome; waits as long as it takes for the helper to come up.
    pub async fn wait(&self) -> Arc<Welcome> {
        let mut link = self.0.link.subscribe();
        loop {
            // It cannot fail: the sender is held here.
            if let Ok(link) = link.wait_for(|link| link.up().is_some()).await
                && let Some((welcome, _)) = link.up()
            {
                return welcome;
            }
        }
    }

    /// The welcome of the helper that is running now.
    ///
    /// # Errors
    /// When the helper is not running and does not come up soon.
    pub async fn welcome(&self) -> Result<Arc<Welcome>, Unreachable> {
        self.0.discard_if_hung_up();
        self.0.up().await.map(|(welcome, _)| welcome)
    }

    /// Whether the helper is connected, without waiting.
    ///
    /// # Errors
    /// Why it is not.
    pub fn check(&self) -> Result<(), Unreachable> {
        self.0.discard_if_hung_up();
        let link = self.0.link.borrow();
        link.up().map(drop).ok_or_else(|| link.reason())
    }

    /// Sends `request`; returns the reply and the file descriptor that came with it.
    async fn exchange(&self, request: &Request) -> Result<(Response, Option<OwnedFd>), CallError> {
        let _in_progress = METRICS.helper_requests_in_progress.during([]);
        let begun = Instant::now();
        let answer = self.exchange_in_turn(request).await;
        let seconds = begun.elapsed().as_secs_f64();
        METRICS.helper_requests.with([request.name(), &outcome(&answer)]).observe(seconds);
        answer
    }

    async fn exchange_in_turn(&self, request: &Request) -> Result<(Response, Option<OwnedFd>), CallError> {
        let shared = &*self.0;
        shared.up().await?;
        let turn = shared.turn(request).await;
        let answer = shared.persist(request);
        tokio::pin!(answer);
        if let Ok(answer) = timeout(HANGS, &mut answer).await {
            return answer;
        }
        drop(turn);
        answer.await
    }
}

impl Shared {
    /// Waits until this request may use a connection. It may for as long as the result exists.
    async fn turn(&self, request: &Request) -> Vec<SemaphorePermit<'_>> {
        let is_bulk = matches!(request, Request::Delta { .. } | Request::Sharing { .. });
        let turns: &[&Semaphore] = match request.row().pace {
            Pace::Prompt => &[&self.any],
            Pace::Disk if is_bulk => &[&self.bulk, &self.slow, &self.any],
            Pace::Disk => &[&self.slow, &self.any],
            Pace::Background => &[&self.deletions, &self.slow, &self.any],
            Pace::Extents => &[&self.extents, &self.slow, &self.any],
            Pace::Content => &[&self.content, &self.slow, &self.any],
            Pace::Device => &[&self.device, &self.slow, &self.any],
        };
        let mut permits = Vec::with_capacity(turns.len());
        for turn in turns {
            // They are never closed.
            permits.extend(turn.acquire().await);
        }
        permits
    }

    async fn persist(&self, request: &Request) -> Result<(Response, Option<OwnedFd>), CallError> {
        match self.attempt(request).await {
            // Every request may be repeated, so it does not matter whether the helper has seen this one.
            Err(broken) if broken.is_worth_repeating() => self.attempt(request).await,
            answer => answer,
        }
    }

    async fn attempt(&self, request: &Request) -> Result<(Response, Option<OwnedFd>), CallError> {
        let mut connection = self.take().await?;
        match connection.exchange(request).await {
            Ok(answer) => {
                self.give_back(connection);
                Ok(answer)
            }
            Err(CallError::Away(why)) => {
                self.lost(connection.generation);
                Err(CallError::Away(why))
            }
            Err(refused) => {
                self.give_back(connection);
                Err(refused)
            }
        }
    }

    /// An idle connection, or a new one.
    async fn take(&self) -> Result<Connection, Unreachable> {
        let (_, generation) = self.up().await?;
        if let Some(connection) = self.idle().pop() {
            return Ok(connection);
        }
        match Connection::open(&self.socket, generation).await {
            Ok((connection, welcome)) => {
                self.refresh(generation, welcome);
                Ok(connection)
            }
            Err(why) => {
                self.lost(generation);
                Err(why)
            }
        }
    }

    fn give_back(&self, connection: Connection) {
        let current = self.link.borrow().generation == connection.generation;
        let mut idle = self.idle();
        if current && idle.len() < CONNECTIONS {
            idle.push(connection);
        }
    }

    /// Waits for the helper; returns its welcome and the number of this run.
    async fn up(&self) -> Result<(Arc<Welcome>, u64), Unreachable> {
        if let Some(up) = self.link.borrow().up() {
            return Ok(up);
        }
        let mut link = self.link.subscribe();
        self.wanted.notify_one();
        let settled = |link: &Link| link.up().is_some() || !link.reason().is_passing();
        // Whether this timed out or not, the link has the result.
        let _ = timeout(PATIENCE, link.wait_for(settled)).await;
        let link = self.link.borrow();
        link.up().ok_or_else(|| link.reason())
    }

    /// A helper that exited while idle has closed its connections, and its welcome is then out of date.
    fn discard_if_hung_up(&self) {
        let dead = self.idle().last().filter(|connection| connection.is_hung_up()).map(|dead| dead.generation);
        if let Some(generation) = dead {
            self.lost(generation);
        }
    }

    /// Discards all connections to this run of the helper.
    fn lost(&self, generation: u64) {
        let was_up = self.link.send_if_modified(|link| link.lose(generation));
        if was_up {
            self.idle().clear();
        }
    }

    /// Records the welcome of a new connection.
    fn refresh(&self, generation: u64, welcome: Welcome) {
        self.link.send_if_modified(|link| link.refresh(generation, welcome));
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
