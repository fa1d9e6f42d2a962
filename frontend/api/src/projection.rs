//! What arrives from the API server is reduced to the fields that are read, before anything else sees it: the memory
//! that an object takes does not depend on its size, however many there are in a page or on a watch.

use std::task::{Context, Poll};

use bulkhead_model::objects::fields::Fields;
use bulkhead_model::objects::reducer::{MOST, Reducer};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryFutureExt};
use http::header::CONTENT_TYPE;
use http::{Request, Response};
use http_body_util::{BodyStream, Limited, StreamBody};
use hyper::body::Frame;
use kube::client::{Body, DynBody};
use tower::{BoxError, Layer, Service};

use crate::path::subject;

/// Reduces the answers to a client's requests.
#[derive(Clone, Copy, Debug)]
pub struct Projection;

impl<S> Layer<S> for Projection {
    type Service = Projected<S>;

    fn layer(&self, server: S) -> Projected<S> {
        Projected(server)
    }
}

/// A server whose answers are reduced.
#[derive(Clone, Debug)]
pub struct Projected<S>(S);

impl<S> Service<Request<Body>> for Projected<S>
where
    S: Service<Request<Body>, Response = Response<Box<DynBody>>, Error = BoxError, Future: Send + 'static>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let fields = match subject(request.uri().path()) {
            // It is no object of the API.
            (_, true) => None,
            (resource, false) => Some(Fields::of(resource.unwrap_or_default())),
        };
        self.0.call(request).map_ok(move |answer| projected(answer, fields)).boxed()
    }
}

/// The answer with these fields only. One that is not JSON is not from the API server but from something before it, and
/// is kept as it is, like one that it only passes on.
fn projected(answer: Response<Box<DynBody>>, fields: Option<Fields>) -> Response<Box<DynBody>> {
    let content = answer.headers().get(CONTENT_TYPE).and_then(|content| content.to_str().ok());
    let is_json = content.is_some_and(|content| content.starts_with("application/json"));
    answer.map(|body| -> Box<DynBody> {
        match fields.filter(|_| is_json) {
            Some(fields) => reduced(body, fields),
            None => Box::new(Limited::new(body, MOST)),
        }
    })
}

fn reduced(body: Box<DynBody>, fields: Fields) -> Box<DynBody> {
    let mut reducer = Reducer::new(fields);
    let frames = BodyStream::new(body).map(move |frame| match frame?.into_data() {
        Ok(data) => Ok(Frame::data(reducer.reduce(&data)?.into())),
        Err(trailers) => Ok(trailers),
    });
    Box::new(StreamBody::new(frames))
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    async fn text_of(content: &'static str, text: &'static str, fields: Option<Fields>) -> String {
        let body: Box<DynBody> = Box::new(Full::from(text).map_err(|never| match never {}));
        let answer = Response::builder().header(CONTENT_TYPE, content).body(body).unwrap();
        let body = projected(answer, fields).into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn only_json_of_the_api_server_is_reduced() {
        let partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        let (text, claim) = ("{ \"metadata\": { \"labels\": {} } }", Some(Fields::Claim));
        assert_eq!(text_of(partial, text, claim).await, "{\"metadata\":{}}");
        assert_eq!(text_of(partial, text, None).await, text, "an agent's");
        let busy = "Too many requests, [please]";
        assert_eq!(text_of("text/plain", busy, claim).await, busy);
    }
}
