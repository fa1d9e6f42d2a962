//! The `Retry-After` header of an overloaded API server (RFC 9110, 10.2.3). The client can obey it by itself, and would then
//! send the request again without anyone learning of the refusal: here it is a failure, which is counted and reported.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use kube::client::DynBody;
use serde_json::json;

/// Copies the header's delay into the body, where failures are read from, unless the body says more.
pub fn copy_to_body(response: Response<Box<DynBody>>) -> Response<Box<DynBody>> {
    let header = |name: HeaderName| response.headers().get(name)?.to_str().ok();
    let seconds = header(RETRY_AFTER).and_then(|seconds| seconds.parse::<u32>().ok());
    let is_bare = !header(CONTENT_TYPE).unwrap_or_default().starts_with("application/json");
    match seconds {
        Some(seconds) if is_bare && response.status() == StatusCode::TOO_MANY_REQUESTS => {
            let status = json!({
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "code": 429,
                "reason": "TooManyRequests",
                "message": format!("overloaded; retry after {seconds} s"),
                "details": { "retryAfterSeconds": seconds },
            });
            let body = Full::from(status.to_string()).map_err(|never| match never {});
            response.map(|_| -> Box<DynBody> { Box::new(body) })
        }
        _ => response,
    }
}
