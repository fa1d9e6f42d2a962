//! The clients of a listening socket, no more and no faster than the process can bear: whoever connects is trusted, but
//! may have a fault, and the only thread has other work as well.

use std::future::{pending, poll_fn};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::{Stream, stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tonic::transport::server::Connected;
use tracing::warn;

use super::budget::{Budget, Metered};
use crate::crowd::{self, Crowd, Disconnect};

/// How many clients may be connected at a time. A kubelet makes a connection for each call.
const CLIENTS: usize = 256;

/// How long a client may be idle before one more takes its place.
const GRACE: Duration = Duration::from_secs(1);

/// How many clients may connect at once. After that, one each millisecond: setting up a connection takes a tenth of one.
const AT_ONCE: u32 = 64;

/// How often to look whether the socket can still be connected to while nobody comes.
const LOOK: Duration = Duration::from_secs(1);

/// How long to wait after an error that passes.
const REST: Duration = Duration::from_secs(1);

/// A connected client, and what a call knows of the one that made it.
#[derive(Clone)]
pub struct Client(Arc<crowd::Client<Metered>>);

/// Accepts clients.
struct Clients {
    listener: UnixListener,
    connected: Crowd<Metered>,
    budget: Budget,
    pace: Pace,
    dead: Option<oneshot::Sender<io::Error>>,
}

/// The clients that connect to `listener`. When nobody can connect to it any more, `dead` is told why, and no more come.
pub fn accept(listener: UnixListener, dead: oneshot::Sender<io::Error>) -> impl Stream<Item = io::Result<Client>> {
    let clients = Clients {
        listener,
        connected: Crowd::new(CLIENTS, GRACE),
        budget: Budget::default(),
        pace: Pace::new(Instant::now()),
        dead: Some(dead),
    };
    stream::unfold(clients, |mut clients| async move {
        let client = clients.next().await;
        Some((Ok(client), clients))
    })
}

impl Clients {
    async fn next(&mut self) -> Client {
        loop {
            while !self.pace.allows(Instant::now()) {
                sleep(Duration::from_millis(1)).await;
            }
            match self.connection().await {
                Ok(stream) => {
                    let connection = Metered::new(stream, self.budget.clone());
                    return Client(self.connected.admit(connection).await);
                }
                Err(error) if passes(&error) => {
                    warn!("cannot accept a client at the moment: {error}");
                    sleep(REST).await;
                }
                Err(error) => {
                    if let Some(dead) = self.dead.take() {
                        // Nobody listens any more if the server is stopping.
                        let _ = dead.send(error);
                    }
                    return pending().await;
                }
            }
        }
    }

    /// The next client's connection.
    async fn connection(&self) -> io::Result<UnixStream> {
        loop {
            tokio::select! {
                // A socket that was shut down is always readable, but accept(2) says only that nobody is waiting. While
                // tokio's `accept` tries it, nothing else gets a turn.
                biased;
                () = sleep(LOOK) => if is_shut_down(&self.listener) {
                    return Err(io::Error::other("it was shut down"));
                },
                accepted = poll_fn(|context| self.listener.poll_accept(context)) => {
                    return accepted.map(|(stream, _)| stream);
                }
            }
        }
    }
}

impl Disconnect for UnixStream {
    fn disconnect(&self) {
        // This fails if the client is gone, which is as good.
        let _ = shutdown(self, Shutdown::Both);
    }
}

impl Client {
    /// A call of this client begins.
    pub fn call(&self) -> crowd::Call<Metered> {
        self.0.call()
    }
}

/// Returns whether nobody can connect to the socket any more.
fn is_shut_down(listener: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&listener, PollFlags::RDHUP)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|found| found > 0)
}

/// Returns whether a later attempt may succeed (accept(2)): the client has left, or something has run out.
fn passes(error: &io::Error) -> bool {
    let exhausted = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].map(Errno::raw_os_error);
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted)
        || error.raw_os_error().is_some_and(|errno| exhausted.contains(&errno))
}

/// How fast clients are accepted.
struct Pace {
    left: u32,
    at: Instant,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self { left: AT_ONCE, at: now }
    }

    /// Returns whether one may be accepted now; if so, it counts.
    fn allows(&mut self, now: Instant) -> bool {
        let passed = u32::try_from(now.duration_since(self.at).as_millis()).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(passed).min(AT_ONCE);
        self.at += Duration::from_millis(passed.into());
        self.left = match self.left.checked_sub(1) {
            Some(left) => left,
            None => return false,
        };
        true
    }
}

impl Connected for Client {
    type ConnectInfo = Self;

    fn connect_info(&self) -> Self {
        self.clone()
    }
}

impl AsyncRead for Client {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            match self.0.try_read(buffer.initialize_unfilled()) {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Client {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match self.0.try_write_vectored(parts) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                outcome => {
                    self.0.sent(*outcome.as_ref().unwrap_or(&0));
                    return Poll::Ready(outcome);
                }
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The other side may have left already.
        let _ = shutdown(&***self.0, Shutdown::Write);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::*;

    fn listen() -> (tempfile::TempDir, std::path::PathBuf, UnixListener) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        (directory, path, listener)
    }

    #[test]
    fn a_burst_is_accepted_at_once_and_a_flood_is_not() {
        let begun = Instant::now();
        let mut pace = Pace::new(begun);
        let accepted_at = |pace: &mut Pace, at: u64| {
            let now = begun + Duration::from_millis(at);
            (0..10_000).take_while(|_| pace.allows(now)).count()
        };
        let found: Vec<_> = [0, 0, 1, 6, 1000].map(|at| accepted_at(&mut pace, at)).into();
        assert_eq!(found, [64, 0, 1, 5, 64]);
    }

    #[tokio::test]
    async fn a_client_is_heard_and_answered() {
        let (_directory, path, listener) = listen();
        let mut clients = std::pin::pin!(accept(listener, oneshot::channel().0));
        let mut near = UnixStream::connect(&path).await.unwrap();
        let mut far = clients.next().await.unwrap().unwrap();
        near.write_all(b"question").await.unwrap();
        let mut question = [0; 8];
        far.read_exact(&mut question).await.unwrap();
        far.write_all(b"answer").await.unwrap();
        far.shutdown().await.unwrap();
        let mut answer = String::new();
        near.read_to_string(&mut answer).await.unwrap();
        assert_eq!((&question, answer.as_str()), (b"question", "answer"));
    }

    #[tokio::test]
    async fn one_too_many_takes_the_place_of_an_idle_one() {
        let (_directory, path, listener) = listen();
        let mut clients = std::pin::pin!(accept(listener, oneshot::channel().0));
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for _ in 0..CLIENTS {
            near.push(UnixStream::connect(&path).await.unwrap());
            far.push(clients.next().await.unwrap().unwrap());
        }
        let _one_more = UnixStream::connect(&path).await.unwrap();
        clients.next().await.unwrap().unwrap();
        assert_eq!(far[0].read(&mut [0]).await.unwrap(), 0, "it is disconnected");
        let waited = timeout(Duration::from_millis(100), far[1].read(&mut [0])).await;
        assert!(waited.is_err(), "{waited:?}");
    }

    #[tokio::test]
    async fn a_socket_that_was_shut_down_is_dead() {
        let (_directory, _, listener) = listen();
        let (dead, death) = oneshot::channel();
        shutdown(&listener, Shutdown::Both).unwrap();
        let mut clients = std::pin::pin!(accept(listener, dead));
        let found = timeout(2 * LOOK, clients.next()).await;
        assert!(found.is_err(), "nobody comes any more");
        assert_eq!(death.await.unwrap().to_string(), "it was shut down");
    }
}
