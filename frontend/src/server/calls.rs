//! What the calls of a client do to its place and to the budget: whoever waits for an answer keeps the one, and whoever
//! reads none is kept within the other.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::body::{Bytes, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::budget::Metered;
use super::clients::Client;
use crate::crowd::Call;

/// A service whose calls are counted, each from its head to the end of its answer.
#[derive(Clone)]
pub struct Counted<S>(pub S);

/// A call in progress with the bytes of its request.
struct InProgress {
    call: Call<Metered>,
    came: AtomicUsize,
}

/// The body of a request.
struct Question {
    body: Body,
    call: Arc<InProgress>,
}

/// The body of an answer.
pub struct Answer {
    body: Body,
    call: Option<Arc<InProgress>>,
    /// The bytes that it had until now, as long as more are to come.
    unfinished: usize,
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
        let call = call.map(|call| Arc::new(InProgress { call, came: AtomicUsize::new(0) }));
        let answer = self.0.call(request.map(|body| match &call {
            Some(call) => Body::new(Question { body, call: Arc::clone(call) }),
            None => body,
        }));
        Box::pin(async move { Ok(answer.await?.map(|body| Answer { body, call, unfinished: 0 })) })
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.call.client().answered(self.came.load(Relaxed));
    }
}

impl Drop for Answer {
    /// What the client has not read of an answer that it gave up is dropped, and never sent.
    fn drop(&mut self) {
        if let Some(call) = &self.call {
            call.call.client().sent(self.unfinished);
        }
    }
}

impl hyper::body::Body for Question {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let bytes = length(&frame);
        self.call.came.fetch_add(bytes, Relaxed);
        if self.call.call.client().came(bytes) {
            return Poll::Ready(frame);
        }
        let refusal =
            "the clients of this socket hold all the memory that is meant for them: read the answers, and try again";
        Poll::Ready(Some(Err(Status::resource_exhausted(refusal))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(call) = &self.call {
            ready!(call.call.client().poll_room(context));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(InProgress { call, .. }) = self.call.as_deref() {
            call.client().made(length(&frame));
            call.goes_on();
        }
        self.unfinished =
            if frame.is_none() || self.body.is_end_stream() { 0 } else { self.unfinished + length(&frame) };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn length(frame: &Option<Result<Frame<Bytes>, Status>>) -> usize {
    match frame {
        Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
        _ => 0,
    }
}
