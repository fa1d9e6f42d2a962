//! The connection to a CSI endpoint.

use std::env;
use std::io;
use std::path::Path;
use std::time::Duration;

use bulkhead_frontend::csi::Plugin;
use bulkhead_frontend::endpoint::Endpoint;
use bulkhead_frontend::helper::Helper;
use bulkhead_frontend::inspection::Inspector;
use bulkhead_frontend::kubernetes::View;
use bulkhead_frontend::proto::csi::GetPluginInfoRequest;
use bulkhead_frontend::proto::csi::controller_client::ControllerClient;
use bulkhead_frontend::proto::csi::group_controller_client::GroupControllerClient;
use bulkhead_frontend::proto::csi::identity_client::IdentityClient;
use bulkhead_frontend::proto::csi::node_client::NodeClient;
use bulkhead_frontend::proto::csi::snapshot_metadata_client::SnapshotMetadataClient;
use bulkhead_frontend::proto::inspection::inspection_client::InspectionClient;
use bulkhead_frontend::volumes::Volumes;
use hyper_util::rt::TokioIo;
use tokio::io::duplex;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint as Transport, Server as Serving};
use tower::service_fn;

use crate::failure::Failure;
use crate::locate::Server;

/// How long the frontend may take to say who it is, for which it asks nobody: a node may be very busy.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The kubelet's own timeout.
const DEADLINE: Duration = Duration::from_secs(120);

/// The buffer size, in each direction, of a connection within this process.
const BUFFER: usize = 64 << 10;

/// Clients of all services, sharing one connection.
pub struct Client {
    pub identity: IdentityClient<Channel>,
    pub controller: ControllerClient<Channel>,
    pub groups: GroupControllerClient<Channel>,
    pub node: NodeClient<Channel>,
    pub metadata: SnapshotMetadataClient<Channel>,
    pub inspection: InspectionClient<Channel>,
}

impl Client {
    /// Connects to `server`.
    pub async fn connect(server: &Server) -> Result<Self, Failure> {
        match server {
            Server::Frontend(endpoint) => Self::of_frontend(endpoint).await,
            Server::Helper(socket) => Self::of_helper(socket).await,
        }
    }

    /// Runs the frontend's services in this process, in front of the helper. They know nothing about an agent.
    async fn of_helper(socket: &Path) -> Result<Self, Failure> {
        let helper = Helper::new(socket);
        let welcome = helper.welcome().await.map_err(|why| Failure::no_helper(socket, why))?;
        let volumes = Volumes::new(helper.clone());
        let node = env::var("BULKHEAD_NODE_ID").unwrap_or_default();
        let plugin = Plugin::new(welcome.driver.clone(), node, volumes.clone());
        let inspector = Inspector { helper, volumes, agent: View::elsewhere(), readiness: None };
        let (near, far) = duplex(BUFFER);
        let mut serving = Serving::builder();
        let serving = serving.add_routes(plugin.routes().add_service(inspector.service()));
        tokio::spawn(serving.serve_with_incoming(tokio_stream::once(io::Result::Ok(far))));
        let mut near = Some(near);
        let connector = service_fn(move |_| {
            let near = near.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
            async move { near.map(TokioIo::new) }
        });
        let transport = Transport::from_static("http://localhost").timeout(DEADLINE);
        let channel = transport
            .connect_with_connector(connector)
            .await
            .map_err(|error| Failure::NotCsi { path: socket.to_owned(), why: error.to_string() })?;
        Ok(Self::over(channel))
    }

    async fn of_frontend(endpoint: &Endpoint) -> Result<Self, Failure> {
        let path = endpoint.path().to_owned();
        // Connect before the transport does, because the transport would hide the reason for a failure.
        let first = connect(&path).await.map_err(|error| Failure::no_frontend(&path, error))?;
        let connector = {
            let (path, mut first) = (path.clone(), Some(first));
            service_fn(move |_| {
                let (path, first) = (path.clone(), first.take());
                async move {
                    let stream = if let Some(first) = first { first } else { connect(&path).await? };
                    io::Result::Ok(TokioIo::new(stream))
                }
            })
        };
        // HTTP/2 requires an address; only its syntax matters.
        let transport = Transport::from_static("http://localhost").timeout(DEADLINE);
        let channel = transport
            .connect_with_connector(connector)
            .await
            .map_err(|error| Failure::NotCsi { path: path.clone(), why: error.to_string() })?;
        let mut client = Self::over(channel);
        // The helper keeps the socket of a frontend that has stopped, so a connection proves nothing.
        match timeout(PATIENCE, client.identity.get_plugin_info(GetPluginInfoRequest {})).await {
            Ok(Ok(_)) => Ok(client),
            Ok(Err(status)) => Err(Failure::NotCsi { path, why: status.message().to_owned() }),
            Err(_) => Err(Failure::Silent(path)),
        }
    }

    fn over(channel: Channel) -> Self {
        Self {
            identity: IdentityClient::new(channel.clone()),
            controller: ControllerClient::new(channel.clone()),
            groups: GroupControllerClient::new(channel.clone()),
            node: NodeClient::new(channel.clone()),
            metadata: SnapshotMetadataClient::new(channel.clone()),
            inspection: InspectionClient::new(channel),
        }
    }
}

async fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path).await
}
