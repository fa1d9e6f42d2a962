//! The Node service.

use bulkhead_model::volumes::SizeRange;
use tonic::{Request, Response, Status, async_trait};

use super::Plugin;
use super::call::Call;
use super::capability::access;
use super::codes::Operation;
use super::fields::{required, signed};
use crate::proto::csi::node_server::Node;
use crate::proto::csi::node_service_capability::{Rpc, Type, rpc};
use crate::proto::csi::volume_usage::Unit;
use crate::proto::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetStorageHealthRequest, NodeGetStorageHealthResponse,
    NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse, VolumeCondition, VolumeUsage,
};
use crate::volumes::{Measured, existing};

#[async_trait]
impl Node for Plugin {
    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let volumes = self.0.volumes.clone();
        let call = Call::on("NodePublishVolume", Operation::Publish, &request.volume_id);
        call.complete(async move {
            required("volume_id", &request.volume_id)?;
            required("target_path", &request.target_path)?;
            let access = access(request.volume_capability.as_ref())?.restricted(request.readonly);
            volumes.publish(existing(&request.volume_id)?, &request.target_path, access).await?;
            Ok(NodePublishVolumeResponse {})
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let volumes = self.0.volumes.clone();
        let call = Call::on("NodeUnpublishVolume", Operation::Unpublish, &request.volume_id);
        call.complete(async move {
            required("volume_id", &request.volume_id)?;
            required("target_path", &request.target_path)?;
            // A volume with an invalid id was never published.
            if let Ok(volume) = existing(&request.volume_id) {
                volumes.unpublish(volume, &request.target_path).await?;
            }
            Ok(NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let call = Call::on("NodeGetVolumeStats", Operation::Inspect, &request.volume_id);
        call.answer(async {
            required("volume_id", &request.volume_id)?;
            required("volume_path", &request.volume_path)?;
            let volume = existing(&request.volume_id)?;
            let measured = self.0.volumes.measure(&volume, Some(&request.volume_path)).await?;
            Ok(NodeGetVolumeStatsResponse {
                usage: usage(&measured),
                volume_condition: Some(VolumeCondition {
                    abnormal: measured.condition.is_abnormal(),
                    message: measured.condition.message,
                }),
            })
        })
        .await
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<Response<NodeGetVolumeHealthResponse>, Status> {
        // It need not be published there, or anywhere.
        let health = self.volume_health("NodeGetVolumeHealth", request.into_inner().volume_id).await?;
        Ok(health.map(|health| NodeGetVolumeHealthResponse { volume_health: Some(health) }))
    }

    async fn node_get_storage_health(
        &self,
        _request: Request<NodeGetStorageHealthRequest>,
    ) -> Result<Response<NodeGetStorageHealthResponse>, Status> {
        self.storage_health().await
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let volumes = self.0.volumes.clone();
        let call = Call::on("NodeExpandVolume", Operation::Expand, &request.volume_id);
        call.complete(async move {
            required("volume_id", &request.volume_id)?;
            required("volume_path", &request.volume_path)?;
            // Both are optional here; without a range the volume keeps its size.
            let range = match request.capacity_range {
                Some(range) => SizeRange::new(range.required_bytes, range.limit_bytes)?,
                None => SizeRange::ANY,
            };
            let mode = match &request.volume_capability {
                Some(capability) => Some(access(Some(capability))?.mode()),
                None => None,
            };
            let volume = existing(&request.volume_id)?;
            let size = volumes.grow(volume, range, Some(&request.volume_path), mode).await?;
            Ok(NodeExpandVolumeResponse { capacity_bytes: signed(size.get()) })
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _request: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capabilities = [
            rpc::Type::GetVolumeStats,
            rpc::Type::ExpandVolume,
            rpc::Type::VolumeCondition,
            rpc::Type::SingleNodeMultiWriter,
            rpc::Type::GetVolumeHealth,
            rpc::Type::GetStorageHealth,
        ];
        let capability = |rpc: rpc::Type| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: rpc.into() })) };
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: capabilities.map(capability).into() }))
    }

    async fn node_get_info(
        &self,
        _request: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.0.node.clone(),
            max_volumes_per_node: 0,
            accessible_topology: Some(self.topology()),
        }))
    }

    async fn node_stage_volume(
        &self,
        _request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        Err(Status::unimplemented("volumes are published without staging"))
    }

    async fn node_unstage_volume(
        &self,
        _request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        Err(Status::unimplemented("volumes are published without staging"))
    }
}

/// Bytes and inodes. Values that nothing counts are omitted, which CSI expresses as zero.
fn usage(measured: &Measured) -> Vec<VolumeUsage> {
    let counted = &measured.usage;
    let total = measured.inside().unwrap_or(counted.spec.size.get());
    let Some(inodes) = measured.inodes() else {
        return vec![VolumeUsage { unit: Unit::Bytes.into(), total: signed(total), used: 0, available: 0 }];
    };
    let used = counted.used_bytes.unwrap_or(0);
    let available = counted.available_bytes.or(counted.used_bytes.map(|used| total.saturating_sub(used))).unwrap_or(0);
    let used_inodes = counted.used_inodes.unwrap_or(0);
    let available_inodes = counted.available_inodes.unwrap_or(0);
    // The filesystem may run out of inodes before the volume has as many as it may have.
    let total_inodes = match (counted.used_inodes, counted.available_inodes) {
        (Some(used), Some(available)) => inodes.min(used.saturating_add(available)),
        _ => inodes,
    };
    vec![
        VolumeUsage {
            unit: Unit::Bytes.into(),
            total: signed(total),
            used: signed(used),
            available: signed(available),
        },
        VolumeUsage {
            unit: Unit::Inodes.into(),
            total: signed(total_inodes),
            used: signed(used_inodes),
            available: signed(available_inodes),
        },
    ]
}
