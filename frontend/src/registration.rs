//! The kubelet's plugin registration, version 1.
//!
//! The kubelet finds the socket, asks who is there, calls the CSI socket, and says what it decided. It asks again on its
//! own after its restart and after a failure, so there is nothing to do here but to answer.

use std::os::unix::net::UnixListener;

use bulkhead_protocol::{DriverName, Socket, Text};
use tonic::service::Routes;
use tonic::{Request, Response, Status, async_trait};
use tracing::{error, info};

use crate::helper::{CallError, Helper};
use crate::proto::registration::registration_server::{Registration, RegistrationServer};
use crate::proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};

/// What the kubelet calls a CSI driver.
const PLUGIN_TYPE: &str = "CSIPlugin";

/// The version of CSI as the kubelet counts it, which is not that of the specification.
const SUPPORTED_VERSION: &str = "1.0.0";

/// Answers the kubelet.
pub struct Registrar {
    driver: DriverName,
    endpoint: Text,
}

impl Registrar {
    /// Registers `driver` with the CSI socket at `endpoint`.
    pub fn new(driver: DriverName, endpoint: Text) -> Self {
        Self { driver, endpoint }
    }

    /// The service, for a socket of its own.
    pub fn routes(self) -> Routes {
        Routes::new(RegistrationServer::new(self))
    }
}

/// The registration socket. To be asked for only when the CSI socket is being served, because the kubelet calls that
/// one as soon as it sees this one.
///
/// # Errors
/// See [`CallError`].
pub async fn socket(helper: &Helper) -> Result<UnixListener, CallError> {
    helper.listen(Socket::Registration).await
}

#[async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _request: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        info!(driver = %self.driver, "the kubelet asks for the plugin");
        Ok(Response::new(PluginInfo {
            r#type: PLUGIN_TYPE.to_owned(),
            name: self.driver.to_string(),
            endpoint: self.endpoint.to_string(),
            supported_versions: vec![SUPPORTED_VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            info!(driver = %self.driver, "registered with the kubelet");
        } else {
            // The kubelet tries again by itself; to end here would only take the volumes in use from it.
            error!(driver = %self.driver, reason = status.error, "the kubelet has refused the plugin and will ask again");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
