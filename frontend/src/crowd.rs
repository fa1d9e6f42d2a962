//! The clients that are connected to a server, and which of them leaves when there are too many.
//!
//! Whoever asks is served: a client leaves only after it has had time for its first request, and when it waits for no
//! answer. A burst of silent clients costs the next one that time once, and not once for each of them.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use tracing::warn;

/// How much longer a call may stand still before its client may leave, when all others wait for answers as well.
const PATIENCE: u32 = 10;

/// How often to look for a client that may leave.
const LOOK: Duration = Duration::from_millis(5);

/// How long the log stays silent about clients that leave after it has named one.
const SILENCE: Duration = Duration::from_secs(60);

/// What is done to end a client's connection.
pub trait Disconnect {
    /// Ends it. Both sides may still hold it for a moment.
    fn disconnect(&self);
}

/// The clients of one server.
pub struct Crowd<S> {
    most: usize,
    grace: Duration,
    connected: Vec<Weak<Client<S>>>,
    told: Option<Instant>,
}

/// A connected client.
pub struct Client<S> {
    connection: S,
    progress: Mutex<Progress>,
}

#[derive(Clone, Copy)]
struct Progress {
    calls: usize,
    /// When it connected, or a call of it last began, went on, or ended.
    at: Instant,
}

/// A call in progress.
pub struct Call<S>(Arc<Client<S>>);

impl<S: Disconnect> Crowd<S> {
    /// At most `most` clients, each with at least `grace` for its first request, and from one to the next.
    pub fn new(most: usize, grace: Duration) -> Self {
        Self { most, grace, connected: Vec::with_capacity(most), told: None }
    }

    /// Gives a place to the client of `connection` as soon as there is one. It is the client's for as long as it is held.
    pub async fn admit(&mut self, connection: S) -> Arc<Client<S>> {
        while self.is_full() && !self.dismiss().await {
            sleep(LOOK).await;
        }
        let progress = Mutex::new(Progress { calls: 0, at: Instant::now() });
        let client = Arc::new(Client { connection, progress });
        self.connected.push(Arc::downgrade(&client));
        client
    }

    fn is_full(&mut self) -> bool {
        if self.connected.len() >= self.most {
            self.connected.retain(|client| client.strong_count() > 0);
        }
        self.connected.len() >= self.most
    }

    /// Disconnects a client that may leave, if there is one.
    async fn dismiss(&mut self) -> bool {
        if self.leaver().is_none() {
            return false;
        }
        // What has arrived meanwhile is read first.
        yield_now().await;
        let Some(at) = self.leaver() else { return false };
        if let Some(client) = self.connected.swap_remove(at).upgrade() {
            client.connection.disconnect();
        }
        if self.told.is_none_or(|told| told.elapsed() >= SILENCE) {
            self.told = Some(Instant::now());
            warn!(
                "{} clients are connected: the one that has been idle longest is disconnected for another",
                self.most
            );
        }
        true
    }

    /// The client that has been idle longest, beyond its time; where all wait for answers, the one whose calls have stood
    /// still longest.
    fn leaver(&self) -> Option<usize> {
        let now = Instant::now();
        let progress = self.connected.iter().map(|client| client.upgrade().map(|client| *client.progress()));
        let may_leave = progress.enumerate().filter_map(|(at, progress)| {
            let Some(progress) = progress else { return Some((false, None, at)) };
            let is_busy = progress.calls > 0;
            let time = if is_busy { self.grace.saturating_mul(PATIENCE) } else { self.grace };
            (now.duration_since(progress.at) >= time).then_some((is_busy, Some(progress.at), at))
        });
        may_leave.min().map(|(_, _, at)| at)
    }
}

impl<S> Client<S> {
    /// A call of this client begins.
    pub fn call(self: &Arc<Self>) -> Call<S> {
        let mut progress = self.progress();
        *progress = Progress { calls: progress.calls.saturating_add(1), at: Instant::now() };
        drop(progress);
        Call(Arc::clone(self))
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Deref for Client<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.connection
    }
}

impl<S> Call<S> {
    /// Whose it is.
    pub fn client(&self) -> &S {
        &self.0.connection
    }

    /// A part of the answer is taken.
    pub fn goes_on(&self) {
        self.0.progress().at = Instant::now();
    }
}

impl<S> Drop for Call<S> {
    fn drop(&mut self) {
        let mut progress = self.0.progress();
        *progress = Progress { calls: progress.calls.saturating_sub(1), at: Instant::now() };
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Notify;
    use tokio::time::timeout;

    use super::*;

    const GRACE: Duration = Duration::from_millis(500);

    async fn is_disconnected(client: &Client<Notify>) -> bool {
        timeout(Duration::from_millis(1), client.notified()).await.is_ok()
    }

    async fn four() -> (Crowd<Notify>, Vec<Arc<Client<Notify>>>) {
        four_with(GRACE).await
    }

    async fn four_with(grace: Duration) -> (Crowd<Notify>, Vec<Arc<Client<Notify>>>) {
        let (mut crowd, mut clients) = (Crowd::new(4, grace), Vec::new());
        for _ in 0..4 {
            clients.push(crowd.admit(Notify::new()).await);
        }
        (crowd, clients)
    }

    #[tokio::test]
    async fn a_burst_of_idle_clients_is_waited_for_once() {
        let (mut crowd, clients) = four().await;
        let begun = Instant::now();
        let mut others = Vec::new();
        for _ in 0..4 {
            others.push(crowd.admit(Notify::new()).await);
        }
        assert!(begun.elapsed() >= GRACE && begun.elapsed() < 4 * GRACE, "{:?}", begun.elapsed());
        for client in &clients {
            assert!(is_disconnected(client).await);
        }
        for other in &others {
            assert!(!is_disconnected(other).await, "it has not had its time");
        }
    }

    #[tokio::test]
    async fn who_waits_for_an_answer_stays_unless_all_do() {
        let (mut crowd, clients) = four().await;
        let calls: Vec<_> = clients[..3].iter().map(Client::call).collect();
        let one_more = crowd.admit(Notify::new()).await;
        assert!(is_disconnected(&clients[3]).await, "it has asked for nothing");
        let _its_call = one_more.call();
        sleep(GRACE * PATIENCE / 2).await;
        calls[0].goes_on();
        let _another = crowd.admit(Notify::new()).await;
        assert!(is_disconnected(&clients[1]).await, "its call stands still");
        assert!(!is_disconnected(&clients[0]).await, "its call goes on");
    }

    #[tokio::test]
    async fn a_place_that_is_left_is_taken_at_once() {
        let (mut crowd, mut clients) = four_with(60 * GRACE).await;
        clients.remove(2);
        let begun = Instant::now();
        let _one_more = crowd.admit(Notify::new()).await;
        assert!(begun.elapsed() < 60 * GRACE, "{:?}", begun.elapsed());
        for client in &clients {
            assert!(!is_disconnected(client).await);
        }
    }
}
