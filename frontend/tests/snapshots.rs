//! Snapshots and copies through CSI: what is answered, and what of it the helper is asked for.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;
mod world;

use std::collections::BTreeMap;

use bulkhead_frontend::csi::Plugin;
use bulkhead_frontend::proto::csi::controller_server::Controller;
use bulkhead_frontend::proto::csi::controller_service_capability::{Type, rpc};
use bulkhead_frontend::proto::csi::group_controller_server::GroupController;
use bulkhead_frontend::proto::csi::snapshot_metadata_server::SnapshotMetadata;
use bulkhead_frontend::proto::csi::volume_content_source::{SnapshotSource, Type as SourceType, VolumeSource};
use bulkhead_frontend::proto::csi::*;
use bulkhead_protocol::{BlockSize, Request, VolumeKind};
use futures::TryStreamExt as _;
use tonic::{Code, Request as Call, Status};

use fake::{FakeHelper, capability, creation};

async fn take(plugin: &Plugin, name: &str, source: &str) -> Result<Snapshot, Status> {
    let (name, source_volume_id) = (name.to_owned(), source.to_owned());
    let request = CreateSnapshotRequest { name, source_volume_id, ..CreateSnapshotRequest::default() };
    plugin.create_snapshot(Call::new(request)).await.map(|answer| answer.into_inner().snapshot.unwrap())
}

async fn list(plugin: &Plugin, request: ListSnapshotsRequest) -> (Vec<String>, String) {
    let answer = plugin.list_snapshots(Call::new(request)).await.unwrap().into_inner();
    let ids = answer.entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id);
    (ids.collect(), answer.next_token)
}

/// Where what is on `node` can be used.
fn place(node: &str) -> Topology {
    Topology { segments: BTreeMap::from([("bulkhead.csi.local/node".to_owned(), node.to_owned())]) }
}

fn snapshot_source(id: &str) -> Option<SourceType> {
    Some(SourceType::Snapshot(SnapshotSource { snapshot_id: id.to_owned() }))
}

fn volume_source(id: &str) -> Option<SourceType> {
    Some(SourceType::Volume(VolumeSource { volume_id: id.to_owned() }))
}

/// A new block volume.
fn copied(name: &str, source: Option<SourceType>, required_bytes: u64) -> CreateVolumeRequest {
    let required_bytes = i64::try_from(required_bytes).unwrap();
    CreateVolumeRequest {
        volume_content_source: Some(VolumeContentSource { r#type: source }),
        capacity_range: (required_bytes > 0).then_some(CapacityRange { required_bytes, limit_bytes: 0 }),
        volume_capabilities: vec![capability(true)],
        ..creation(name)
    }
}

/// A new volume with a filesystem of its own.
fn restored(name: &str, source: Option<SourceType>) -> CreateVolumeRequest {
    let parameters = BTreeMap::from([("backing".to_owned(), "image".to_owned())]);
    CreateVolumeRequest { parameters, volume_capabilities: vec![capability(false)], ..copied(name, source, 0) }
}

async fn create(plugin: &Plugin, request: CreateVolumeRequest) -> Result<Volume, Status> {
    plugin.create_volume(Call::new(request)).await.map(|answer| answer.into_inner().volume.unwrap())
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, message: &str) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), code, "{}", status.message());
    assert!(status.message().contains(message), "{}", status.message());
}

#[tokio::test]
async fn what_takes_a_copy_is_advertised_only_where_a_pool_can() {
    let offered = async |fake: &FakeHelper| {
        let request = Call::new(ControllerGetCapabilitiesRequest {});
        let answer = fake.plugin().controller_get_capabilities(request).await.unwrap().into_inner();
        let all = answer.capabilities.into_iter().map(|capability| match capability.r#type {
            Some(Type::Rpc(rpc)) => rpc.r#type(),
            None => rpc::Type::Unknown,
        });
        all.collect::<Vec<_>>()
    };
    let copying =
        [rpc::Type::CreateDeleteSnapshot, rpc::Type::ListSnapshots, rpc::Type::GetSnapshot, rpc::Type::CloneVolume];
    let where_it_can = offered(&world::start()).await;
    assert!(copying.iter().all(|one| where_it_can.contains(one)), "{where_it_can:?}");
    let ext4 = FakeHelper::start(|_| fake::counts(300, 0, (0, 0)));
    let where_it_cannot = offered(&ext4).await;
    assert!(!copying.iter().any(|one| where_it_cannot.contains(one)), "{where_it_cannot:?}");
    assert_eq!(where_it_cannot.len(), 9);
}

#[tokio::test]
async fn a_snapshot_is_taken_once() {
    let fake = world::start();
    let plugin = fake.plugin();
    let snapshot = take(&plugin, "snap-1", "block").await.unwrap();
    let expected = Snapshot {
        size_bytes: i64::try_from(world::BLOCK).unwrap(),
        snapshot_id: "snap-1".to_owned(),
        source_volume_id: "block".to_owned(),
        creation_time: Some(prost_types::Timestamp { seconds: 1, nanos: 500_000_000 }),
        ready_to_use: true,
        group_snapshot_id: String::new(),
        accessible_topology: vec![place("node-1")],
    };
    assert_eq!(snapshot, expected);
    assert_eq!(take(&plugin, "snap-1", "block").await.unwrap(), expected);
    let odd = take(&plugin, "Of my notes", "image").await.unwrap();
    assert!(odd.snapshot_id.starts_with("v-") && odd.size_bytes == i64::try_from(world::IMAGE).unwrap(), "{odd:?}");
    refused(take(&plugin, "snap-1", "image").await, Code::AlreadyExists, "");
    refused(take(&plugin, "block", "block").await, Code::AlreadyExists, "choose another name");
    refused(take(&plugin, "image", "block").await, Code::AlreadyExists, "");
    refused(take(&plugin, "snap-2", "unknown").await, Code::NotFound, "");
    refused(take(&plugin, "snap-2", "NO ID").await, Code::NotFound, "");
    refused(take(&plugin, "", "block").await, Code::InvalidArgument, "name is missing");
    refused(take(&plugin, "snap-2", "").await, Code::InvalidArgument, "source_volume_id is missing");
    refused(take(&plugin, "snap-2", "directory").await, Code::InvalidArgument, "");
    refused(take(&plugin, "snap-2", "pieces").await, Code::FailedPrecondition, "has 250000 extents");
    for (node, code) in [("node-1", None), ("node-2", Some(Code::ResourceExhausted))] {
        let requirement = TopologyRequirement { requisite: vec![place(node)], preferred: Vec::new() };
        let (name, source_volume_id) = ("snap-1".to_owned(), "block".to_owned());
        let accessibility_requirements = Some(requirement);
        let request =
            CreateSnapshotRequest { name, source_volume_id, accessibility_requirements, ..Default::default() };
        assert_eq!(plugin.create_snapshot(Call::new(request)).await.err().map(|status| status.code()), code);
    }
    let parameters = BTreeMap::from([("pool".to_owned(), "fast".to_owned())]);
    let (name, source_volume_id) = ("snap-2".to_owned(), "block".to_owned());
    let request = CreateSnapshotRequest { name, source_volume_id, parameters, ..CreateSnapshotRequest::default() };
    let answer = plugin.create_snapshot(Call::new(request)).await;
    refused(answer, Code::InvalidArgument, "unknown parameter \"pool\"");
}

#[tokio::test]
async fn snapshots_are_listed_in_pages_by_id_and_by_source() {
    let fake = world::start();
    let plugin = fake.plugin();
    let names: Vec<_> = (10..30).map(|number| format!("snap-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        take(&plugin, name, if number % 4 == 0 { "image" } else { "block" }).await.unwrap();
    }
    let any = ListSnapshotsRequest::default;
    assert_eq!(list(&plugin, any()).await, (names.clone(), String::new()));
    let (first, next) = list(&plugin, ListSnapshotsRequest { max_entries: 8, ..any() }).await;
    assert_eq!((first.as_slice(), next.as_str()), (&names[..8], "SNAP-17"));
    let (rest, next) = list(&plugin, ListSnapshotsRequest { max_entries: 12, starting_token: next, ..any() }).await;
    assert_eq!((rest.as_slice(), next.as_str()), (&names[8..], ""));
    let of = |source: &str| ListSnapshotsRequest { source_volume_id: source.to_owned(), ..any() };
    assert_eq!(list(&plugin, of("image")).await.0, ["snap-10", "snap-14", "snap-18", "snap-22", "snap-26"]);
    let by_id = |id: &str| ListSnapshotsRequest { snapshot_id: id.to_owned(), ..any() };
    assert_eq!(list(&plugin, by_id("snap-11")).await.0, ["snap-11"]);
    let both = ListSnapshotsRequest { snapshot_id: "snap-11".to_owned(), ..of("image") };
    for nothing in [of("unknown"), of("NO ID"), by_id("unknown"), by_id("NO ID"), by_id("block"), both] {
        assert_eq!(list(&plugin, nothing).await, (Vec::new(), String::new()));
    }
    let negative = plugin.list_snapshots(Call::new(ListSnapshotsRequest { max_entries: -1, ..any() })).await;
    refused(negative, Code::InvalidArgument, "max_entries");
    let odd = ListSnapshotsRequest { starting_token: "snap-1".to_owned(), ..any() };
    refused(plugin.list_snapshots(Call::new(odd)).await, Code::Aborted, "starting_token");

    let get = |id: &str| GetSnapshotRequest { snapshot_id: id.to_owned(), ..GetSnapshotRequest::default() };
    let found = plugin.get_snapshot(Call::new(get("snap-12"))).await.unwrap().into_inner().snapshot.unwrap();
    assert_eq!((found.source_volume_id.as_str(), found.ready_to_use), ("block", true));
    for id in ["unknown", "NO ID", "block"] {
        refused(plugin.get_snapshot(Call::new(get(id))).await, Code::NotFound, "no such snapshot");
    }
}

#[tokio::test]
async fn a_volume_begins_as_a_copy_and_says_so() {
    let fake = world::start();
    let plugin = fake.plugin();
    take(&plugin, "snap-1", "block").await.unwrap();
    take(&plugin, "snap-2", "image").await.unwrap();
    for (name, source) in [("copy-1", snapshot_source("snap-1")), ("copy-2", volume_source("block"))] {
        let volume = create(&plugin, copied(name, source.clone(), 0)).await.unwrap();
        assert_eq!((volume.volume_id.as_str(), volume.capacity_bytes), (name, i64::try_from(world::BLOCK).unwrap()));
        assert_eq!(volume.content_source, Some(VolumeContentSource { r#type: source }));
    }
    let larger = create(&plugin, copied("copy-3", snapshot_source("snap-1"), 16 << 20)).await.unwrap();
    assert_eq!(larger.capacity_bytes, 16 << 20);
    let (name, source) = ("copy-4", snapshot_source("snap-2"));
    assert_eq!(create(&plugin, restored(name, source)).await.unwrap().capacity_bytes, 300 << 20);
    let kinds: Vec<_> = fake.seen.lock().unwrap().iter().filter_map(kind_of_copy).collect();
    let block = VolumeKind::Image { sparse: false, block_size: BlockSize::B4096 };
    assert_eq!(kinds[..3], [block; 3], "the block size is the source's, not the default");
    assert!(matches!(kinds[3], VolumeKind::Filesystem { .. }));
}

fn kind_of_copy(request: &Request) -> Option<VolumeKind> {
    match request {
        Request::CreateFrom { spec, .. } => Some(spec.kind),
        _ => None,
    }
}

#[tokio::test]
async fn a_copy_is_found_again_even_if_its_source_is_gone() {
    let fake = world::start();
    let plugin = fake.plugin();
    take(&plugin, "snap-1", "block").await.unwrap();
    let request = copied("copy-1", snapshot_source("snap-1"), 0);
    let volume = create(&plugin, request.clone()).await.unwrap();
    plugin.delete_snapshot(Call::new(deletion("snap-1"))).await.unwrap();
    assert_eq!(create(&plugin, request).await.unwrap(), volume);
    let other = create(&plugin, copied("copy-2", snapshot_source("snap-1"), 0)).await;
    refused(other, Code::NotFound, "");
    refused(create(&plugin, copied("copy-1", volume_source("block"), 0)).await, Code::AlreadyExists, "");
    refused(create(&plugin, copied("copy-1", volume_source("copy-1"), 0)).await, Code::AlreadyExists, "itself");
}

#[tokio::test]
async fn what_cannot_be_a_copy_is_refused() {
    let fake = world::start();
    let plugin = fake.plugin();
    take(&plugin, "snap-1", "block").await.unwrap();
    take(&plugin, "snap-2", "image").await.unwrap();
    let block = |source| create(&plugin, copied("copy", source, 0));
    refused(block(snapshot_source("unknown")).await, Code::NotFound, "");
    refused(block(snapshot_source("NO ID")).await, Code::NotFound, "");
    refused(block(volume_source("unknown")).await, Code::NotFound, "");
    refused(block(snapshot_source("block")).await, Code::NotFound, "block is a volume");
    refused(block(volume_source("snap-1")).await, Code::NotFound, "snap-1 is a snapshot");
    refused(block(None).await, Code::InvalidArgument, "names neither");
    refused(block(snapshot_source("")).await, Code::InvalidArgument, "snapshot_id is missing");
    let small = create(&plugin, copied("copy", snapshot_source("snap-1"), 4 << 20)).await;
    refused(small, Code::OutOfRange, "request at least as much");
    refused(block(volume_source("image")).await, Code::InvalidArgument, "a directory volume");
    let as_filesystem = create(&plugin, restored("copy", snapshot_source("snap-1"))).await;
    refused(as_filesystem, Code::InvalidArgument, "a block volume");
    let in_directory =
        CreateVolumeRequest { parameters: BTreeMap::new(), ..restored("copy", snapshot_source("snap-2")) };
    refused(create(&plugin, in_directory).await, Code::InvalidArgument, "backing: image");
    let elsewhere = BTreeMap::from([("pool".to_owned(), "fast".to_owned())]);
    let elsewhere = CreateVolumeRequest { parameters: elsewhere, ..copied("copy", snapshot_source("snap-1"), 0) };
    refused(create(&plugin, elsewhere).await, Code::InvalidArgument, "is in pool default");
    assert!(!fake.names().iter().any(|name| name == "CreateFrom"), "{:?}", fake.names());
}

fn deletion(id: &str) -> DeleteSnapshotRequest {
    DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..DeleteSnapshotRequest::default() }
}

#[tokio::test]
async fn volumes_and_snapshots_are_deleted_by_their_own_calls() {
    let fake = world::start();
    let plugin = fake.plugin();
    take(&plugin, "snap-1", "block").await.unwrap();
    let volume = |id: &str| DeleteVolumeRequest { volume_id: id.to_owned(), ..DeleteVolumeRequest::default() };
    refused(plugin.delete_volume(Call::new(volume("snap-1"))).await, Code::InvalidArgument, "");
    refused(plugin.delete_snapshot(Call::new(deletion("block"))).await, Code::InvalidArgument, "");
    refused(plugin.delete_snapshot(Call::new(deletion(""))).await, Code::InvalidArgument, "snapshot_id is missing");
    for id in ["snap-1", "snap-1", "unknown", "NO ID"] {
        plugin.delete_snapshot(Call::new(deletion(id))).await.unwrap();
    }
    assert_eq!(list(&plugin, ListSnapshotsRequest::default()).await.0, Vec::<String>::new());
    let get = ControllerGetVolumeRequest { volume_id: "block".to_owned() };
    plugin.controller_get_volume(Call::new(get)).await.unwrap();
    take(&plugin, "snap-2", "block").await.unwrap();
    let get = ControllerGetVolumeRequest { volume_id: "snap-2".to_owned() };
    refused(plugin.controller_get_volume(Call::new(get)).await, Code::NotFound, "snap-2 is a snapshot");
}

/// The ranges of a stream, message by message.
async fn allocated(
    plugin: &Plugin,
    id: &str,
    starting_offset: i64,
    max_results: i32,
) -> Result<Vec<Vec<(i64, i64)>>, Status> {
    let snapshot_id = id.to_owned();
    let request = GetMetadataAllocatedRequest { snapshot_id, starting_offset, max_results, ..Default::default() };
    let stream = plugin.get_metadata_allocated(Call::new(request)).await?.into_inner();
    let messages: Vec<_> = stream.try_collect().await?;
    let ranges = messages.into_iter().map(|message| {
        assert_eq!(message.block_metadata_type(), BlockMetadataType::VariableLength);
        assert_eq!(message.volume_capacity_bytes, i64::try_from(world::BLOCK).unwrap());
        message.block_metadata.into_iter().map(|range| (range.byte_offset, range.size_bytes)).collect()
    });
    Ok(ranges.collect())
}

#[tokio::test]
async fn the_ranges_of_a_snapshot_come_in_order_and_none_is_missed() {
    let fake = world::start();
    let plugin = fake.plugin();
    take(&plugin, "snap-1", "block").await.unwrap();
    let all: Vec<_> = (0..256).map(|number| (number * 8192, 4096)).collect();
    let messages = allocated(&plugin, "snap-1", 0, 0).await.unwrap();
    assert_eq!(messages.concat(), all);
    let messages = allocated(&plugin, "snap-1", 0, 7).await.unwrap();
    assert!(messages.iter().all(|message| message.len() <= 7));
    assert_eq!(messages.concat(), all);
    assert_eq!(allocated(&plugin, "snap-1", 100 * 8192, 0).await.unwrap().concat(), all[100..]);
    let end = i64::try_from(world::BLOCK).unwrap();
    let nothing = allocated(&plugin, "snap-1", end, 0).await.unwrap();
    assert_eq!(nothing, [vec![]], "the size is said all the same");
    refused(allocated(&plugin, "snap-1", end + 1, 0).await, Code::OutOfRange, "beyond the end");
    refused(allocated(&plugin, "snap-1", -1, 0).await, Code::OutOfRange, "starting_offset");
    refused(allocated(&plugin, "snap-1", 0, -1).await, Code::InvalidArgument, "max_results");
    refused(allocated(&plugin, "", 0, 0).await, Code::InvalidArgument, "snapshot_id is missing");
    for id in ["unknown", "NO ID", "block"] {
        refused(allocated(&plugin, id, 0, 0).await, Code::NotFound, "");
    }
}

#[tokio::test]
async fn what_differs_is_said_of_snapshots_of_one_family_only() {
    let fake = world::start();
    let plugin = fake.plugin();
    for (name, source) in [("snap-1", "block"), ("snap-2", "block"), ("snap-3", "image")] {
        take(&plugin, name, source).await.unwrap();
    }
    create(&plugin, copied("copy", snapshot_source("snap-1"), 0)).await.unwrap();
    take(&plugin, "snap-4", "copy").await.unwrap();
    let delta = async |base: &str, target: &str| {
        let (base_snapshot_id, target_snapshot_id) = (base.to_owned(), target.to_owned());
        let request = GetMetadataDeltaRequest { base_snapshot_id, target_snapshot_id, ..Default::default() };
        let stream = plugin.get_metadata_delta(Call::new(request)).await?.into_inner();
        stream.try_collect::<Vec<_>>().await
    };
    for target in ["snap-2", "snap-4"] {
        let messages = delta("snap-1", target).await.unwrap();
        assert_eq!(messages.len(), 1);
        let expected = [BlockMetadata { byte_offset: 0, size_bytes: 8192 }];
        assert_eq!(messages[0].block_metadata, expected);
    }
    refused(delta("snap-1", "snap-3").await, Code::InvalidArgument, "have nothing in common");
    refused(delta("unknown", "snap-3").await, Code::NotFound, "");
    refused(delta("", "snap-3").await, Code::InvalidArgument, "base_snapshot_id is missing");
}

async fn take_together(plugin: &Plugin, name: &str, sources: &[&str]) -> Result<VolumeGroupSnapshot, Status> {
    let source_volume_ids = sources.iter().map(|id| (*id).to_owned()).collect();
    let request = CreateVolumeGroupSnapshotRequest { name: name.to_owned(), source_volume_ids, ..Default::default() };
    let answer = plugin.create_volume_group_snapshot(Call::new(request)).await;
    answer.map(|answer| answer.into_inner().group_snapshot.unwrap())
}

#[tokio::test]
async fn snapshots_are_taken_together_once() {
    let fake = world::start();
    let plugin = fake.plugin();
    let group = take_together(&plugin, "group-1", &["image", "block"]).await.unwrap();
    assert_eq!(group.group_snapshot_id, "group-1");
    assert_eq!(group.creation_time, Some(prost_types::Timestamp { seconds: 1, nanos: 500_000_000 }));
    let mut sources: Vec<_> = group.snapshots.iter().map(|one| one.source_volume_id.as_str()).collect();
    sources.sort_unstable();
    assert_eq!(sources, ["block", "image"]);
    assert!(group.snapshots.iter().all(|one| one.group_snapshot_id == "group-1"), "{group:?}");
    assert_eq!(take_together(&plugin, "group-1", &["block", "image", "block"]).await.unwrap(), group);
    let asked = fake.seen.lock().unwrap().iter().filter(|one| matches!(one, Request::CreateGroup { .. })).count();
    assert_eq!(asked, 2, "each time the helper says whether it is complete");
    refused(take_together(&plugin, "group-1", &["block"]).await, Code::AlreadyExists, "image as well");
    refused(take_together(&plugin, "group-2", &["block", "unknown"]).await, Code::FailedPrecondition, "several nodes");
    refused(take_together(&plugin, "group-3", &["unknown"]).await, Code::NotFound, "");
    refused(take_together(&plugin, "group-3", &["directory"]).await, Code::FailedPrecondition, "");
    refused(take_together(&plugin, "", &["block"]).await, Code::InvalidArgument, "name is missing");
    refused(take_together(&plugin, "group-3", &[]).await, Code::InvalidArgument, "source_volume_ids is missing");
    let many: Vec<String> = (0..13).map(|number| format!("vol-{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    refused(take_together(&plugin, "group-3", &many).await, Code::FailedPrecondition, "at most 12");
}

#[tokio::test]
async fn a_group_is_found_and_deleted_with_its_own_snapshots_only() {
    let fake = world::start();
    let plugin = fake.plugin();
    let group = take_together(&plugin, "group-1", &["image", "block"]).await.unwrap();
    take_together(&plugin, "group-1.x", &["block"]).await.unwrap();
    take(&plugin, "group-1", "block").await.unwrap();
    let ids: Vec<String> = group.snapshots.iter().map(|one| one.snapshot_id.clone()).collect();
    let get = async |id: &str, snapshot_ids: &[String]| {
        let (group_snapshot_id, snapshot_ids) = (id.to_owned(), snapshot_ids.to_vec());
        let request = GetVolumeGroupSnapshotRequest { group_snapshot_id, snapshot_ids, ..Default::default() };
        let answer = plugin.get_volume_group_snapshot(Call::new(request)).await;
        answer.map(|answer| answer.into_inner().group_snapshot.unwrap())
    };
    for named in [&ids[..], &[]] {
        assert_eq!(get("group-1", named).await.unwrap(), group);
    }
    refused(get("group-1", &ids[1..]).await, Code::InvalidArgument, "snapshot_ids");
    refused(get("group-2", &[]).await, Code::NotFound, "group-2");
    refused(get("NO ID", &[]).await, Code::NotFound, "");
    refused(get("", &[]).await, Code::InvalidArgument, "group_snapshot_id is missing");
    let drop = async |id: &str, snapshot_ids: &[String]| {
        let (group_snapshot_id, snapshot_ids) = (id.to_owned(), snapshot_ids.to_vec());
        let request = DeleteVolumeGroupSnapshotRequest { group_snapshot_id, snapshot_ids, ..Default::default() };
        plugin.delete_volume_group_snapshot(Call::new(request)).await
    };
    refused(drop("group-1", &ids[1..]).await, Code::InvalidArgument, "snapshot_ids");
    for _ in 0..2 {
        drop("group-1", &ids).await.unwrap();
    }
    drop("NO ID", &[]).await.unwrap();
    refused(drop("", &[]).await, Code::InvalidArgument, "group_snapshot_id is missing");
    refused(get("group-1", &[]).await, Code::NotFound, "group-1");
    let (left, _) = list(&plugin, ListSnapshotsRequest::default()).await;
    assert_eq!(left.len(), 2, "{left:?}");
}
