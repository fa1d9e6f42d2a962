//! The Controller service's calls on snapshots, and the sources of volumes.

use bulkhead_model::volumes::{Fault, check_snapshot_parameters, group_of, identify_snapshot};
use bulkhead_protocol::{ErrorKind, Snapshot as Taken};
use tonic::{Request, Response, Status};

use super::call::Call;
use super::codes::Operation;
use super::fields::{page_size, required, signed};
use super::{Plugin, placement};
use crate::proto::csi::volume_content_source::Type;
use crate::proto::csi::*;
use crate::volumes::{Source, existing};

const NANOSECONDS: u64 = 1_000_000_000;

impl Plugin {
    /// Answers `CreateSnapshot`.
    pub(super) async fn take_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        let request = request.into_inner();
        let plugin = self.clone();
        let snapshot = identify_snapshot(&request.name).map(|(snapshot, _)| snapshot.to_string()).unwrap_or_default();
        Call::on("CreateSnapshot", Operation::Snapshot, &snapshot)
            .complete(async move {
                required("name", &request.name)?;
                required("source_volume_id", &request.source_volume_id)?;
                check_snapshot_parameters(request.parameters.keys().map(String::as_str))?;
                let source = existing(&request.source_volume_id)?;
                placement::check(request.accessibility_requirements.as_ref(), &plugin.0.place)?;
                let taken = plugin.0.volumes.create_snapshot(source, &request.name).await?;
                Ok(CreateSnapshotResponse { snapshot: Some(plugin.told(taken)) })
            })
            .await
    }

    /// Answers `DeleteSnapshot`.
    pub(super) async fn drop_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        let request = request.into_inner();
        let volumes = self.0.volumes.clone();
        let call = Call::on("DeleteSnapshot", Operation::Delete, &request.snapshot_id);
        call.complete(async move {
            required("snapshot_id", &request.snapshot_id)?;
            // A snapshot with an invalid id was never taken.
            if let Ok(snapshot) = existing(&request.snapshot_id) {
                volumes.delete_snapshot(snapshot).await?;
            }
            Ok(DeleteSnapshotResponse {})
        })
        .await
    }

    /// Answers `ListSnapshots`. What it is asked for and does not exist is not listed.
    pub(super) async fn snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        let request = request.into_inner();
        let call = Call::on("ListSnapshots", Operation::Inspect, &request.snapshot_id);
        call.answer(async {
            let entries = page_size(request.max_entries)?;
            let source = &request.source_volume_id;
            let (snapshots, next) = if !request.snapshot_id.is_empty() {
                let found = self.found(&request.snapshot_id).await?;
                let is_of = |taken: &Taken| source.is_empty() || taken.origin.source.as_str() == source;
                (found.into_iter().filter(is_of).collect(), None)
            } else if source.is_empty() {
                let page = self.0.volumes.list_snapshots(None, entries, &request.starting_token).await?;
                (page.entries, page.next)
            } else if let Ok(source) = existing(source) {
                let page = self.0.volumes.list_snapshots(Some(&source), entries, &request.starting_token).await?;
                (page.entries, page.next)
            } else {
                (Vec::new(), None)
            };
            let entry = |taken| list_snapshots_response::Entry { snapshot: Some(self.told(taken)) };
            let entries = snapshots.into_iter().map(entry).collect();
            Ok(ListSnapshotsResponse { entries, next_token: next.unwrap_or_default() })
        })
        .await
    }

    /// Answers `GetSnapshot`.
    pub(super) async fn one_snapshot(
        &self,
        request: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        let request = request.into_inner();
        let call = Call::on("GetSnapshot", Operation::Inspect, &request.snapshot_id);
        call.answer(async {
            let id = required("snapshot_id", &request.snapshot_id)?;
            let found = self.found(id).await?.ok_or_else(|| Fault::not_found("no such snapshot"))?;
            Ok(GetSnapshotResponse { snapshot: Some(self.told(found)) })
        })
        .await
    }

    async fn found(&self, id: &str) -> Result<Option<Taken>, Fault> {
        // A snapshot with an invalid id was never taken.
        let Ok(id) = existing(id) else { return Ok(None) };
        match self.0.volumes.snapshot(&id).await {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(fault) if fault.is(ErrorKind::NotFound) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// A snapshot in CSI's words. It can be used as soon as it exists.
    pub(super) fn told(&self, taken: Taken) -> Snapshot {
        let group = group_of(&taken.snapshot);
        Snapshot {
            size_bytes: signed(taken.size.get()),
            snapshot_id: taken.snapshot.to_string(),
            source_volume_id: taken.origin.source.to_string(),
            creation_time: Some(time(taken.origin.copied)),
            ready_to_use: true,
            group_snapshot_id: group.map(|group| group.to_string()).unwrap_or_default(),
            accessible_topology: vec![self.topology()],
        }
    }
}

/// A time of day, in nanoseconds since 1970.
pub(super) fn time(nanoseconds: u64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: signed(nanoseconds / NANOSECONDS),
        nanos: i32::try_from(nanoseconds % NANOSECONDS).unwrap_or_default(),
    }
}

/// Returns what a new volume is to begin as a copy of.
///
/// # Errors
/// When nothing is named, or no such thing can exist.
pub(super) fn source(content: Option<&VolumeContentSource>) -> Result<Option<Source>, Fault> {
    let Some(content) = content else { return Ok(None) };
    match &content.r#type {
        Some(Type::Snapshot(source)) => {
            let id = required("volume_content_source.snapshot.snapshot_id", &source.snapshot_id)?;
            existing(id).map(Source::Snapshot).map(Some)
        }
        Some(Type::Volume(source)) => {
            let id = required("volume_content_source.volume.volume_id", &source.volume_id)?;
            existing(id).map(Source::Volume).map(Some)
        }
        None => Err(Fault::invalid("volume_content_source names neither a snapshot nor a volume")),
    }
}
