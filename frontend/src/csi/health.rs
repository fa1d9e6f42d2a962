//! The calls that ask for the health of volumes and of storage (CSI 1.13).

use bulkhead_model::volumes::Effect;
use bulkhead_protocol::VolumeId;
use tonic::{Request, Response, Status};

use super::Plugin;
use super::call::Call;
use super::codes::Operation;
use super::fields::{page_size, required};
use crate::proto::csi::node_get_storage_health_response::StorageBackendHealth;
use crate::proto::csi::volume_health::VolumeHealthEntry;
use crate::proto::csi::{
    ControllerListVolumeHealthRequest, ControllerListVolumeHealthResponse, NodeGetStorageHealthResponse,
    StorageHealthErrorType, VolumeHealth, VolumeHealthErrorType,
};
use crate::volumes::{Report, existing};

/// The longest message in bytes that Kubernetes 1.37 takes: with a longer one it refuses all of a pod's status.
const LONGEST: usize = 1024;

/// How many conditions of storage it takes: with more it takes none.
const MOST: usize = 16;

impl Plugin {
    /// Answers `rpc`, which asks for the health of a volume. A node and its controller see the same.
    pub(super) async fn volume_health(&self, rpc: &'static str, id: String) -> Result<Response<VolumeHealth>, Status> {
        let call = Call::on(rpc, Operation::Inspect, &id);
        call.answer(async {
            let volume = existing(required("volume_id", &id)?)?;
            let reports = self.0.volumes.health_of(&volume).await?;
            let health_statuses = reports.into_iter().map(entry).collect();
            Ok(VolumeHealth { volume_id: id.clone(), health_statuses })
        })
        .await
    }

    /// Answers `ControllerListVolumeHealth`.
    pub(super) async fn list_abnormal(
        &self,
        request: Request<ControllerListVolumeHealthRequest>,
    ) -> Result<Response<ControllerListVolumeHealthResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("ControllerListVolumeHealth", Operation::Inspect);
        call.answer(async {
            let entries = page_size(request.max_entries)?;
            let page = self.0.volumes.abnormal_volumes(entries, &request.starting_token)?;
            let health = |(volume, report): (VolumeId, Report)| VolumeHealth {
                volume_id: volume.to_string(),
                health_statuses: vec![entry(report)],
            };
            let entries = page.entries.into_iter().map(health).collect();
            Ok(ControllerListVolumeHealthResponse { entries, next_token: page.next.unwrap_or_default() })
        })
        .await
    }

    /// Answers `NodeGetStorageHealth`. That the helper is away is an answer too: an orchestrator may ignore an error.
    pub(super) async fn storage_health(&self) -> Result<Response<NodeGetStorageHealthResponse>, Status> {
        let call = Call::new("NodeGetStorageHealth", Operation::Inspect);
        call.answer(async {
            let health = |Report { ailment, message }| StorageBackendHealth {
                status: match ailment.effect {
                    Effect::Degraded => StorageHealthErrorType::StorageDegraded,
                    Effect::Inaccessible | Effect::DataLoss => StorageHealthErrorType::StorageUnreachable,
                }
                .into(),
                reason: ailment.reason(),
                message: shortened(message),
                volume_capability: None,
            };
            let reports = self.0.volumes.health_of_pools().await?;
            let backend_health = reports.into_iter().take(MOST).map(health).collect();
            Ok(NodeGetStorageHealthResponse { backend_health })
        })
        .await
    }
}

fn entry(Report { ailment, message }: Report) -> VolumeHealthEntry {
    let status = match ailment.effect {
        Effect::Degraded => VolumeHealthErrorType::Degraded,
        Effect::Inaccessible => VolumeHealthErrorType::Inaccessible,
        Effect::DataLoss => VolumeHealthErrorType::DataLoss,
    };
    VolumeHealthEntry { status: status.into(), reason: ailment.reason(), message: shortened(message) }
}

fn shortened(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(LONGEST));
    message
}
