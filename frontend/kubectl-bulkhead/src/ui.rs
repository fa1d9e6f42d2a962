//! `ui`: one page on loopback, for people who would rather look, with the rights of whoever runs it. Only who knows the
//! address that it prints gets an answer: it has a key, which no other user of the machine and no page of the web knows.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bulkhead_console::report::{Report, Table, visible_text};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use crate::cluster::{Cluster, Failure};
use crate::options::{Filter, Options};
use crate::{doctor, nodes, pools, snapshots, volumes};

const PAGE: &str = include_str!("ui/page.html");
const SCRIPT: &str = include_str!("ui/page.js");
const STYLE: &str = include_str!("ui/page.css");

/// For how long what was read is shown to whoever asks next: however many pages are open, the cluster is read once.
const FRESH: Duration = Duration::from_secs(5);

/// What the page may load, and who may show it: itself, and nobody.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
    frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Somebody waits for what the cluster looks like.
type Asked = oneshot::Sender<String>;

struct Site {
    key: String,
    /// The names under which a browser reaches it. Another name leads to another site's page, which has sent its reader here.
    hosts: [String; 2],
    asks: mpsc::Sender<Asked>,
}

/// Serves the page until interrupted, at this port, or at any that is free for 0.
pub async fn run(options: &Options, port: u16) -> Result<(), Failure> {
    // That the cluster can be reached is known before anybody looks.
    Cluster::connect(options).await?;
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(|error| Failure::Listen(port, error))?;
    let port = listener.local_addr().map_err(|error| Failure::Listen(port, error))?.port();
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| Failure::Random(error.to_string()))?;
    let key: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let (asks, asked) = mpsc::channel(16);
    let address = format!("http://127.0.0.1:{port}/{key}/");
    let site = Site { key, hosts: ["127.0.0.1", "localhost"].map(|host| format!("{host}:{port}")), asks };
    let text = Table::rows([[address.clone()]]).noting(["Open this address; Ctrl+C ends it.".to_owned()]);
    Report::new(json!({ "url": address }), text).print(options.format())?;
    let serving = tokio::spawn(axum::serve(listener, router(Arc::new(site))).into_future());
    answer(options, asked).await;
    serving.abort();
    Ok(())
}

fn router(site: Arc<Site>) -> Router {
    Router::new()
        .route("/{key}/", get(page))
        .route("/{key}/{file}", get(file))
        .layer(middleware::from_fn_with_state(site.clone(), guard))
        .with_state(site)
}

/// Turns away whoever does not know the key, or comes from another site's page; and says to browsers what the page may do.
async fn guard(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let key = request.uri().path().split('/').nth(1).unwrap_or_default();
    if !site.hosts.iter().any(|known| known == host) || key != site.key {
        return (StatusCode::NOT_FOUND, "not here: open the address that kubectl bulkhead ui has printed\n")
            .into_response();
    }
    let mut response = next.run(request).await;
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn page() -> Response {
    of_type("text/html; charset=utf-8", PAGE.to_owned())
}

async fn file(State(site): State<Arc<Site>>, Path((_, name)): Path<(String, String)>) -> Response {
    match name.as_str() {
        "page.js" => of_type("text/javascript; charset=utf-8", SCRIPT.to_owned()),
        "page.css" => of_type("text/css; charset=utf-8", STYLE.to_owned()),
        "state.json" => {
            let (ask, answer) = oneshot::channel();
            match site.asks.send(ask).await {
                Ok(()) => match answer.await {
                    Ok(state) => of_type("application/json", state),
                    Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
                },
                Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            }
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

fn of_type(kind: &'static str, content: String) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static(kind))], content).into_response()
}

/// Reads the cluster for whoever asks, once for all who ask meanwhile.
async fn answer(options: &Options, mut asked: mpsc::Receiver<Asked>) {
    let mut last: Option<(Instant, String)> = None;
    while let Some(ask) = asked.recv().await {
        let state = match last.take().filter(|(at, _)| at.elapsed() < FRESH) {
            Some(known) => known,
            None => (Instant::now(), read(options).await.to_string()),
        };
        // A page may be closed before it has its answer.
        let _ = ask.send(state.1.clone());
        last = Some(state);
    }
}

/// All that the page shows. What cannot be read has its reason in its place.
async fn read(options: &Options) -> Value {
    let cluster = match Cluster::connect(options).await {
        Ok(cluster) => cluster,
        Err(failure) => return state(options, &std::array::from_fn(|_| refused(&failure))),
    };
    let all = Filter { node: None, namespace: None, class: None, phase: None };
    let parts = [
        part(nodes::list(&cluster, false).await),
        part(pools::list(&cluster, false).await),
        part(volumes::list(&cluster, &all, true).await),
        part(snapshots::list(&cluster).await),
        part(doctor::run(&cluster).await.map(|(report, _)| report)),
    ];
    state(options, &parts)
}

fn state(options: &Options, [nodes, pools, volumes, snapshots, doctor]: &[Value; 5]) -> Value {
    json!({
        "driver": options.driver, "nodes": nodes, "pools": pools, "volumes": volumes, "snapshots": snapshots,
        "doctor": doctor,
    })
}

fn part(read: Result<Report, Failure>) -> Value {
    read.map_or_else(|failure| refused(&failure), |report| json!({ "value": report.visible() }))
}

fn refused(failure: &Failure) -> Value {
    json!({ "error": visible_text(&failure.to_string()) })
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt;

    use super::*;

    async fn status(host: &str, path: &str) -> (StatusCode, Response) {
        let (asks, mut asked) = mpsc::channel::<Asked>(1);
        tokio::spawn(async move {
            while let Some(ask) = asked.recv().await {
                ask.send("{}".to_owned()).unwrap();
            }
        });
        let hosts = ["127.0.0.1:8000", "localhost:8000"].map(str::to_owned);
        let site = Arc::new(Site { key: "k".to_owned(), hosts, asks });
        let request = http::Request::get(path).header(HOST, host).body(axum::body::Body::empty()).unwrap();
        let response = router(site).oneshot(request).await.unwrap();
        (response.status(), response)
    }

    #[tokio::test]
    async fn only_who_knows_the_key_and_comes_by_this_name_is_answered() {
        for path in ["/k/", "/k/page.js", "/k/page.css", "/k/state.json"] {
            for host in ["127.0.0.1:8000", "localhost:8000"] {
                let (found, response) = status(host, path).await;
                assert_eq!(found, StatusCode::OK, "{host} {path}");
                assert_eq!(response.headers()[CONTENT_SECURITY_POLICY], POLICY);
            }
            for host in ["attacker.example", "127.0.0.1", "127.0.0.1:8001", ""] {
                assert_eq!(status(host, path).await.0, StatusCode::NOT_FOUND, "{host} {path}");
            }
        }
        for path in ["/", "/x/", "/k", "//", "/x/state.json", "/k/other", "/k/../k/x"] {
            assert_eq!(status("localhost:8000", path).await.0, StatusCode::NOT_FOUND, "{path}");
        }
    }

    #[test]
    fn the_page_makes_no_markup_of_what_others_wrote() {
        for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!SCRIPT.contains(way), "{way}");
        }
        assert!(!PAGE.contains("<script>") && !PAGE.contains("style="), "the policy forbids what is inline");
    }
}
