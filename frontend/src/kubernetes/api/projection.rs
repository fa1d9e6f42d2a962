//! What arrives from the API server is reduced to the fields that are read, before anything else sees it: the memory
//! that a claim takes does not depend on its size, however many there are in a page or on a watch.

use super::between::{Answer, Between, Server};
use super::instrument::resource;
use bulkhead_model::objects::fields::Fields;
use bulkhead_model::objects::reducer::{MOST, Reducer};
use futures::StreamExt;
use http::header::CONTENT_TYPE;
use http::{Request, Response};
use http_body_util::{BodyStream, Limited, StreamBody};
use hyper::body::Frame;
use kube::client::{Body, DynBody};

/// Reduces the answers to a client's requests.
#[derive(Clone, Copy, Debug)]
pub struct Projection;

impl Between for Projection {
    async fn answer<S: Server>(self, mut server: S, request: Request<Body>) -> Answer {
        let fields = Fields::of(resource(request.uri().path()));
        Ok(projected(server.call(request).await?, fields))
    }
}

/// The answer with these fields only. One that is not JSON is not from the API server but from something before it, and
/// is kept as it is.
fn projected(answer: Response<Box<DynBody>>, fields: Fields) -> Response<Box<DynBody>> {
    let content = answer.headers().get(CONTENT_TYPE).and_then(|content| content.to_str().ok());
    let is_json = content.is_some_and(|content| content.starts_with("application/json"));
    answer.map(|body| -> Box<DynBody> {
        if is_json { reduced(body, fields) } else { Box::new(Limited::new(body, MOST)) }
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

    async fn text_of(content: &'static str, text: &'static str) -> String {
        let body: Box<DynBody> = Box::new(Full::from(text).map_err(|never| match never {}));
        let answer = Response::builder().header(CONTENT_TYPE, content).body(body).unwrap();
        let body = projected(answer, Fields::Claim).into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn only_json_is_reduced() {
        let partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        assert_eq!(text_of(partial, "{ \"metadata\": { \"labels\": {} } }").await, "{\"metadata\":{}}");
        assert_eq!(text_of("text/plain", "Too many requests, [please]").await, "Too many requests, [please]");
    }
}
