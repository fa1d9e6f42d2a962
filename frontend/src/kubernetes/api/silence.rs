//! How long the API server may stay silent, whatever the request. Without this limit, a watch whose list or start hangs
//! would never report anything again, nor log an error. The client's own limit belongs to the connections that its builder
//! makes, and [`super::transport`] makes these itself.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use http::Response;
use http_body_util::{BodyStream, StreamBody};
use kube::client::DynBody;
use tokio::time::timeout;
use tower::BoxError;

use super::request::DEADLINE;
use super::watch::OPEN;

/// How long an answer that has begun may pause. A watch without changes pauses until the API server ends it.
const PAUSE: Duration = Duration::from_secs(OPEN as u64 + 30);

/// Returns how long the API server was waited for if `error` says that it was silent.
pub fn waited(error: &kube::Error) -> Option<Duration> {
    match error {
        kube::Error::Service(error) => error.downcast_ref().map(|Silent(waited)| *waited),
        _ => None,
    }
}

type Answer = Result<Response<Box<DynBody>>, BoxError>;

/// The API server is silent.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {} seconds", .0.as_secs())]
struct Silent(Duration);

/// The answer to a request, if it begins and continues in time.
pub async fn in_time(answer: BoxFuture<'static, Answer>) -> Answer {
    within(DEADLINE, PAUSE, answer).await
}

/// The answer, if it begins within `deadline`. It ends with an error at the first pause that is longer than `pause`.
async fn within(deadline: Duration, pause: Duration, answer: BoxFuture<'static, Answer>) -> Answer {
    let response = timeout(deadline, answer).await.map_err(|_| Silent(deadline))??;
    Ok(response.map(|body| without_long_pauses(body, pause)))
}

fn without_long_pauses(body: Box<DynBody>, longest: Duration) -> Box<DynBody> {
    let frames = stream::unfold(Some(BodyStream::new(body)), move |frames| async move {
        let mut frames = frames?;
        match timeout(longest, frames.next()).await {
            Ok(frame) => frame.map(|frame| (frame, Some(frames))),
            Err(_) => Some((Err(BoxError::from(Silent(longest))), None)),
        }
    });
    Box::new(StreamBody::new(Box::pin(frames)))
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    fn text(text: &'static str) -> Box<DynBody> {
        Box::new(Full::from(text).map_err(|never| match never {}))
    }

    #[tokio::test]
    async fn an_answer_in_time_is_whole() {
        let answer = in_time(Box::pin(async { Ok(Response::new(text("whole"))) })).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "whole");
    }

    const SHORT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn an_answer_that_does_not_begin_is_not_waited_for() {
        let silent = within(SHORT, SHORT, Box::pin(std::future::pending())).await.err().unwrap();
        assert!(silent.to_string().contains("did not answer"), "{silent}");
    }

    #[tokio::test]
    async fn an_answer_that_does_not_go_on_is_not_waited_for() {
        let frames = BodyStream::new(text("half")).chain(stream::pending());
        let half: Box<DynBody> = Box::new(StreamBody::new(Box::pin(frames)));
        let answer = within(SHORT, SHORT, Box::pin(async { Ok(Response::new(half)) })).await.unwrap();
        let mut body = answer.into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "half");
        assert!(body.frame().await.unwrap().is_err());
        assert!(body.frame().await.is_none());
    }
}
