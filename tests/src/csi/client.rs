//! One connection and its calls.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use super::requests;
use super::v1::controller_client::ControllerClient;
use super::v1::group_controller_client::GroupControllerClient;
use super::v1::identity_client::IdentityClient;
use super::v1::node_client::NodeClient;
use super::v1::snapshot_metadata_client::SnapshotMetadataClient;
use super::v1::*;
use crate::pace::{self, Allowance};
use crate::undo::{Pending, Undo};

/// A connection to a CSI endpoint.
#[derive(Debug)]
pub struct CsiClient {
    runtime: Runtime,
    channel: Channel,
    limit: Duration,
    pending: Pending,
}

macro_rules! calls {
    ($($client:ident: $($call:ident($request:ident) -> $reply:ident $(=> $record:ident)?),+;)+) => {
        $($(
            #[doc = concat!("Calls `", stringify!($call), "`.\n\n# Errors\nThe status that the plugin answers with.")]
            pub fn $call(&self, request: $request) -> Result<$reply, Status> {
                let answer = self.settled(|| {
                    let (mut client, request) = ($client::new(self.channel.clone()), request.clone());
                    async move { client.$call(request).await }
                })?;
                let call = (request, answer);
                $(self.$record(&call.0, &call.1);)?
                Ok(call.1)
            }
        )+)+
    };
}

impl CsiClient {
    /// Connects to the socket at `path`.
    pub fn connect(path: &Path) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()))?;
        let connecting =
            async { tokio::time::timeout(pace::patience(Duration::from_secs(60)), endpoint.connect()).await };
        let channel = runtime.block_on(connecting)?.with_context(|| format!("connect to {}", path.display()))?;
        Ok(Self { runtime, channel, limit: pace::patience(Duration::from_secs(240)), pending: Pending::default() })
    }

    /// Records in `pending` what is to be undone of what it calls for.
    pub fn recording(self, pending: &Pending) -> Self {
        Self { pending: pending.clone(), ..self }
    }

    /// Sets the time after which a call is given up.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Checks that the plugin says that it is ready.
    pub fn check_ready(&self) -> Result<()> {
        let ready = self.probe(ProbeRequest {})?.ready;
        ensure!(ready == Some(true), "probe says ready: {ready:?}");
        Ok(())
    }

    /// The connection, for concurrent calls: run them with [`Self::run`].
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Runs calls that a test composes itself.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// The ids on each page of a list, from the first page to the last.
    pub fn list_pages(&self, max_entries: i32) -> Result<Vec<Vec<String>>> {
        let mut pages = Vec::new();
        let mut starting_token = String::new();
        loop {
            let page = self.list_volumes(ListVolumesRequest { max_entries, starting_token })?;
            let ids = page
                .entries
                .into_iter()
                .map(|entry| Ok(entry.volume.context("an entry of the list holds no volume")?.volume_id));
            let ids: Vec<String> = ids.collect::<Result<_>>()?;
            starting_token = page.next_token;
            ensure!(starting_token.is_empty() || !ids.is_empty(), "an empty page is not the last one");
            pages.push(ids);
            if starting_token.is_empty() {
                return Ok(pages);
            }
        }
    }

    /// The ranges of a snapshot that hold data or, with a base, in which the two differ.
    pub fn ranges(&self, base: Option<&str>, snapshot: &str) -> Result<Vec<BlockMetadata>, Status> {
        let mut client = SnapshotMetadataClient::new(self.channel.clone());
        let (base, snapshot) = (base.map(str::to_owned), snapshot.to_owned());
        self.runtime.block_on(async {
            let mut ranges = Vec::new();
            match base {
                None => {
                    let request = GetMetadataAllocatedRequest { snapshot_id: snapshot, ..Default::default() };
                    let mut stream = client.get_metadata_allocated(request).await?.into_inner();
                    while let Some(message) = stream.message().await? {
                        ranges.extend(message.block_metadata);
                    }
                }
                Some(base) => {
                    let request = GetMetadataDeltaRequest {
                        base_snapshot_id: base,
                        target_snapshot_id: snapshot,
                        ..Default::default()
                    };
                    let mut stream = client.get_metadata_delta(request).await?.into_inner();
                    while let Some(message) = stream.message().await? {
                        ranges.extend(message.block_metadata);
                    }
                }
            }
            Ok(ranges)
        })
    }

    fn created(&self, _: &CreateVolumeRequest, answer: &CreateVolumeResponse) {
        if let Some(volume) = &answer.volume {
            self.pending.made(Undo::DeleteVolume(requests::delete(&volume.volume_id)));
        }
    }

    fn deleted(&self, call: &DeleteVolumeRequest, _: &DeleteVolumeResponse) {
        self.pending.undone(&Undo::DeleteVolume(call.clone()));
    }

    fn taken(&self, _: &CreateSnapshotRequest, answer: &CreateSnapshotResponse) {
        if let Some(snapshot) = &answer.snapshot {
            self.pending.made(Undo::DeleteSnapshot(requests::drop_snapshot(&snapshot.snapshot_id)));
        }
    }

    fn dropped(&self, call: &DeleteSnapshotRequest, _: &DeleteSnapshotResponse) {
        self.pending.undone(&Undo::DeleteSnapshot(call.clone()));
    }

    fn taken_together(&self, _: &CreateVolumeGroupSnapshotRequest, answer: &CreateVolumeGroupSnapshotResponse) {
        for snapshot in answer.group_snapshot.iter().flat_map(|group| &group.snapshots) {
            self.pending.made(Undo::DeleteSnapshot(requests::drop_snapshot(&snapshot.snapshot_id)));
        }
    }

    fn dropped_together(&self, call: &DeleteVolumeGroupSnapshotRequest, _: &DeleteVolumeGroupSnapshotResponse) {
        for snapshot in &call.snapshot_ids {
            self.pending.undone(&Undo::DeleteSnapshot(requests::drop_snapshot(snapshot)));
        }
    }

    fn published(&self, call: &NodePublishVolumeRequest, _: &NodePublishVolumeResponse) {
        self.pending.made(Undo::Unpublish(requests::unpublish(&call.volume_id, Path::new(&call.target_path))));
    }

    fn unpublished(&self, call: &NodeUnpublishVolumeRequest, _: &NodeUnpublishVolumeResponse) {
        self.pending.undone(&Undo::Unpublish(call.clone()));
    }

    /// Calls again while a filesystem is being mounted, as the kubelet does: that takes as long as the disk does.
    fn settled<T, F>(&self, mut call: impl FnMut() -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut allowance = Allowance::new(Duration::from_secs(30));
        loop {
            match self.wait(call()) {
                Err(status) if status.message().contains("is being mounted") && !allowance.is_spent() => {
                    std::thread::sleep(Duration::from_millis(200));
                }
                answer => return answer,
            }
        }
    }

    fn wait<T>(&self, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Status> {
        let answer = self.runtime.block_on(async { tokio::time::timeout(self.limit, call).await });
        let late = |_| Status::deadline_exceeded(format!("no answer within {} s", self.limit.as_secs()));
        answer.map_err(late)?.map(Response::into_inner)
    }

    calls! {
        IdentityClient:
            get_plugin_info(GetPluginInfoRequest) -> GetPluginInfoResponse,
            get_plugin_capabilities(GetPluginCapabilitiesRequest) -> GetPluginCapabilitiesResponse,
            probe(ProbeRequest) -> ProbeResponse;
        ControllerClient:
            create_volume(CreateVolumeRequest) -> CreateVolumeResponse => created,
            delete_volume(DeleteVolumeRequest) -> DeleteVolumeResponse => deleted,
            controller_publish_volume(ControllerPublishVolumeRequest) -> ControllerPublishVolumeResponse,
            controller_unpublish_volume(ControllerUnpublishVolumeRequest) -> ControllerUnpublishVolumeResponse,
            validate_volume_capabilities(ValidateVolumeCapabilitiesRequest) -> ValidateVolumeCapabilitiesResponse,
            list_volumes(ListVolumesRequest) -> ListVolumesResponse,
            get_capacity(GetCapacityRequest) -> GetCapacityResponse,
            controller_get_capabilities(ControllerGetCapabilitiesRequest) -> ControllerGetCapabilitiesResponse,
            create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse => taken,
            delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse => dropped,
            list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse,
            get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse,
            controller_expand_volume(ControllerExpandVolumeRequest) -> ControllerExpandVolumeResponse,
            controller_get_volume(ControllerGetVolumeRequest) -> ControllerGetVolumeResponse,
            controller_modify_volume(ControllerModifyVolumeRequest) -> ControllerModifyVolumeResponse;
        GroupControllerClient:
            group_controller_get_capabilities(GroupControllerGetCapabilitiesRequest) -> GroupControllerGetCapabilitiesResponse,
            create_volume_group_snapshot(CreateVolumeGroupSnapshotRequest) -> CreateVolumeGroupSnapshotResponse => taken_together,
            delete_volume_group_snapshot(DeleteVolumeGroupSnapshotRequest) -> DeleteVolumeGroupSnapshotResponse => dropped_together,
            get_volume_group_snapshot(GetVolumeGroupSnapshotRequest) -> GetVolumeGroupSnapshotResponse;
        NodeClient:
            node_stage_volume(NodeStageVolumeRequest) -> NodeStageVolumeResponse,
            node_unstage_volume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse,
            node_publish_volume(NodePublishVolumeRequest) -> NodePublishVolumeResponse => published,
            node_unpublish_volume(NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse => unpublished,
            node_get_volume_stats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse,
            node_expand_volume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse,
            node_get_capabilities(NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse,
            node_get_info(NodeGetInfoRequest) -> NodeGetInfoResponse;
    }
}
