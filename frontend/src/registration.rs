//! The kubelet's plugin registration, version 1.
//!
//! The kubelet finds the socket, asks for the plugin's identity, calls the CSI socket, and reports its decision. It asks
//! again by itself after a restart or a failure, so all this module does is answer.

use std::os::unix::net::UnixListener;

use bulkhead_protocol::{DriverName, Socket, Text};
use tonic::service::Routes;
use tonic::{Request, Response, Status, async_trait};
use tracing::{error, info};

use crate::helper::{CallError, Helper};
use crate::proto::registration::registration_server::{Registration, RegistrationServer};
use crate::proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use crate::readiness::{Part, Readiness};
use crate::server::LONGEST_MESSAGE;

/// The kubelet's name for the type of a CSI driver.
const PLUGIN_TYPE: &str = "CSIPlugin";

/// The CSI version in the kubelet's own numbering, which differs from the specification's.
const SUPPORTED_VERSION: &str = "1.0.0";

/// Answers the kubelet.
#[derive(Clone)]
pub struct Registrar {
    driver: DriverName,
    endpoint: Text,
    readiness: Readiness,
}

impl Registrar {
    /// Registers `driver` with the CSI socket at `endpoint`, and tells `readiness` what the kubelet decides.
    pub fn new(driver: DriverName, endpoint: Text, readiness: Readiness) -> Self {
        Self { driver, endpoint, readiness }
    }

    /// The service, for a socket of its own.
    pub fn routes(self) -> Routes {
        Routes::new(RegistrationServer::new(self).max_decoding_message_size(LONGEST_MESSAGE))
    }
}

/// The registration socket. Request it only once the CSI socket is being served, because the kubelet calls the CSI
/// socket as soon as it sees this one.
///
/// # Errors
/// See [`CallError`].
pub async fn socket(helper: &Helper) -> Result<UnixListener, CallError> {
    helper.listen(Socket::Registration).await
}

#[async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _request: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        info!(driver = %self.driver, "the kubelet requested the plugin's identity");
        Ok(Response::new(PluginInfo {
            r#type: PLUGIN_TYPE.to_owned(),
            name: self.driver.to_string(),
            // As it is: shown, special characters in it would be escaped.
            endpoint: self.endpoint.as_str().to_owned(),
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
            self.readiness.ready(Part::Registration);
        } else {
            // The kubelet retries by itself; exiting here would only cut it off from volumes in use.
            error!(driver = %self.driver, reason = status.error, "the kubelet rejected the plugin and will retry");
            let reason = format!("the kubelet rejected the driver and will retry: {}", status.error);
            self.readiness.not_ready(Part::Registration, reason);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
