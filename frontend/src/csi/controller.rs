//! The Controller service. Every node is its own controller, responsible for its own volumes.

use bulkhead_model::volumes::{Fault, Mode, SizeRange, identify};
use bulkhead_protocol::ErrorKind;
use tonic::{Request, Response, Status, async_trait};

use super::call::Call;
use super::capability::{access, check_options, common_mode, with_filesystem};
use super::codes::Operation;
use super::fields::{attributes, page_size, parameters, required, signed, size_range};
use super::offered::offered;
use super::snapshots::source;
use super::{Plugin, placement, validation};
use crate::proto::csi::controller_server::Controller;
use crate::proto::csi::*;
use crate::volumes::{Capacity, NewVolume, existing};

#[async_trait]
impl Controller for Plugin {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let plugin = self.clone();
        let volume = identify(&request.name).map(|(volume, _)| volume.to_string()).unwrap_or_default();
        Call::on("CreateVolume", Operation::Create, &volume)
            .complete(async move {
                required("name", &request.name)?;
                let mode = common_mode(&request.volume_capabilities)?;
                let attributes = attributes(&request.mutable_parameters)?;
                let parameters = parameters(&request.parameters)?.with_attributes(&attributes, mode)?;
                check_options(&parameters, &request.volume_capabilities)?;
                let new = NewVolume {
                    name: request.name,
                    mode,
                    range: size_range(request.capacity_range)?.unwrap_or(SizeRange::ANY),
                    parameters: with_filesystem(parameters, &request.volume_capabilities)?,
                    source: source(request.volume_content_source.as_ref())?,
                };
                placement::check(request.accessibility_requirements.as_ref(), &plugin.0.place)?;
                let provisioned = plugin.0.volumes.provision(new).await?;
                let volume = plugin.volume(provisioned.volume.as_str(), provisioned.size.get());
                let content_source = request.volume_content_source;
                Ok(CreateVolumeResponse { volume: Some(Volume { content_source, ..volume }) })
            })
            .await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let request = request.into_inner();
        let volumes = self.0.volumes.clone();
        let call = Call::on("DeleteVolume", Operation::Delete, &request.volume_id);
        call.complete(async move {
            required("volume_id", &request.volume_id)?;
            // A volume with an invalid id was never created.
            if let Ok(volume) = existing(&request.volume_id) {
                volumes.reclaim(volume).await?;
            }
            Ok(DeleteVolumeResponse {})
        })
        .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        let call = Call::on("ValidateVolumeCapabilities", Operation::Inspect, &request.volume_id);
        call.answer(async {
            required("volume_id", &request.volume_id)?;
            validation::check_complete(&request)?;
            let measured = self.0.volumes.measure(&existing(&request.volume_id)?, None).await?;
            Ok(validation::answer(request, &measured))
        })
        .await
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("ListVolumes", Operation::Inspect);
        call.answer(async {
            let entries = page_size(request.max_entries)?;
            let page = self.0.volumes.list(entries, &request.starting_token).await?;
            let entry = |volume: Volume| list_volumes_response::Entry { volume: Some(volume), status: None };
            let volumes = page.entries.iter().map(|listed| self.volume(listed.volume.as_str(), listed.size.get()));
            Ok(ListVolumesResponse { entries: volumes.map(entry).collect(), next_token: page.next.unwrap_or_default() })
        })
        .await
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        let request = request.into_inner();
        let call = Call::on("ControllerGetVolume", Operation::Inspect, &request.volume_id);
        call.answer(async {
            let volume = existing(required("volume_id", &request.volume_id)?)?;
            let measured = self.0.volumes.measure(&volume, None).await?;
            let condition = measured.condition;
            Ok(ControllerGetVolumeResponse {
                volume: Some(self.volume(volume.as_str(), measured.usage.spec.size.get())),
                status: Some(controller_get_volume_response::VolumeStatus {
                    published_node_ids: Vec::new(),
                    volume_condition: Some(VolumeCondition {
                        abnormal: condition.is_abnormal(),
                        message: condition.message,
                    }),
                }),
            })
        })
        .await
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<ControllerListVolumeHealthRequest>,
    ) -> Result<Response<ControllerListVolumeHealthResponse>, Status> {
        self.list_abnormal(request).await
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<ControllerGetVolumeHealthResponse>, Status> {
        let health = self.volume_health("ControllerGetVolumeHealth", request.into_inner().volume_id).await?;
        Ok(health.map(|health| ControllerGetVolumeHealthResponse { volume_health: Some(health) }))
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("GetCapacity", Operation::Inspect);
        call.answer(async {
            let here = request.accessible_topology.as_ref().is_none_or(|place| self.0.place.satisfies(&place.segments));
            let capabilities = &request.volume_capabilities;
            let mode = common_mode(capabilities).ok();
            let usable = capabilities.is_empty() || mode.is_some();
            let asked = parameters(&request.parameters);
            let minimum = asked.as_ref().map_or(0, |asked| asked.minimum_bytes(mode.unwrap_or(Mode::Directory)));
            let room = match asked.and_then(|all| with_filesystem(all, capabilities)) {
                Ok(parameters) if here && usable => self.0.volumes.capacity(&parameters, mode).await?,
                Err(fault) if !fault.is(ErrorKind::Unsupported) => return Err(fault),
                // There is no capacity for a volume that could not be created here.
                _ => Capacity::default(),
            };
            Ok(GetCapacityResponse {
                available_capacity: signed(room.available),
                maximum_volume_size: Some(signed(room.largest_volume)),
                minimum_volume_size: Some(signed(minimum)),
            })
        })
        .await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let volumes = self.0.volumes.clone();
        let call = Call::on("ControllerExpandVolume", Operation::Expand, &request.volume_id);
        call.complete(async move {
            required("volume_id", &request.volume_id)?;
            let range = size_range(request.capacity_range)?;
            let range = range.ok_or_else(|| Fault::invalid("capacity_range is missing"))?;
            let mode = match &request.volume_capability {
                Some(capability) => Some(access(Some(capability))?.mode()),
                None => None,
            };
            let size = volumes.grow(existing(&request.volume_id)?, range, None, mode).await?;
            Ok(ControllerExpandVolumeResponse { capacity_bytes: signed(size.get()), node_expansion_required: false })
        })
        .await
    }

    async fn controller_get_capabilities(
        &self,
        _request: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let call = Call::new("ControllerGetCapabilities", Operation::Inspect);
        call.answer(async {
            let capabilities = offered(self.0.volumes.can_copy().await);
            Ok(ControllerGetCapabilitiesResponse { capabilities })
        })
        .await
    }

    async fn controller_publish_volume(
        &self,
        _request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        Err(Status::unimplemented("volumes are local: there is nothing to attach to a node"))
    }

    async fn controller_unpublish_volume(
        &self,
        _request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        Err(Status::unimplemented("volumes are local: there is nothing to detach from a node"))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        let request = request.into_inner();
        let volumes = self.0.volumes.clone();
        let call = Call::on("ControllerModifyVolume", Operation::Modify, &request.volume_id);
        call.complete(async move {
            required("volume_id", &request.volume_id)?;
            let attributes = attributes(&request.mutable_parameters)?;
            volumes.modify(existing(&request.volume_id)?, &attributes).await?;
            Ok(ControllerModifyVolumeResponse {})
        })
        .await
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        self.take_snapshot(request).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        self.drop_snapshot(request).await
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        self.snapshots(request).await
    }

    async fn get_snapshot(
        &self,
        request: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        self.one_snapshot(request).await
    }
}

impl Plugin {
    fn volume(&self, volume: &str, size: u64) -> Volume {
        Volume {
            capacity_bytes: signed(size),
            volume_id: volume.to_owned(),
            accessible_topology: vec![self.topology()],
            ..Volume::default()
        }
    }

    /// Where the volumes and snapshots of this node can be used.
    pub(super) fn topology(&self) -> Topology {
        Topology { segments: self.0.place.segments() }
    }
}
