//! What the calls of a client do to its place: whoever waits for an answer keeps it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::body::{Bytes, Frame, SizeHint};
use tokio::net::UnixStream;
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::clients::Client;
use crate::crowd::Call;

/// A service whose calls are counted, each from its head to the end of its answer.
#[derive(Clone)]
pub struct Counted<S>(pub S);

/// The body of an answer.
pub struct Answer {
    body: Body,
    call: Option<Call<UnixStream>>,
}

impl<S> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = Response<Answer>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Answer>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let call = request.extensions().get::<Client>().map(Client::call);
        let answer = self.0.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Answer { body, call })) })
    }
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(call) = &self.call {
            call.goes_on();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
