//! A call for a snapshot of another node is passed on to the agent of that node, unchanged: it judges the caller itself.
//! It is passed on once only.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_model::objects::snapshot_metadata_service::ServiceSpec;
use bulkhead_model::printable::{MESSAGE, printable};
use futures::StreamExt;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tower::service_fn;

use super::asked::Asked;
use super::certificate::HTTP2;
use super::places::Messages;
use super::{AHEAD, LONGEST_HEAD};
use crate::proto::snapshotmetadata::snapshot_metadata_client::SnapshotMetadataClient;

/// Says that a call was passed on.
const PASSED_ON: &str = "bulkhead-passed-on";

/// How long the other agent may take to be reached.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest message of an answer that is accepted, in bytes: ours are much shorter.
const LONGEST_ANSWER: usize = 256 << 10;

/// Returns whether a call with these headers was passed on by another agent.
pub fn was_passed_on(headers: &MetadataMap) -> bool {
    headers.contains_key(PASSED_ON)
}

/// Makes the call at `address`, whose certificate has to be one of the service's, and returns the messages of the answer.
///
/// # Errors
/// The other agent's refusal, or that it is not reached.
pub async fn pass_on<A: Asked>(
    asked: A,
    address: SocketAddr,
    node: &str,
    service: &ServiceSpec,
) -> Result<Messages<A::Answer>, Status> {
    let away = |why: String| {
        let why = printable(&why, MESSAGE).into_owned();
        Status::unavailable(format!(
            "the agent of node {node}, which has the snapshot, is not reached at {address}: {why}"
        ))
    };
    let channel = connect(address, service).await.map_err(away)?;
    let client = SnapshotMetadataClient::new(channel).max_decoding_message_size(LONGEST_ANSWER);
    let mut request = Request::new(asked);
    request.metadata_mut().insert(PASSED_ON, MetadataValue::<Ascii>::from_static("yes"));
    let answer = A::pass_on(client, request).await.map_err(told)?;
    Ok(Box::pin(answer.into_inner().map(|message| message.map_err(told))))
}

/// What another agent says. It might say anything.
fn told(status: Status) -> Status {
    Status::new(status.code(), printable(status.message(), MESSAGE))
}

async fn connect(address: SocketAddr, service: &ServiceSpec) -> Result<Channel, String> {
    let name = ServerName::try_from(service.host().to_owned());
    let name = name.map_err(|error| format!("the SnapshotMetadataService has no usable address: {error}"))?;
    let connector = connector(&service.ca_cert.0)?;
    let connect = service_fn(move |_| {
        let (connector, name) = (connector.clone(), name.clone());
        async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok::<_, io::Error>(TokioIo::new(connector.connect(name, stream).await?))
        }
    });
    let endpoint = Endpoint::from_static("https://bulkhead")
        .initial_connection_window_size(AHEAD)
        .initial_stream_window_size(AHEAD)
        .http2_max_header_list_size(LONGEST_HEAD)
        .connect_timeout(PATIENCE);
    endpoint.connect_with_connector(connect).await.map_err(|error| with_causes(&error))
}

fn connector(authority: &[u8]) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(authority).collect();
    let certificates =
        certificates.map_err(|error| format!("the SnapshotMetadataService's caCert is no PEM: {error}"))?;
    roots.add_parsable_certificates(certificates);
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_protocol_versions(&[&TLS13]).map_err(|error| error.to_string())?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![HTTP2.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
