//! An API server that fails as a test demands, for failures that a real one cannot be made to produce.

pub mod agent;
pub mod contents;
pub mod policies;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, broadcast};

use self::contents::Contents;
use self::policies::Policies;
pub use self::policies::{BINDINGS, POLICIES};

/// What the mock does instead of serving a request.
pub enum Fault {
    /// Answers with this status.
    Refuse(u16, Value),
    /// Rejects it like an overloaded API server, to be retried after this many seconds.
    Busy(u32),
    /// Stays silent for as long as the connection lasts.
    Hang,
    /// Prepares the answer at once, and sends it when the test lets it.
    Late(Arc<Notify>),
}

type Rule = Box<dyn FnMut(&Method, &str) -> Option<Fault> + Send>;

/// A request that was received.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: Method,
    pub path: String,
    pub body: Value,
    pub at: Instant,
}

/// The mock.
pub struct MockApi {
    shared: Arc<Shared>,
    kubeconfig: PathBuf,
}

struct Shared {
    claims: Mutex<Vec<Value>>,
    /// Whether lists omit all claims.
    unlisted: AtomicBool,
    classes: Vec<Value>,
    /// PersistentVolumes, which are listed but never reported.
    volumes: Mutex<Vec<Value>>,
    /// Whether the kubelet has registered the driver.
    registered: AtomicBool,
    /// Events of the watch on claims.
    events: broadcast::Sender<Value>,
    /// How many watches of claims have begun.
    watches: AtomicUsize,
    /// Those that happened while there was none: the next one is told.
    missed: Mutex<Vec<Value>>,
    contents: Contents,
    policies: Policies,
    rule: Mutex<Rule>,
    /// How many clients wait for an answer that the test has not let go.
    waiting: AtomicUsize,
    seen: Mutex<Vec<Seen>>,
}

impl MockApi {
    /// Starts a mock with these classes, which fails as `rule` says. Its kubeconfig is written to `directory`.
    pub async fn start(
        directory: &Path,
        classes: Vec<Value>,
        rule: impl FnMut(&Method, &str) -> Option<Fault> + Send + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            claims: Mutex::default(),
            unlisted: AtomicBool::default(),
            classes,
            volumes: Mutex::default(),
            registered: AtomicBool::default(),
            events: broadcast::Sender::new(64),
            watches: AtomicUsize::default(),
            missed: Mutex::default(),
            contents: Contents::default(),
            policies: Policies::default(),
            rule: Mutex::new(Box::new(rule)),
            waiting: AtomicUsize::default(),
            seen: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(serve).with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let kubeconfig = directory.join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "mock",
            "clusters": [{ "name": "mock", "cluster": { "server": server } }],
            "users": [{ "name": "mock", "user": { "token": "mock" } }],
            "contexts": [{ "name": "mock", "context": { "cluster": "mock", "user": "mock" } }],
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        Self { shared, kubeconfig }
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    /// Has the kubeconfig name a file with the token, which can be exchanged, and returns it.
    pub fn keep_token_in_file(&self) -> PathBuf {
        let token = self.kubeconfig.with_file_name("token");
        std::fs::write(&token, "mock").unwrap();
        let kubeconfig = std::fs::read_to_string(&self.kubeconfig).unwrap();
        let mut kubeconfig: Value = serde_json::from_str(&kubeconfig).unwrap();
        kubeconfig["users"][0]["user"] = json!({ "tokenFile": token });
        std::fs::write(&self.kubeconfig, kubeconfig.to_string()).unwrap();
        token
    }

    /// Stores `claim` without telling the watches.
    pub fn put(&self, claim: &Value) {
        let mut claims = self.shared.claims.lock().unwrap();
        claims.retain(|other| other["metadata"]["uid"] != claim["metadata"]["uid"]);
        claims.push(claim.clone());
    }

    /// Stores `claim`, which is new, without telling the watches.
    pub fn append(&self, claim: Value) {
        self.shared.claims.lock().unwrap().push(claim);
    }

    /// Stores `claim` and tells the watches.
    pub fn put_and_report(&self, claim: &Value) {
        self.put(claim);
        let event = json!({ "type": "MODIFIED", "object": claim });
        let mut missed = self.shared.missed.lock().unwrap();
        if let Err(unheard) = self.shared.events.send(event) {
            missed.push(unheard.0);
        }
    }

    /// Returns whether claims are watched, so that what is reported now arrives.
    pub fn is_watched(&self) -> bool {
        self.shared.events.receiver_count() > 0
    }

    /// How many watches of claims have begun. What a list was asked for before one is known by then.
    pub fn watches(&self) -> usize {
        self.shared.watches.load(Ordering::SeqCst)
    }

    /// How many clients still wait for a [late](Fault::Late) answer.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::SeqCst)
    }

    /// The objects of snapshots. Their kind is unknown until there is one.
    pub fn contents(&self) -> &Contents {
        &self.shared.contents
    }

    /// The policies that confine agents.
    pub fn policies(&self) -> &Policies {
        &self.shared.policies
    }

    /// Stores the PersistentVolume `volume`.
    pub fn put_volume(&self, volume: &Value) {
        self.shared.volumes.lock().unwrap().push(volume.clone());
    }

    /// Removes all claims without telling the watches.
    pub fn clear(&self) {
        self.shared.claims.lock().unwrap().clear();
    }

    /// Omits all claims from lists; each can still be read by name.
    pub fn unlist(&self) {
        self.shared.unlisted.store(true, Ordering::Relaxed);
    }

    /// From now on, the kubelet has registered the driver.
    pub fn register(&self) {
        self.shared.registered.store(true, Ordering::Relaxed);
    }

    /// Ends all watches of claims with an error.
    pub fn expire(&self) {
        let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410,
                             "reason": "Expired", "message": "too old resource version" });
        let _ = self.shared.events.send(json!({ "type": "ERROR", "object": status }));
    }

    /// The requests with this method whose path contains `part`.
    pub fn seen(&self, method: &Method, part: &str) -> Vec<Seen> {
        let seen = self.shared.seen.lock().unwrap();
        seen.iter().filter(|seen| seen.method == *method && seen.path.contains(part)).cloned().collect()
    }
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let query = request.uri().query().unwrap_or_default().to_owned();
    let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let seen = Seen { method: method.clone(), path: path.clone(), body: body.clone(), at: Instant::now() };
    shared.seen.lock().unwrap().push(seen);
    let fault = (shared.rule.lock().unwrap())(&method, &path);
    let now = match fault {
        Some(Fault::Refuse(code, status)) => return answer(code, &status),
        Some(Fault::Busy(seconds)) => {
            let headers = [("retry-after", seconds.to_string()), ("content-type", "text/plain".to_owned())];
            return (StatusCode::TOO_MANY_REQUESTS, headers, "Too many requests, please try again later.\n")
                .into_response();
        }
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Late(now)) => Some(now),
        None => None,
    };
    let answer = answer_to(&shared, &method, &path, &query, &body);
    if let Some(now) = now {
        let _waiting = Waiting::new(&shared.waiting);
        now.notified().await;
    }
    answer
}

/// A client that waits. It is dropped when the client goes away, too.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn answer_to(shared: &Shared, method: &Method, path: &str, query: &str, body: &Value) -> Response {
    let name = path.rsplit('/').next().unwrap_or_default();
    let claims = path.ends_with("/persistentvolumeclaims");
    if let Some(answer) = shared.contents.answer(method, path, query, body) {
        return answer;
    }
    match *method {
        Method::GET if name == POLICIES || name == BINDINGS => shared.policies.answer(name, query),
        Method::GET if query.contains("watch=true") => {
            let mut missed = shared.missed.lock().unwrap();
            if !claims {
                return watch(Vec::new(), None);
            }
            let events = shared.events.subscribe();
            shared.watches.fetch_add(1, Ordering::SeqCst);
            watch(std::mem::take(&mut *missed), Some(events))
        }
        Method::GET if claims && shared.unlisted.load(Ordering::Relaxed) => {
            answer(200, &list("v1", "PersistentVolumeClaim", &[], query))
        }
        Method::GET if claims => {
            answer(200, &list("v1", "PersistentVolumeClaim", &shared.claims.lock().unwrap(), query))
        }
        Method::GET if path.contains("/persistentvolumeclaims/") => found(&shared.claims.lock().unwrap(), name),
        Method::GET if name == "storageclasses" => {
            answer(200, &list("storage.k8s.io/v1", "StorageClass", &shared.classes, query))
        }
        Method::GET if name == "bulkhead-claims" || name == "bulkhead-contents" => {
            answer(200, &json!({ "metadata": { "name": name } }))
        }
        Method::GET if name == "persistentvolumes" => {
            answer(200, &list("v1", "PersistentVolume", &shared.volumes.lock().unwrap(), query))
        }
        Method::GET if path.contains("/persistentvolumes/") => found(&shared.volumes.lock().unwrap(), name),
        Method::GET if path.contains("/csinodes/") => {
            let driver = json!({ "name": "bulkhead.csi.local", "nodeID": "node-1" });
            let drivers = if shared.registered.load(Ordering::Relaxed) { vec![driver] } else { Vec::new() };
            answer(200, &json!({ "metadata": { "name": name }, "spec": { "drivers": drivers } }))
        }
        Method::GET => answer(200, &list("v1", "Unknown", &[], query)),
        Method::POST if name == "selfsubjectreviews" => {
            let extra = json!({ "authentication.kubernetes.io/node-name": ["node-1"],
                                "authentication.kubernetes.io/node-uid": ["node-uid"] });
            let user = json!({ "username": "system:serviceaccount:storage:bulkhead-agent", "extra": extra });
            answer(201, &json!({ "metadata": {}, "status": { "userInfo": user } }))
        }
        Method::POST => answer(201, body),
        _ => answer(200, &written(shared, path)),
    }
}

/// Returns what a request that writes to the object at `path` is answered with. A claim is what it was, with another
/// version.
fn written(shared: &Shared, path: &str) -> Value {
    let name = path.trim_end_matches("/status").rsplit('/').next().unwrap_or_default();
    let claims = shared.claims.lock().unwrap();
    let mut claims = claims.iter().filter(|_| path.contains("/persistentvolumeclaims/"));
    let mut object = claims.find(|claim| claim["metadata"]["name"] == name).cloned();
    let object = object.get_or_insert_with(|| json!({ "metadata": { "name": name } }));
    object["metadata"]["resourceVersion"] = json!("1000");
    object.take()
}

/// The object of that name, or the answer that there is none.
fn found(objects: &[Value], name: &str) -> Response {
    match objects.iter().find(|object| object["metadata"]["name"] == name) {
        Some(object) => answer(200, object),
        None => answer(404, &json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound" })),
    }
}

/// The number that `query` has for a name.
fn number(query: &str, name: &str) -> Option<u64> {
    let value = query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    value.and_then(|value| value.parse().ok())
}

/// The page of a list that `query` asks for.
fn list(version: &str, kind: &str, items: &[Value], query: &str) -> Value {
    let number = |name: &str| number(query, name).and_then(|number| usize::try_from(number).ok());
    let (first, limit) = (number("continue").unwrap_or(0), number("limit").unwrap_or(items.len()));
    let page: Vec<_> = items.iter().skip(first).take(limit).collect();
    let next = Some(first + limit).filter(|next| *next < items.len()).map(|next| next.to_string());
    json!({ "kind": format!("{kind}List"), "apiVersion": version,
            "metadata": { "resourceVersion": "1", "continue": next }, "items": page })
}

/// A stream of lines that ends only with an error: what was `missed`, and what happens from now on.
fn watch(missed: Vec<Value>, events: Option<broadcast::Receiver<Value>>) -> Response {
    let missed = futures::stream::iter(missed).map(|event| Ok(Bytes::from(format!("{event}\n"))));
    let stream = futures::stream::unfold(events, |events| async move {
        let Some(mut receiver) = events else { return std::future::pending().await };
        let event = receiver.recv().await.ok()?;
        let rest = if event["type"] == "ERROR" { None } else { Some(receiver) };
        Some((Ok::<_, Infallible>(Bytes::from(format!("{event}\n"))), rest))
    });
    ([("content-type", "application/json")], Body::from_stream(missed.chain(stream))).into_response()
}

fn answer(code: u16, body: &Value) -> Response {
    (StatusCode::from_u16(code).unwrap(), [("content-type", "application/json")], body.to_string()).into_response()
}
