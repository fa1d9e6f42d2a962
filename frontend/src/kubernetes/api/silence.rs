//! How long the API server may stay silent, whatever the request. Without this limit, a watch whose list or start hangs
//! would never report anything again, nor log an error. The client's own limit belongs to the connections that its builder
//! makes, and [`super::transport`] makes these itself.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use http::Response;
use http_body_util::{BodyStream, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::DynBody;
use tokio::time::timeout;
use tower::BoxError;

use super::request::DEADLINE;

/// How long an answer that has begun may pause. A quiet watch is begun anew before.
const PAUSE: Duration = Duration::from_secs(300);

/// How long a watch may that is told from time to time that there are no changes: it is told so every minute.
const PAUSE_OF_TOLD: Duration = Duration::from_secs(150);

/// How a watch is told so.
const BOOKMARK: &[u8] = br#"{"type":"BOOKMARK""#;

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
    Ok(response.map(|body| without_long_pauses(body, pause, PAUSE_OF_TOLD)))
}

fn without_long_pauses(body: Box<DynBody>, longest: Duration, of_told: Duration) -> Box<DynBody> {
    let frames = stream::unfold(Some((BodyStream::new(body), longest)), move |open| async move {
        let (mut frames, mut longest) = open?;
        match timeout(longest, frames.next()).await {
            Ok(frame) => {
                let is_bookmark = |frame: &Frame<_>| frame.data_ref().is_some_and(is_bookmark);
                if matches!(&frame, Some(Ok(frame)) if is_bookmark(frame)) {
                    longest = longest.min(of_told);
                }
                frame.map(|frame| (frame, Some((frames, longest))))
            }
            Err(_) => Some((Err(BoxError::from(Silent(longest))), None)),
        }
    });
    Box::new(StreamBody::new(Box::pin(frames)))
}

fn is_bookmark(data: &Bytes) -> bool {
    data.starts_with(BOOKMARK)
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
    async fn a_watch_that_is_told_of_no_changes_may_pause_for_less() {
        let frame = |text: &'static str| Ok::<_, BoxError>(Frame::data(Bytes::from(text)));
        let told = |text: &'static str| async move {
            let body = StreamBody::new(stream::iter([frame(text)]).chain(stream::pending()).boxed());
            let mut body = without_long_pauses(Box::new(body), PAUSE, SHORT);
            body.frame().await.unwrap().unwrap();
            timeout(4 * SHORT, body.frame()).await
        };
        assert!(told(r#"{"type":"BOOKMARK","object":{}}"#).await.unwrap().unwrap().is_err());
        assert!(told(r#"{"type":"ADDED","object":{}}"#).await.is_err(), "others are not told");
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
