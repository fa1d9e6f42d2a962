//! Metrics, findings and probes over HTTP, for anyone who can reach the address: nothing here changes anything, and nothing is
//! secret.
//!
//! It is served by the runtime that does all other work, so that an answer to /healthz means that the runtime is making
//! progress. The clients are accepted here and not by a framework, whose server would let silent ones keep out the kubelet.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_model::findings::Findings;
use bulkhead_model::printable::printable;
use bulkhead_model::volumes::Fault;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Notify, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::crowd::{Client, Crowd, Disconnect};
use crate::export;
use crate::helper::Helper;
use crate::listening::{ListenAddress, ListenError};
use crate::metrics::process::Process;
use crate::metrics::{METRICS, TEXT};
use crate::readiness::{LONGEST_REASON, Part, Readiness};
use crate::volumes::{Health, Volumes};

/// How long a client may take, from its connection to the end of the answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many clients may be connected at a time. One more takes the place of one that is silent: so many can come each
/// [`GRACE`] without keeping a probe out.
const CLIENTS: usize = 512;

/// How long a client may be silent before one more takes its place.
const GRACE: Duration = Duration::from_millis(100);

/// How long an answer may be reused, the helper's as well as the metrics. Anyone who can reach the port may ask, each
/// request to the helper adds a line to its audit log, and writing the metrics keeps the only thread busy for
/// milliseconds.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// How many volumes a page of them has, and how long it takes at least from one page to the next.
const EXPORTED: usize = 250;
/// How many requests may wait for a page: what one may take is enough for all of them.
const EXPORT_WAITERS: usize = 16;
/// See [`EXPORTED`].
const EXPORT_PAUSE: Duration = Duration::from_millis(500);

/// What is needed to serve them cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum MonitoringError {
    /// The address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The files of this process in /proc cannot be opened.
    #[error("cannot open this process's files in /proc: {0}; without --metrics-address they are not needed")]
    Process(io::Error),
}

/// What is opened before entering the sandbox, in which this process can neither open these files nor listen.
#[derive(Debug)]
pub struct Monitoring {
    listener: TcpListener,
    process: Process,
}

impl Monitoring {
    /// Starts listening.
    ///
    /// # Errors
    /// See [`MonitoringError`].
    pub fn open(at: ListenAddress) -> Result<Self, MonitoringError> {
        let listener = at.listen("metrics and probes")?;
        let process = Process::open().map_err(MonitoringError::Process)?;
        Ok(Self { listener, process })
    }

    /// Serves for as long as it is polled. Whose `volumes` are is served only if `shares_owners`.
    pub async fn serve(self, helper: Helper, readiness: Readiness, volumes: Volumes, shares_owners: bool) {
        let listener = match tokio::net::TcpListener::from_std(self.listener) {
            Ok(listener) => listener,
            Err(error) => return warn!("metrics and probes are not served: {error}"),
        };
        if let Ok(address) = listener.local_addr() {
            info!(%address, "serving metrics and probes");
        }
        let process = self.process;
        let shared = Arc::new(Shared {
            helper,
            readiness,
            health: volumes.health(),
            process,
            volumes,
            shares_owners,
            exporting: Mutex::default(),
            export_waiters: Semaphore::new(EXPORT_WAITERS),
            helper_answered: Mutex::default(),
            written: Mutex::default(),
        });
        let mut clients = Crowd::new(CLIENTS, GRACE);
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                // The client is already gone, or no descriptors are left.
                Err(_) => {
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let client = clients.admit(Notify::new()).await;
            tokio::spawn(serve_one(stream, client, Arc::clone(&shared)));
        }
    }
}

struct Shared {
    helper: Helper,
    readiness: Readiness,
    health: watch::Receiver<Health>,
    process: Process,
    volumes: Volumes,
    /// Whether it is served whose they are.
    shares_owners: bool,
    /// Locked while a page of volumes or snapshots is made.
    exporting: Mutex<()>,
    export_waiters: Semaphore,
    /// When the helper last answered, or failed to. Locked while it is asked, so that concurrent requests share one
    /// answer.
    helper_answered: Mutex<Option<Instant>>,
    /// The metrics as they were last written, and when.
    written: Mutex<Option<(Instant, Bytes)>>,
}

async fn serve_one(stream: TcpStream, client: Arc<Client<Notify>>, shared: Arc<Shared>) {
    let service = service_fn(|request| {
        let (shared, call) = (Arc::clone(&shared), client.call());
        async move {
            let answer = answer(&request, &shared).await;
            drop(call);
            Ok::<_, Infallible>(answer)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).keep_alive(false).max_buf_size(8192);
    let served = timeout(PATIENCE, http.serve_connection(TokioIo::new(stream), service));
    // A client that does not speak HTTP, or leaves early, is not worth reporting.
    tokio::select! {
        _ = served => {}
        () = client.notified() => {}
    }
}

impl Disconnect for Notify {
    fn disconnect(&self) {
        self.notify_one();
    }
}

async fn answer(request: &Request<Incoming>, shared: &Shared) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n");
        refusal.headers_mut().insert(ALLOW, http::HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match request.uri().path() {
        "/metrics" => {
            let mut metrics = text(StatusCode::OK, written(shared).await);
            metrics.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(TEXT));
            metrics
        }
        "/volumes" => {
            let findings = Findings::from(&*shared.health.borrow());
            json(&findings)
        }
        "/volumes/owners" => owners(shared, request.uri().query().unwrap_or_default()).await,
        "/snapshots" => snapshots(shared, request.uri().query().unwrap_or_default()).await,
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" => {
            look_at_helper(shared).await;
            let (is_ready, report) = shared.readiness.report();
            let report = unserved_pools(&shared.health.borrow()) + &report;
            text(if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, report)
        }
        _ => text(
            StatusCode::NOT_FOUND,
            "/metrics, /volumes, /volumes/owners, /snapshots, /healthz and /readyz are served here\n",
        ),
    }
}

/// A line about each pool that has failed or is absent. The others are served all the same, so this node is ready, and an
/// update does not stop here.
fn unserved_pools(health: &Health) -> String {
    let lines = health.pools.iter().flat_map(|(pool, conditions)| {
        let unserved = conditions.values().filter(|condition| condition.is_unserved());
        unserved
            .map(move |condition| format!("[!]pool {pool}: {}\n", printable(&condition.to_string(), LONGEST_REASON)))
    });
    lines.collect()
}

/// A page of volumes with whose they are. Anyone who can reach the port may ask for it, so it is made at a pace that the
/// helper does not notice, one page at a time.
async fn owners(shared: &Shared, query: &str) -> Response<Full<Bytes>> {
    if !shared.shares_owners {
        return text(StatusCode::NOT_FOUND, "whose the volumes are is served with --share-owners only\n");
    }
    paged(shared, query, |token| export::page(&shared.volumes, EXPORTED, token)).await
}

/// A page of snapshots, likewise.
async fn snapshots(shared: &Shared, query: &str) -> Response<Full<Bytes>> {
    paged(shared, query, |token| export::snapshots(&shared.volumes, EXPORTED, token)).await
}

async fn paged<'q, T: Serialize, P: Future<Output = Result<T, Fault>>>(
    shared: &Shared,
    query: &'q str,
    page: impl FnOnce(&'q str) -> P,
) -> Response<Full<Bytes>> {
    let token = query.strip_prefix("after=").unwrap_or_default();
    let Ok(_waiter) = shared.export_waiters.try_acquire() else {
        return text(StatusCode::SERVICE_UNAVAILABLE, "others wait for pages already; try again\n");
    };
    let _turn = shared.exporting.lock().await;
    sleep(EXPORT_PAUSE).await;
    match page(token).await {
        Ok(page) => json(&page),
        Err(fault) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{fault}\n")),
    }
}

fn json(value: &impl Serialize) -> Response<Full<Bytes>> {
    let mut answer = text(StatusCode::OK, serde_json::to_vec(value).unwrap_or_default());
    answer.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    answer
}

async fn written(shared: &Shared) -> Bytes {
    let mut written = shared.written.lock().await;
    if let Some((at, metrics)) = &*written
        && at.elapsed() < GOOD_FOR
    {
        return metrics.clone();
    }
    shared.process.refresh();
    let metrics = Bytes::from(METRICS.text());
    *written = Some((Instant::now(), metrics.clone()));
    metrics
}

async fn look_at_helper(shared: &Shared) {
    let Shared { helper, readiness, helper_answered, .. } = shared;
    let mut answered = helper_answered.lock().await;
    if let Err(away) = helper.check() {
        *answered = None;
        return readiness.not_ready(Part::Helper, away);
    }
    if answered.is_some_and(|at| at.elapsed() < GOOD_FOR) {
        return;
    }
    readiness.look_at_helper(helper.probe()).await;
    *answered = Some(Instant::now());
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
