//! How fast an agent sends: one measure for all its requests, whatever they are for. A server that refuses one, or does not
//! answer it, slows the agent, and not only the work that the request was for.
//!
//! The rate is halved when the server is overloaded and grows with each answer, so that all agents together find what
//! the server bears. The measure also knows how long answers take lately.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{Request, Response, StatusCode};
use kube::client::{Body, DynBody};
use tokio::time::{Instant, sleep, timeout};
use tower::ServiceExt;

use super::between::{Answer, Between, Server};
use super::failure::LONGEST_REST;
use super::instrument::{resource, verb};

/// The most requests a second, and how many may be sent at once after a rest. A controller manager makes 20 a second.
const FASTEST: f64 = 200.0;
const BURST: f64 = 200.0;

/// The fewest a second.
const SLOWEST: f64 = 0.5;

/// How long a request waits for its turn at most.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How soon to ask again at least whether one may be sent.
const SHORTEST: Duration = Duration::from_millis(100);

/// How long a request without an answer has been waited for when that means that the server is overloaded.
const IN_VAIN: Duration = Duration::from_secs(5);

/// The agent sends as much as it may, and another request has waited for too long.
#[derive(Debug, thiserror::Error)]
#[error(
    "the API server is overloaded, so the agent sends little, and this request was not sent within {} seconds",
    LONGEST_WAIT.as_secs()
)]
struct Crowded;

/// The measure. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    measure: Arc<Mutex<Measure>>,
    /// Held by the first of those who wait, for whom the others wait.
    first: Arc<tokio::sync::Mutex<()>>,
}

impl Pace {
    /// Returns how long until a request could be sent at once; `None` if one can be now.
    pub fn pause(&self) -> Option<Duration> {
        let is_awaited = self.first.try_lock().is_err().then_some(SHORTEST);
        self.measure().pause(Instant::now()).map(|pause| pause.max(SHORTEST)).or(is_awaited)
    }

    /// Returns how long the server has lately taken to answer.
    pub fn latency(&self) -> Duration {
        self.measure().latency()
    }

    /// Waits until a request may be sent.
    async fn turn(&self) {
        let _first = self.first.lock().await;
        loop {
            let pause = self.measure().pause(Instant::now());
            match pause {
                Some(pause) => sleep(pause).await,
                None => break,
            }
        }
        self.measure().send();
    }

    fn measure(&self) -> MutexGuard<'_, Measure> {
        self.measure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The server has dealt with it, whatever it said.
    Answered,
    /// The server had no time for it, and asks for this much rest.
    Refused(Duration),
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Measure {
    rate: f64,
    tokens: f64,
    counted: Instant,
    /// When the rate was last halved. What was sent before that says nothing about the new one.
    slowed: Option<Instant>,
    rest_until: Option<Instant>,
    latency: Duration,
}

impl Default for Measure {
    fn default() -> Self {
        let counted = Instant::now();
        Self { rate: FASTEST, tokens: BURST, counted, slowed: None, rest_until: None, latency: Duration::ZERO }
    }
}

impl Measure {
    /// Returns how long answers take.
    pub fn latency(&self) -> Duration {
        self.latency
    }

    /// Returns how long until a request may be sent; `None` if one may be `now`.
    pub fn pause(&mut self, now: Instant) -> Option<Duration> {
        let grown = self.rate * now.saturating_duration_since(self.counted).as_secs_f64();
        self.tokens = (self.tokens + grown).min(BURST);
        self.counted = self.counted.max(now);
        let rest = self.rest_until.map(|until| until.saturating_duration_since(now)).filter(|rest| !rest.is_zero());
        let missing = (self.tokens < 1.0).then(|| Duration::from_secs_f64((1.0 - self.tokens) / self.rate));
        rest.max(missing.map(|missing| missing.max(Duration::from_millis(1))))
    }

    /// Counts a request. One that does not wait, as those that are few whatever happens, is made up for by the next.
    pub fn send(&mut self) {
        self.tokens = (self.tokens - 1.0).max(-BURST);
    }

    /// Takes in how a request ended that was `sent` then.
    pub fn ended(&mut self, sent: Instant, now: Instant, how: Ended) {
        let took = now.saturating_duration_since(sent);
        // It is believed at once that it takes longer, and only later that it does not.
        self.latency = took.max(self.latency * 3 / 4 + took / 4);
        match how {
            Ended::Answered => self.rate = (self.rate + 1.0).min(FASTEST),
            Ended::Refused(rest) => {
                if self.slowed.is_none_or(|slowed| sent >= slowed) {
                    self.pause(now);
                    self.rate = (self.rate / 2.0).max(SLOWEST);
                    self.tokens = self.tokens.min(0.0);
                    self.slowed = Some(now);
                }
                self.rest_until = self.rest_until.max(Some(now + rest.min(LONGEST_REST)));
            }
        }
    }
}

/// A client's requests are sent at this pace.
impl Between for Pace {
    async fn answer<S: Server>(self, mut server: S, request: Request<Body>) -> Answer {
        if is_few(&request) {
            self.measure().send();
        } else {
            timeout(LONGEST_WAIT, self.turn()).await.map_err(|_| Crowded)?;
        }
        let mut sent = Sent { pace: self, at: Instant::now(), ended: None };
        let answer = server.ready().await?.call(request).await;
        sent.ended = answer.as_ref().ok().map(ended);
        answer
    }
}

/// A request that was sent.
struct Sent {
    pace: Pace,
    at: Instant,
    /// `None` without an answer, also if nobody waits for it any more.
    ended: Option<Ended>,
}

impl Drop for Sent {
    fn drop(&mut self) {
        let now = Instant::now();
        // A server that is not there is not overloaded.
        let in_vain = now.saturating_duration_since(self.at) >= IN_VAIN;
        if let Some(ended) = self.ended.or(in_vain.then_some(Ended::Refused(Duration::ZERO))) {
            self.pace.measure().ended(self.at, now, ended);
        }
    }
}

/// Returns whether a request is one of those that are few whatever happens, and by which the agent knows what happens, or
/// others that it works: watches, and its Lease.
fn is_few(request: &Request<Body>) -> bool {
    verb(request) == "watch" || resource(request.uri().path()) == "leases"
}

fn ended(answer: &Response<Box<DynBody>>) -> Ended {
    let is_overload = matches!(
        answer.status(),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    );
    let seconds = answer.headers().get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok()?.parse().ok());
    match seconds {
        seconds if is_overload => Ended::Refused(Duration::from_secs(seconds.unwrap_or_default())),
        _ => Ended::Answered,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use http_body_util::{BodyExt, Full};
    use tower::{BoxError, Layer, service_fn};

    use super::super::between::BetweenLayer;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// How many requests are sent in `seconds` by an agent that has any number of them, if each ends like this.
    fn sent(measure: &mut Measure, begun: Instant, seconds: u32, how: Ended) -> usize {
        let (mut now, mut number) = (begun, 0);
        while now < begun + SECOND * seconds {
            match measure.pause(now) {
                Some(pause) => now += pause,
                None => {
                    measure.send();
                    measure.ended(now, now, how);
                    number += 1;
                }
            }
        }
        number
    }

    #[test]
    fn an_agent_sends_no_more_than_its_rate_and_less_to_a_server_that_refuses() {
        let (mut measure, begun) = (Measure::default(), Instant::now());
        let free = sent(&mut measure, begun, 10, Ended::Answered);
        assert!((2000..=2210).contains(&free), "{free}");
        let refused = sent(&mut measure, begun + 10 * SECOND, 60, Ended::Refused(Duration::ZERO));
        assert!((25..=45).contains(&refused), "{refused}: one in two seconds, once it is slow");
        let resting = sent(&mut measure, begun + 70 * SECOND, 60, Ended::Refused(10 * SECOND));
        assert!(resting <= 7, "{resting}");
        let again = sent(&mut measure, begun + 140 * SECOND, 20, Ended::Answered);
        assert!((2000..=4210).contains(&again), "{again}: it recovers within seconds");
    }

    #[test]
    fn what_was_sent_before_it_slowed_down_does_not_slow_it_again() {
        let (mut measure, begun) = (Measure::default(), Instant::now());
        for late in 1..=20 {
            measure.ended(begun, begun + SECOND + Duration::from_millis(late), Ended::Refused(Duration::ZERO));
        }
        assert!((measure.rate - FASTEST / 2.0).abs() < 1.0, "{measure:?}");
        assert!(measure.latency > SECOND);
    }

    #[tokio::test]
    async fn what_refuses_one_request_delays_all_others() {
        let reached = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reached);
        let server = service_fn(move |_: Request<Body>| {
            let is_first = counted.fetch_add(1, Ordering::Relaxed) == 0;
            let body: Box<DynBody> = Box::new(Full::from("").map_err(|never| match never {}));
            let answer = Response::builder().status(if is_first { 429 } else { 200 }).header(RETRY_AFTER, "3");
            std::future::ready(Ok::<_, BoxError>(answer.body(body).unwrap()))
        });
        let pace = Pace::default();
        let paced = BetweenLayer(pace.clone()).layer(server);
        let request = |uri: &str| paced.clone().oneshot(Request::get(uri).body(Body::empty()).unwrap());
        let begun = Instant::now();
        assert_eq!(request("/api/v1/persistentvolumes/a").await.unwrap().status(), 429);
        assert!(pace.pause().is_some());
        request("/apis/coordination.k8s.io/v1/namespaces/n/leases/here").await.unwrap();
        assert!(begun.elapsed() < 2 * SECOND, "others see by it that the agent works");
        join_all((0..5).map(|_| request("/api/v1/persistentvolumes/b"))).await;
        assert!(begun.elapsed() >= 3 * SECOND && reached.load(Ordering::Relaxed) == 7);
    }
}
