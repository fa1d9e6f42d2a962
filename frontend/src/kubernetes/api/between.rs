//! What is done with each request of a client, and with its answer, between the client and the API server.

use std::mem::replace;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use kube::client::{Body, DynBody};
use tower::{BoxError, Layer, Service};

/// The answer to a request.
pub type Answer = Result<Response<Box<DynBody>>, BoxError>;

/// What answers requests.
pub trait Server:
    Service<Request<Body>, Response = Response<Box<DynBody>>, Error = BoxError, Future: Send + 'static>
    + Clone
    + Send
    + 'static
{
}

impl<S> Server for S where
    S: Service<Request<Body>, Response = Response<Box<DynBody>>, Error = BoxError, Future: Send + 'static>
        + Clone
        + Send
        + 'static
{
}

/// Something between a client and the server.
pub trait Between: Clone + Send + 'static {
    /// Answers a request, by asking the server, which is ready for one.
    fn answer<S: Server>(self, server: S, request: Request<Body>) -> impl Future<Output = Answer> + Send;
}

/// Puts it there.
#[derive(Clone, Copy, Debug)]
pub struct BetweenLayer<B>(pub B);

impl<B: Clone, S> Layer<S> for BetweenLayer<B> {
    type Service = Placed<B, S>;

    fn layer(&self, server: S) -> Placed<B, S> {
        Placed { between: self.0.clone(), server }
    }
}

/// A service with something before it.
#[derive(Clone)]
pub struct Placed<B, S> {
    between: B,
    server: S,
}

impl<B: Between, S: Server> Service<Request<Body>> for Placed<B, S> {
    type Response = Response<Box<DynBody>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Answer>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.server.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let another = self.server.clone();
        // This is the one that is ready.
        let server = replace(&mut self.server, another);
        let between = self.between.clone();
        between.answer(server, request).boxed()
    }
}
