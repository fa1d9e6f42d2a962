//! How many calls there may be, and for how long. Those whose callers are not known yet have places of their own, so that
//! they keep out no other calls than the like of them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, mpsc};
use tokio::time::{Instant, sleep_until, timeout};
use tonic::Status;

use crate::crowd::Call;

/// How many callers may wait to be known, and how many of them the API server is asked about at a time.
const WAITING: usize = 32;
const ASKED_ABOUT: usize = 4;

/// How long it takes at least from one of these to the next: anyone may send a token, and each costs the API server some
/// requests.
const PAUSE: Duration = Duration::from_millis(100);

/// How many calls may be in progress, and how many of them for the snapshots of one namespace.
const CALLS: usize = 32;
const IN_A_NAMESPACE: usize = 8;

/// How long an answer may take. A client continues at an offset.
const LIMITS: Limits = Limits { whole: Duration::from_secs(600), unread: Duration::from_secs(60) };

/// How long an answer may take.
#[derive(Clone, Copy)]
struct Limits {
    /// As a whole.
    whole: Duration,
    /// Until somebody reads the next part.
    unread: Duration,
}

/// The messages of an answer.
pub type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The places.
pub struct Places {
    waiting: Semaphore,
    asked_about: Semaphore,
    /// When the next caller may be asked about.
    next: tokio::sync::Mutex<Instant>,
    calls: Arc<Semaphore>,
    namespaces: Arc<Mutex<HashMap<String, usize>>>,
}

/// The turn of a caller to be asked about.
pub struct Turn<'a>(#[allow(dead_code, reason = "they are held")] [SemaphorePermit<'a>; 2]);

/// A call's place.
pub struct Place {
    _call: OwnedSemaphorePermit,
    namespace: String,
    namespaces: Arc<Mutex<HashMap<String, usize>>>,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            waiting: Semaphore::new(WAITING),
            asked_about: Semaphore::new(ASKED_ABOUT),
            next: tokio::sync::Mutex::new(Instant::now()),
            calls: Arc::new(Semaphore::new(CALLS)),
            namespaces: Arc::default(),
        }
    }
}

impl Places {
    /// Waits for the turn of a caller that is not known yet.
    ///
    /// # Errors
    /// When too many wait already.
    pub async fn turn(&self) -> Result<Turn<'_>, Status> {
        let crowded =
            |_| Status::resource_exhausted("too many callers wait for the API server already: try again later");
        let waiting = self.waiting.try_acquire().map_err(crowded)?;
        let closed = |_| Status::internal("the service is ending");
        let asked_about = self.asked_about.acquire().await.map_err(closed)?;
        let mut next = self.next.lock().await;
        sleep_until(*next).await;
        *next = Instant::now() + PAUSE;
        Ok(Turn([waiting, asked_about]))
    }

    /// Gives a place to a call for snapshots of `namespace`.
    ///
    /// # Errors
    /// When there is none.
    pub fn enter(&self, namespace: &str) -> Result<Place, Status> {
        let crowded = |of: &str| {
            Status::resource_exhausted(format!("{of} has as many calls in progress as it may have: try again later"))
        };
        let call = Arc::clone(&self.calls).try_acquire_owned().map_err(|_| crowded("the service"))?;
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = namespaces.entry(namespace.to_owned()).or_default();
        if *calls >= IN_A_NAMESPACE {
            return Err(crowded("the namespace"));
        }
        *calls += 1;
        Ok(Place { _call: call, namespace: namespace.to_owned(), namespaces: Arc::clone(&self.namespaces) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(calls) = namespaces.get_mut(&self.namespace) {
            *calls -= 1;
            if *calls == 0 {
                namespaces.remove(&self.namespace);
            }
        }
    }
}

/// `messages`, which have `place` and belong to `call`, for as long as somebody reads them in time. Whoever was cut off is
/// told: what looks complete has to be.
pub fn in_time<T: Send + 'static>(
    messages: impl Stream<Item = Result<T, Status>> + Send + 'static,
    place: Place,
    call: Option<Call<OwnedFd>>,
) -> Messages<T> {
    within(LIMITS, messages, place, call)
}

fn within<T: Send + 'static>(
    limits: Limits,
    messages: impl Stream<Item = Result<T, Status>> + Send + 'static,
    place: Place,
    call: Option<Call<OwnedFd>>,
) -> Messages<T> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        tokio::select! {
            () = sender.closed() => {}
            // If it is over, the reader finds no end.
            _ = timeout(limits.whole, carry(messages, &sender, limits.unread, call.as_ref())) => {}
        }
        drop(place);
    });
    let messages = stream::unfold(Some(receiver), |receiver: Option<mpsc::Receiver<_>>| async {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Some(Some(message)) => Some((message, Some(receiver))),
            Some(None) => None,
            None => {
                let why =
                    "the answer took too long, or was not read: call again, with what was read as starting_offset";
                Some((Err(Status::aborted(why)), None))
            }
        }
    });
    Box::pin(messages)
}

/// Hands on the messages and then, as `None`, that they are complete.
async fn carry<T>(
    messages: impl Stream<Item = Result<T, Status>>,
    sender: &mpsc::Sender<Option<Result<T, Status>>>,
    unread: Duration,
    call: Option<&Call<OwnedFd>>,
) {
    let messages = messages.map(Some).chain(stream::iter([None]));
    let mut messages = std::pin::pin!(messages);
    while let Some(message) = messages.next().await {
        if !matches!(timeout(unread, sender.send(message)).await, Ok(Ok(()))) {
            return;
        }
        if let Some(call) = call {
            call.goes_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::pending;

    use super::*;

    #[tokio::test]
    async fn a_namespace_has_its_part_and_others_the_rest() {
        let places = Places::default();
        let mut held: Vec<_> = (0..IN_A_NAMESPACE).map(|_| places.enter("shop").unwrap()).collect();
        let refused = places.enter("shop").err().unwrap();
        assert!(refused.code() == tonic::Code::ResourceExhausted && refused.message().starts_with("the namespace"));
        held.extend((IN_A_NAMESPACE..CALLS).map(|number| places.enter(&format!("other-{number}")).unwrap()));
        assert!(places.enter("one-more").err().unwrap().message().starts_with("the service"));
        drop(held);
        assert!(places.namespaces.lock().unwrap().is_empty());
        places.enter("shop").unwrap();
    }

    #[tokio::test]
    async fn who_waits_to_be_known_keeps_out_no_more_than_the_like() {
        let places = Places::default();
        let mut turns = Vec::new();
        for _ in 0..ASKED_ABOUT {
            turns.push(places.turn().await.unwrap());
        }
        let waiting: Vec<_> = (ASKED_ABOUT..WAITING).map(|_| Box::pin(places.turn())).collect();
        let waiting = futures::future::select_all(waiting);
        assert!(timeout(PAUSE, waiting).await.is_err());
        let _call = places.enter("shop").unwrap();
        turns.pop();
        places.turn().await.unwrap();
    }

    #[tokio::test]
    async fn an_answer_ends_or_says_that_it_is_cut_off() {
        let places = Places::default();
        let place = || places.enter("shop").unwrap();
        let is_free = || places.namespaces.lock().unwrap().is_empty();
        let parts = || stream::iter([1, 2]).map(Ok);
        let whole: Vec<_> = in_time(parts(), place(), None).collect().await;
        assert!(matches!(whole[..], [Ok(1), Ok(2)]), "{whole:?}");
        let (short, long) = (Duration::from_millis(20), Duration::from_secs(600));
        let limits = Limits { whole: short, unread: long };
        let endless = parts().chain(stream::once(pending()));
        let cut: Vec<_> = within(limits, endless, place(), None).collect().await;
        assert!(matches!(&cut[..], [Ok(1), Ok(2), Err(why)] if why.code() == tonic::Code::Aborted), "{cut:?}");
        let limits = Limits { whole: long, unread: short };
        let mut unread = within(limits, stream::repeat_with(|| Ok(1)), place(), None);
        while !is_free() {
            tokio::time::sleep(short).await;
        }
        assert!(matches!(unread.next().await, Some(Ok(1))));
        assert!(matches!(unread.next().await, Some(Err(_))) && unread.next().await.is_none());
        drop(in_time(stream::once(pending::<Result<u8, Status>>()), place(), None));
        while !is_free() {
            tokio::time::sleep(short).await;
        }
    }
}
