//! Connections to the API server, with Nagle's algorithm off: otherwise a request whose body is sent separately from
//! its head may wait for the acknowledgement of the head, which the other side delays. The client's own builder leaves
//! it on.

use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::{Body, ConfigExt, DynBody};
use tower::util::BoxCloneService;
use tower::{BoxError, ServiceBuilder, ServiceExt};

/// How often a silent connection is asked whether it is dead.
const ALIVE: Duration = Duration::from_secs(20);

/// What carries requests to the API server.
pub type Transport = BoxCloneService<Request<Body>, Response<Box<DynBody>>, BoxError>;

/// The transport to the server of `config`, without a proxy, with its credentials.
///
/// # Errors
/// When the configuration has credentials that cannot be used.
pub fn transport(config: &Config) -> Result<Transport, kube::Error> {
    let mut connector = connector();
    connector.set_connect_timeout(config.connect_timeout);
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(Client::builder(TokioExecutor::new()).build(connector));
    let boxed = |body| -> Box<DynBody> { Box::new(BodyExt::map_err(body, BoxError::from)) };
    Ok(service.map_response(move |response: Response<_>| response.map(boxed)).boxed_clone())
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    // TLS comes on top of it.
    connector.enforce_http(false);
    connector.set_nodelay(true);
    // A watch may be silent for long, and its connection dead meanwhile.
    connector.set_keepalive(Some(ALIVE));
    connector.set_keepalive_interval(Some(ALIVE));
    connector.set_keepalive_retries(Some(3));
    connector
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn what_is_sent_does_not_wait_for_more() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("https://{}", listener.local_addr().unwrap()).parse().unwrap();
        let connection = connector().oneshot(server).await.unwrap();
        assert!(connection.inner().nodelay().unwrap());
    }
}
