//! One budget of bytes for all clients of a server: what they have sent of calls that are not answered yet, and what they
//! have not read of their answers.
//!
//! A client within its share is always served. Beyond it, while the budget is spent, its answers wait until it reads, and
//! its requests are refused: who does not read keeps only itself waiting.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::net::UnixStream;

use crate::crowd::Disconnect;

/// The bytes of all clients.
const BUDGET: usize = 32 << 20;

/// The bytes that each may have even so: a moment's worth for one that reads.
const SHARE: usize = 64 << 10;

/// The bytes that are held for all clients of a server.
#[derive(Clone, Default)]
pub struct Budget(Arc<AtomicUsize>);

/// A client's connection with the bytes that are held for it.
pub struct Metered {
    stream: UnixStream,
    held: Mutex<Held>,
    all: Budget,
}

#[derive(Default)]
struct Held {
    unread: usize,
    unanswered: usize,
    /// The answers that wait until some of it is read.
    waiting: Vec<Waker>,
}

impl Metered {
    /// A connection for which nothing is held yet.
    pub fn new(stream: UnixStream, all: Budget) -> Self {
        Self { stream, held: Mutex::default(), all }
    }

    /// Waits until a further part of an answer may be made.
    pub fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        let mut held = self.held();
        if held.unread < SHARE || self.all.is_left() {
            return Poll::Ready(());
        }
        if !held.waiting.iter().any(|waiting| waiting.will_wake(context.waker())) {
            held.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// A part of an answer has been made.
    pub fn made(&self, bytes: usize) {
        self.held().unread += bytes;
        self.all.0.fetch_add(bytes, Relaxed);
    }

    /// The client has been sent so much.
    pub fn sent(&self, bytes: usize) {
        let mut held = self.held();
        let less = bytes.min(held.unread);
        held.unread -= less;
        self.all.0.fetch_sub(less, Relaxed);
        held.waiting.drain(..).for_each(Waker::wake);
    }

    /// A part of a request has come; returns whether it may stay. Until [`Self::answered`], it counts.
    pub fn came(&self, bytes: usize) -> bool {
        let mut held = self.held();
        held.unanswered += bytes;
        self.all.0.fetch_add(bytes, Relaxed);
        held.unanswered <= SHARE || self.all.is_left()
    }

    /// The call that came with so many bytes is over.
    pub fn answered(&self, bytes: usize) {
        self.held().unanswered -= bytes;
        self.all.0.fetch_sub(bytes, Relaxed);
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Budget {
    fn is_left(&self) -> bool {
        self.0.load(Relaxed) < BUDGET
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.all.0.fetch_sub(held.unread + held.unanswered, Relaxed);
    }
}

impl Deref for Metered {
    type Target = UnixStream;

    fn deref(&self) -> &UnixStream {
        &self.stream
    }
}

impl Disconnect for Metered {
    fn disconnect(&self) {
        self.stream.disconnect();
    }
}

#[cfg(test)]
mod tests {
    use futures::task::noop_waker;

    use super::*;

    #[tokio::test]
    async fn who_does_not_read_waits_and_who_reads_does_not() {
        let all = Budget::default();
        let [idle, reading] = [(); 2].map(|()| Metered::new(UnixStream::pair().unwrap().0, all.clone()));
        let waker = noop_waker();
        let context = Context::from_waker(&waker);
        let mut made = 0;
        while idle.poll_room(&context).is_ready() {
            idle.made(4096);
            made += 4096;
        }
        assert_eq!(made, BUDGET);
        for _ in 0..1000 {
            assert!(reading.poll_room(&context).is_ready());
            reading.made(SHARE);
            assert!(reading.poll_room(&context).is_pending());
            reading.sent(SHARE);
        }
        assert!(reading.came(SHARE) && !reading.came(1), "beyond its share");
        reading.answered(SHARE + 1);
        // Frames' heads are sent as well.
        idle.sent(2 * BUDGET);
        assert!(idle.poll_room(&context).is_ready());
        idle.made(5);
        assert!(idle.came(6));
        drop((idle, reading));
        assert_eq!(all.0.load(Relaxed), 0);
    }
}
