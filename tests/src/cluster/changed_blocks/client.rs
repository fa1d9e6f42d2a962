//! A client of our own, which sends any token to any agent.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tower::service_fn;

use super::Service;
use crate::cluster::Cluster;
use crate::snapshot_metadata::snapshot_metadata_client::SnapshotMetadataClient;
use crate::snapshot_metadata::*;

/// The ranges of an answer: where each begins, and its length.
pub type Ranges = Vec<(i64, i64)>;

impl Service {
    /// Asks the agent at `address` for the ranges of a snapshot: for those that hold data or, with a base, for those that
    /// have changed since. With `passed_on`, the call looks like one of another agent's.
    pub fn ask(
        &self,
        cluster: &Cluster,
        address: &str,
        token: &str,
        (base, snapshot): (Option<&str>, &str),
        passed_on: bool,
    ) -> Result<Ranges, Status> {
        let unreached = |error: anyhow::Error| Status::unknown(format!("{error:#}"));
        let at: SocketAddr = format!("{address}:{}", self.port).parse().map_err(|_| Status::unknown("an address"))?;
        let asked = Asked { token, namespace: &cluster.namespace, base, snapshot, passed_on };
        cluster.access.run(async { asked.of(self.connect(at).await.map_err(unreached)?).await })
    }

    async fn connect(&self, address: SocketAddr) -> Result<Channel> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone())?;
        let config =
            ClientConfig::builder_with_provider(Arc::new(default_provider())).with_safe_default_protocol_versions()?;
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        let connect = service_fn(move |_| {
            let connector = connector.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                let name = ServerName::IpAddress(address.ip().into());
                Ok::<_, io::Error>(TokioIo::new(connector.connect(name, stream).await?))
            }
        });
        Ok(Endpoint::from_static("https://agent").connect_with_connector(connect).await?)
    }
}

/// What a call asks for.
struct Asked<'a> {
    token: &'a str,
    namespace: &'a str,
    base: Option<&'a str>,
    snapshot: &'a str,
    passed_on: bool,
}

impl Asked<'_> {
    async fn of(&self, channel: Channel) -> Result<Ranges, Status> {
        let mut client = SnapshotMetadataClient::new(channel);
        let (security_token, namespace) = (self.token.to_owned(), self.namespace.to_owned());
        let snapshot = self.snapshot.to_owned();
        let mut blocks = Vec::new();
        if let Some(base) = self.base {
            let (base_snapshot_id, target_snapshot_name) = (base.to_owned(), snapshot);
            let (starting_offset, max_results) = (0, 0);
            let asked = GetMetadataDeltaRequest {
                security_token,
                namespace,
                base_snapshot_id,
                target_snapshot_name,
                starting_offset,
                max_results,
            };
            let mut answer = client.get_metadata_delta(self.request(asked)).await?.into_inner();
            while let Some(message) = answer.message().await? {
                blocks.extend(message.block_metadata);
            }
        } else {
            let (snapshot_name, starting_offset, max_results) = (snapshot, 0, 0);
            let asked =
                GetMetadataAllocatedRequest { security_token, namespace, snapshot_name, starting_offset, max_results };
            let mut answer = client.get_metadata_allocated(self.request(asked)).await?.into_inner();
            while let Some(message) = answer.message().await? {
                blocks.extend(message.block_metadata);
            }
        }
        Ok(blocks.into_iter().map(|block| (block.byte_offset, block.size_bytes)).collect())
    }

    fn request<T>(&self, asked: T) -> Request<T> {
        let mut request = Request::new(asked);
        if self.passed_on {
            request.metadata_mut().insert("bulkhead-passed-on", AsciiMetadataValue::from_static("yes"));
        }
        request
    }
}
