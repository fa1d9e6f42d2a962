//! Bulkhead's own service, alongside CSI on the same socket: what an operator wants to know and CSI has no call for.

mod check;
mod doctor;
mod snapshots;

use std::collections::BTreeMap;

use bulkhead_model::volumes::Fault;
use bulkhead_protocol::{ErrorKind, QuotaMode, VolumeId, VolumeKind};
use tonic::{Request, Response, Status, async_trait};

use crate::csi::{Operation, code};
use crate::export;
use crate::helper::Helper;
use crate::kubernetes::{Owner, Ownership, View};
use crate::proto::inspection::get_volume_response::Ownership as Known;
use crate::proto::inspection::inspection_server::{Inspection, InspectionServer};
use crate::proto::inspection::{
    DiagnoseRequest, DiagnoseResponse, ExportVolumesRequest, ExportVolumesResponse, GetSnapshotRequest,
    GetSnapshotResponse, GetVolumeRequest, GetVolumeResponse, ListOrphansRequest, ListOrphansResponse,
    ListPoolsRequest, ListPoolsResponse, ListSnapshotsRequest, ListSnapshotsResponse, ListVolumesRequest,
    ListVolumesResponse, Pool, Volume,
};
use crate::readiness::Readiness;
use crate::server::LONGEST_MESSAGE;
use crate::volumes::{Inspected, Measured, PoolState, Volumes, existing};

/// How many volumes a page of exported ones has: their records fit a message.
const EXPORTED: usize = 500;

/// The service, with the parts of this process that it reports on.
#[derive(Clone)]
pub struct Inspector {
    /// The privileged helper.
    pub helper: Helper,
    /// The volumes of the node.
    pub volumes: Volumes,
    /// The storage agent.
    pub agent: View,
    /// Which parts of the frontend work; `None` if this process is not a frontend.
    pub readiness: Option<Readiness>,
}

impl Inspector {
    /// The service, for the socket that CSI is served on.
    pub fn service(self) -> InspectionServer<Self> {
        InspectionServer::new(self).max_decoding_message_size(LONGEST_MESSAGE)
    }
}

#[async_trait]
impl Inspection for Inspector {
    async fn list_pools(&self, _request: Request<ListPoolsRequest>) -> Result<Response<ListPoolsResponse>, Status> {
        let mut used = self.volumes.used().await.map_err(status)?;
        let pools = self.volumes.pools().await.map_err(status)?.into_iter();
        let pools = pools.map(|state| Pool { used_bytes: used.remove(&state.name).unwrap_or_default(), ..pool(state) });
        Ok(Response::new(ListPoolsResponse { pools: pools.collect() }))
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let (page, next) = self.volumes.inspect_page(&request.into_inner().starting_token).await.map_err(status)?;
        let mut owners = self.agent.owners();
        let volumes = page.into_iter().map(|inspected| owned(inspected, &mut owners)).collect();
        Ok(Response::new(ListVolumesResponse { volumes, next_token: next.unwrap_or_default() }))
    }

    async fn get_volume(&self, request: Request<GetVolumeRequest>) -> Result<Response<GetVolumeResponse>, Status> {
        let GetVolumeRequest { id, without_owner, with_sharing } = request.into_inner();
        let volume = existing(&id).map_err(status)?;
        let inspected = self.volumes.inspect(volume.clone()).await.map_err(status)?;
        let ownership = if without_owner {
            Ownership::Unknown("nobody was asked".to_owned())
        } else {
            self.agent.ownership(&volume).await
        };
        let mut answer = with_ownership(inspected, ownership);
        if let Some(volume) = answer.volume.take() {
            let mut volume = snapshots::with_origin(&self.volumes, volume).await.map_err(status)?;
            if with_sharing {
                volume = snapshots::with_sharing(&self.volumes, volume).await;
            }
            answer.volume = Some(volume);
        }
        Ok(Response::new(answer))
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        snapshots::page(&self.volumes, request.get_ref()).await.map(Response::new).map_err(status)
    }

    async fn get_snapshot(
        &self,
        request: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        let id = existing(&request.into_inner().id).map_err(status)?;
        let taken = self.volumes.snapshot(&id).await.map_err(status)?;
        Ok(Response::new(GetSnapshotResponse { snapshot: Some(snapshots::described(taken)) }))
    }

    async fn export_volumes(
        &self,
        request: Request<ExportVolumesRequest>,
    ) -> Result<Response<ExportVolumesResponse>, Status> {
        let page = export::page(&self.volumes, EXPORTED, &request.into_inner().starting_token).await.map_err(status)?;
        let volumes = page.volumes.iter().filter_map(|volume| serde_json::to_string(volume).ok()).collect();
        Ok(Response::new(ExportVolumesResponse { volumes, next_token: page.next.unwrap_or_default() }))
    }

    async fn list_orphans(
        &self,
        _request: Request<ListOrphansRequest>,
    ) -> Result<Response<ListOrphansResponse>, Status> {
        let (mut volumes, mut owners) = (Vec::new(), self.agent.owners());
        for orphan in self.agent.orphans().await.map_err(status)? {
            match self.volumes.inspect(orphan).await {
                Ok(inspected) => volumes.push(owned(inspected, &mut owners)),
                // It has been deleted in the meantime.
                Err(fault) if fault.is(ErrorKind::NotFound) => {}
                Err(fault) => return Err(status(fault)),
            }
        }
        Ok(Response::new(ListOrphansResponse { volumes }))
    }

    async fn diagnose(&self, _request: Request<DiagnoseRequest>) -> Result<Response<DiagnoseResponse>, Status> {
        let frontend_release = env!("CARGO_PKG_VERSION").to_owned();
        let checks = doctor::checks(self).await.into_iter().map(Into::into).collect();
        Ok(Response::new(DiagnoseResponse { frontend_release, checks }))
    }
}

/// A volume, with what is known of the objects that it belongs to.
fn with_ownership(inspected: Inspected, ownership: Ownership) -> GetVolumeResponse {
    let (owner, ownership, reason) = match ownership {
        Ownership::Known(owner) => (owner, Known::Known, String::new()),
        Ownership::NoAgent => (None, Known::NoAgent, "no storage agent runs on this node".to_owned()),
        Ownership::Unknown(reason) => (None, Known::Unknown, reason),
    };
    let volume = Some(described(inspected, owner.unwrap_or_default()));
    GetVolumeResponse { volume, ownership: ownership.into(), reason }
}

/// A volume, with the objects that it belongs to according to `owners`.
fn owned(inspected: Inspected, owners: &mut BTreeMap<VolumeId, Owner>) -> Volume {
    let owner = owners.remove(&inspected.listed.volume).unwrap_or_default();
    described(inspected, owner)
}

fn described(Inspected { listed, measured }: Inspected, owner: Owner) -> Volume {
    let kind = match &measured {
        Ok(Measured { usage, .. }) => kind(&usage.spec.kind),
        Err(_) if listed.block => "block",
        Err(_) => "directory",
    };
    let volume = Volume {
        id: listed.volume.to_string(),
        pool: listed.pool.to_string(),
        kind: kind.to_owned(),
        size_bytes: listed.size.get(),
        targets: listed.targets,
        persistent_volume: owner.persistent_volume,
        claim: owner.claim.map(|(namespace, name)| format!("{namespace}/{name}")).unwrap_or_default(),
        ..Volume::default()
    };
    match measured {
        Ok(measured) => Volume {
            size_bytes: measured.usage.spec.size.get(),
            used_bytes: measured.usage.used_bytes,
            available_bytes: measured.usage.available_bytes,
            used_inodes: measured.usage.used_inodes,
            inodes: measured.inodes(),
            inside_bytes: measured.inside(),
            targets: measured.usage.targets,
            abnormal: measured.condition.is_abnormal(),
            condition: measured.condition.message,
            settings: settings(&measured.usage.spec.kind),
            ..volume
        },
        Err(fault) => Volume { abnormal: true, condition: fault.to_string(), ..volume },
    }
}

fn status(fault: Fault) -> Status {
    Status::new(code(Operation::Inspect, fault.kind), fault.to_string())
}

fn pool(state: PoolState) -> Pool {
    let pool = Pool {
        name: state.name.to_string(),
        enforced: state.quota == QuotaMode::Enforced,
        conditions: state.told(),
        condition_names: names(&state),
        filesystem_limit: state.counts.filesystem_limit,
        filesystems: state.counts.filesystems,
        inodes: state.counts.inodes.map(|inodes| inodes.total),
        free_inodes: state.counts.inodes.map(|inodes| inodes.free),
        snapshots: state.counts.snapshots,
        extent_limit: state.counts.extent_limit,
        snapshot_bytes: state.counts.snapshot_bytes,
        ..Pool::default()
    };
    match state.status {
        Ok(status) => Pool {
            served: true,
            total_bytes: status.total,
            available_bytes: status.available,
            promised_bytes: status.promised,
            volumes: status.volumes,
            emptying: status.emptying,
            ..pool
        },
        Err(_) => pool,
    }
}

/// The names of a pool's conditions.
fn names(state: &PoolState) -> Vec<String> {
    if state.status.is_err() && state.conditions.is_empty() {
        return vec!["unknown".to_owned()];
    }
    state.conditions.iter().map(|condition| condition.kind().name.to_owned()).collect()
}

/// The word for a kind of volume.
fn kind(kind: &VolumeKind) -> &'static str {
    match kind {
        VolumeKind::Directory { .. } => "directory",
        VolumeKind::Image { .. } => "block",
        VolumeKind::Filesystem { .. } => "filesystem",
        VolumeKind::Snapshot { .. } => "snapshot",
    }
}

/// The settings that only volumes of this kind have, named as in a storage class.
fn settings(kind: &VolumeKind) -> BTreeMap<String, String> {
    let pairs = match kind {
        VolumeKind::Directory { mode, .. } => vec![("dirMode", mode.to_string())],
        VolumeKind::Image { sparse, block_size } => {
            vec![("sparse", sparse.to_string()), ("blockSize", block_size.get().to_string())]
        }
        VolumeKind::Filesystem { sparse, mode } => {
            let backing = ("backing", "image".to_owned());
            vec![backing, ("sparse", sparse.to_string()), ("dirMode", mode.to_string())]
        }
        // It was not made with any.
        VolumeKind::Snapshot { .. } => Vec::new(),
    };
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
