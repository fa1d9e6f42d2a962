//! The Identity service.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::timeout;
use tonic::{Request, Response, Status, async_trait};

use super::Plugin;
use super::call::Call;
use super::codes::Operation;
use crate::proto::csi::identity_server::Identity;
use crate::proto::csi::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
use crate::proto::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};

/// How long the helper may take to answer before the plugin reports that it is not ready.
const PROBE: Duration = Duration::from_millis(800);

#[async_trait]
impl Identity for Plugin {
    async fn get_plugin_info(
        &self,
        _request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.0.driver.to_string(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: BTreeMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _request: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |service: service::Type| Type::Service(Service { r#type: service.into() });
        let capabilities = [
            service(service::Type::ControllerService),
            service(service::Type::VolumeAccessibilityConstraints),
            service(service::Type::GroupControllerService),
            service(service::Type::SnapshotMetadataService),
            service(service::Type::SnapshotAccessibilityConstraints),
            Type::VolumeExpansion(VolumeExpansion { r#type: volume_expansion::Type::Online.into() }),
        ];
        let capabilities = capabilities.map(|capability| PluginCapability { r#type: Some(capability) }).into();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let call = Call::new("Probe", Operation::Inspect);
        call.answer(async {
            let ready = matches!(timeout(PROBE, self.0.volumes.probe()).await, Ok(Ok(())));
            Ok(ProbeResponse { ready: Some(ready) })
        })
        .await
    }
}
