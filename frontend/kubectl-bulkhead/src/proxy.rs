//! Reading from agents and kubelets through the API server's proxy to them.

use std::time::Duration;

use bulkhead_model::api_error::error_text;
use bulkhead_model::reading::Unended;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::Client;
use kube::client::Body;
use tokio::time::timeout;
use tower::BoxError;

/// How long one of them may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How the API server's proxy says that it could not reach whom it was to ask.
const NOT_REACHED: &str = "error trying to reach service";

/// Why an answer is missing.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    #[error("its pod {pod} has no port called {port}: is --metrics-address set?")]
    NoPort { pod: String, port: &'static str },
    #[error("showing more requires the right to get {0}")]
    Forbidden(String),
    #[error("it did not answer within {} s", PATIENCE.as_secs())]
    Late,
    #[error("it cannot be reached: the API server's proxy answers {0}")]
    Status(StatusCode),
    #[error(
        "its agent does not share it: save the output of `bulkheadctl volume export` there, and read it with --from, or \
         set --share-owners (the chart's frontend.shareOwners)"
    )]
    NotShared,
    #[error(
        "{0}; nothing is concluded from a part of it: unless so much is there, its agent is not what it should be, so see its log, and delete its pod"
    )]
    Unended(Unended),
    #[error("its answer cannot be read: {0}")]
    Answer(BoxError),
    #[error("{}", error_text(.0))]
    Api(Box<kube::Error>),
}

impl From<kube::Error> for Unread {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

/// Returns what is at `path`, of at most `longest` bytes, whatever its status. `right` is the right that this takes.
pub async fn get(
    client: &Client,
    path: &str,
    longest: usize,
    right: impl FnOnce() -> String,
) -> Result<(StatusCode, String), Unread> {
    let answer = async {
        let first = ask(client, path, longest).await?;
        // The connection may have been an old one, which its other end has closed meanwhile: another one is new.
        if first.0.is_server_error() && first.1.contains(NOT_REACHED) {
            return ask(client, path, longest).await;
        }
        Ok(first)
    };
    match timeout(PATIENCE, answer).await {
        Ok(Ok((StatusCode::FORBIDDEN, _))) => Err(Unread::Forbidden(right())),
        Ok(answer) => answer,
        Err(_) => Err(Unread::Late),
    }
}

async fn ask(client: &Client, path: &str, longest: usize) -> Result<(StatusCode, String), Unread> {
    let request = Request::get(path).body(Body::empty()).map_err(kube::Error::HttpError)?;
    let (head, body) = client.send(request).await?.into_parts();
    let body = Limited::new(body, longest).collect().await.map_err(Unread::Answer)?.to_bytes();
    Ok((head.status, String::from_utf8_lossy(&body).into_owned()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use http::Response;

    use super::*;

    /// What is read where each request is answered with the next of these, and how many there were.
    async fn read(answers: &'static [(u16, &'static str)]) -> ((StatusCode, String), usize) {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        let server = tower::service_fn(move |_: Request<Body>| {
            let (status, text) = answers[counted.fetch_add(1, Relaxed)];
            let response = Response::builder().status(status).body(Body::from(text.as_bytes().to_vec()));
            async move { response }
        });
        let read = get(&Client::new(server, "default"), "/x", 1000, String::new).await.unwrap();
        (read, requests.load(Relaxed))
    }

    #[tokio::test]
    async fn what_the_proxy_could_not_reach_is_asked_once_more() {
        const EOF: (u16, &str) = (503, r#"{"kind":"Status","message":"error trying to reach service: EOF"}"#);
        let ok = (StatusCode::OK, "x".to_owned());
        assert_eq!(read(&[EOF, (200, "x")]).await, (ok, 2));
        assert_eq!(read(&[EOF, EOF]).await, ((StatusCode::SERVICE_UNAVAILABLE, EOF.1.to_owned()), 2));
        // An agent's own words.
        let own = (StatusCode::SERVICE_UNAVAILABLE, "[-]watch not ready".to_owned());
        assert_eq!(read(&[(503, "[-]watch not ready")]).await, (own, 1));
    }
}
