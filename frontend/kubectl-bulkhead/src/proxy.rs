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
    let request = Request::get(path).body(Body::empty()).map_err(kube::Error::HttpError)?;
    let answer = async {
        let (head, body) = client.send(request).await?.into_parts();
        let body = Limited::new(body, longest).collect().await.map_err(Unread::Answer)?.to_bytes();
        Ok((head.status, String::from_utf8_lossy(&body).into_owned()))
    };
    match timeout(PATIENCE, answer).await {
        Ok(Ok((StatusCode::FORBIDDEN, _))) => Err(Unread::Forbidden(right())),
        Ok(answer) => answer,
        Err(_) => Err(Unread::Late),
    }
}
