//! The GroupController service: snapshots of several volumes of this node at one moment.

use std::collections::BTreeSet;

use bulkhead_model::volumes::{Fault, check_group_parameters, identify_group};
use bulkhead_protocol::VolumeId;
use tonic::{Request, Response, Status, async_trait};

use super::Plugin;
use super::call::Call;
use super::codes::Operation;
use super::fields::required;
use super::snapshots::time;
use crate::proto::csi::group_controller_server::GroupController;
use crate::proto::csi::group_controller_service_capability::{Rpc, Type, rpc};
use crate::proto::csi::*;
use crate::volumes::{Group, existing};

#[async_trait]
impl GroupController for Plugin {
    async fn group_controller_get_capabilities(
        &self,
        _request: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<GroupControllerGetCapabilitiesResponse>, Status> {
        let call = Call::new("GroupControllerGetCapabilities", Operation::Inspect);
        call.answer(async {
            let rpc = Rpc { r#type: rpc::Type::CreateDeleteGetVolumeGroupSnapshot.into() };
            let offered = GroupControllerServiceCapability { r#type: Some(Type::Rpc(rpc)) };
            let can_copy = self.0.volumes.can_copy().await;
            let capabilities = if can_copy { vec![offered] } else { Vec::new() };
            Ok(GroupControllerGetCapabilitiesResponse { capabilities })
        })
        .await
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<CreateVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        let plugin = self.clone();
        let group = identify_group(&request.name).map(|(group, _)| group.to_string()).unwrap_or_default();
        Call::on("CreateVolumeGroupSnapshot", Operation::Group, &group)
            .complete(async move {
                required("name", &request.name)?;
                check_group_parameters(request.parameters.keys().map(String::as_str))?;
                let sources = request.source_volume_ids.iter().map(|source| existing(source));
                let sources: Vec<VolumeId> = sources.collect::<Result<_, _>>()?;
                if sources.is_empty() {
                    return Err(Fault::invalid("source_volume_ids is missing"));
                }
                let group = plugin.0.volumes.create_group(&sources, &request.name).await?;
                Ok(CreateVolumeGroupSnapshotResponse { group_snapshot: Some(plugin.told_group(group)) })
            })
            .await
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<DeleteVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        let volumes = self.0.volumes.clone();
        let call = Call::on("DeleteVolumeGroupSnapshot", Operation::Delete, &request.group_snapshot_id);
        call.complete(async move {
            required("group_snapshot_id", &request.group_snapshot_id)?;
            // A group with an invalid id was never taken.
            if let Ok(group) = existing(&request.group_snapshot_id) {
                // Some may have been deleted by an earlier call; what is left must have been meant.
                let left = volumes.snapshots_in(&group).await?;
                let named: BTreeSet<&str> = request.snapshot_ids.iter().map(String::as_str).collect();
                let other = left.iter().find(|found| !named.is_empty() && !named.contains(found.snapshot.as_str()));
                if let Some(other) = other {
                    return Err(mismatch(&format!("{} is missing", other.snapshot)));
                }
                volumes.delete_group(&group).await?;
            }
            Ok(DeleteVolumeGroupSnapshotResponse {})
        })
        .await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<GetVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        let call = Call::on("GetVolumeGroupSnapshot", Operation::Inspect, &request.group_snapshot_id);
        call.answer(async {
            let id = required("group_snapshot_id", &request.group_snapshot_id)?;
            let group = self.0.volumes.group(&existing(id)?).await?;
            let named: BTreeSet<&str> = request.snapshot_ids.iter().map(String::as_str).collect();
            let found: BTreeSet<&str> = group.snapshots.iter().map(|found| found.snapshot.as_str()).collect();
            if !named.is_empty() && named != found {
                let found: Vec<_> = found.into_iter().collect();
                return Err(mismatch(&format!("they are {}", found.join(", "))));
            }
            Ok(GetVolumeGroupSnapshotResponse { group_snapshot: Some(self.told_group(group)) })
        })
        .await
    }
}

impl Plugin {
    /// A group in CSI's words. It can be used as soon as it exists.
    fn told_group(&self, group: Group) -> VolumeGroupSnapshot {
        VolumeGroupSnapshot {
            group_snapshot_id: group.id.to_string(),
            creation_time: Some(time(group.taken())),
            ready_to_use: true,
            snapshots: group.snapshots.into_iter().map(|taken| self.told(taken)).collect(),
        }
    }
}

/// Whoever names other snapshots than a group has takes it for another.
fn mismatch(how: &str) -> Fault {
    Fault::invalid(format!("snapshot_ids are not those of the group: {how}"))
}
