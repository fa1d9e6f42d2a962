//! Which requests a call leads to, what is undone, and how the helper's errors reach the caller.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bulkhead_frontend::csi::Plugin;
use bulkhead_frontend::proto::csi::controller_server::Controller;
use bulkhead_frontend::proto::csi::node_server::Node;
use bulkhead_frontend::proto::csi::*;
use bulkhead_model::volumes::identify;
use bulkhead_protocol::{
    BlockSize, Bytes, DirectoryMode, ErrorKind, HIGHEST_VERSION, Inodes, Listed, NameHash, PoolStatus, Reply, Request,
    Usage, VolumeKind, VolumeSpec, Welcome,
};
use tokio::sync::Notify;
use tonic::{Code, Request as Call};

use fake::{Act, FakeHelper, Greeting, capability, creation, done, failure, publication, size};

const MOUNT: &str = "/var/lib/kubelet/pods/0/volumes/kubernetes.io~csi/pvc-1/mount";
const DEVICE: &str = "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/0";

fn directory(bytes: u64, inodes: u64) -> VolumeSpec {
    VolumeSpec {
        size: Bytes::try_from(bytes).unwrap(),
        kind: VolumeKind::Directory {
            inodes: Inodes::try_from(inodes).unwrap(),
            mode: DirectoryMode::try_from(0o755).unwrap(),
        },
        name_hash: NameHash([0; 32]),
    }
}

fn image(bytes: u64) -> VolumeSpec {
    let kind = VolumeKind::Image { sparse: false, block_size: BlockSize::B512 };
    VolumeSpec { kind, ..directory(bytes, 1) }
}

fn usage(spec: VolumeSpec) -> Act {
    Act::Answer(Ok(Reply::Usage(Usage {
        pool: "default".parse().unwrap(),
        spec,
        used_bytes: Some(0),
        available_bytes: Some(spec.size.get()),
        used_inodes: Some(1),
        available_inodes: Some(1),
        targets: 0,
        condition: None,
    })))
}

fn unpublication(target: &str) -> Call<NodeUnpublishVolumeRequest> {
    Call::new(NodeUnpublishVolumeRequest { volume_id: "pvc-1".to_owned(), target_path: target.to_owned() })
}

fn expansion(required_bytes: i64) -> Call<ControllerExpandVolumeRequest> {
    Call::new(ControllerExpandVolumeRequest {
        volume_id: "pvc-1".to_owned(),
        capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
        ..ControllerExpandVolumeRequest::default()
    })
}

#[tokio::test]
async fn a_failed_device_gives_its_loop_back() {
    for detached in [ErrorKind::InUse, ErrorKind::Busy, ErrorKind::NotFound] {
        let fake = FakeHelper::start(move |request| match request {
            Request::MakeDevice { .. } => failure(ErrorKind::AlreadyExists),
            Request::LoopDetach { .. } => failure(detached),
            _ => done(),
        });
        let failed = fake.plugin().node_publish_volume(Call::new(publication(true, DEVICE))).await.unwrap_err();
        assert_eq!(
            failed.code(),
            Code::AlreadyExists,
            "the first failure is reported, not what happened to the loop device"
        );
        assert_eq!(fake.names(), ["LoopAttach", "MakeDevice", "LoopDetach"]);
    }
}

#[tokio::test]
async fn a_client_that_goes_away_stops_nothing_half_way() {
    let now = Arc::new(Notify::new());
    let attach = Arc::clone(&now);
    let fake = FakeHelper::start(move |request| match request {
        Request::LoopAttach { .. } => Act::Later(Arc::clone(&attach), Ok(Reply::Done)),
        _ => done(),
    });
    let plugin = fake.plugin();
    let call = plugin.node_publish_volume(Call::new(publication(true, DEVICE)));
    assert!(tokio::time::timeout(Duration::from_millis(200), call).await.is_err());
    let second = plugin.node_publish_volume(Call::new(publication(true, DEVICE))).await.unwrap_err();
    assert_eq!(second.code(), Code::Aborted, "the first one is still in progress");
    now.notify_one();
    plugin.idle().await;
    assert_eq!(fake.names(), ["LoopAttach", "MakeDevice"]);
    plugin.node_publish_volume(Call::new(publication(false, MOUNT))).await.unwrap();
}

#[tokio::test]
async fn two_pods_that_start_on_one_volume_both_get_it() {
    let now = Arc::new(Notify::new());
    let bound = Arc::clone(&now);
    let first = AtomicBool::new(true);
    let fake = FakeHelper::start(move |request| match request {
        Request::BindMount { .. } if first.swap(false, Ordering::SeqCst) => {
            Act::Later(Arc::clone(&bound), Ok(Reply::Done))
        }
        _ => done(),
    });
    let plugin = fake.plugin();
    let publish = |target: &str| plugin.node_publish_volume(Call::new(publication(false, target)));
    let end = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        now.notify_one();
    };
    let other = MOUNT.replace("/pods/", "/pods/1");
    let (one, two, ()) = tokio::join!(publish(MOUNT), publish(&other), end);
    one.unwrap();
    two.unwrap();
}

#[tokio::test]
async fn unpublishing_asks_for_what_the_path_suggests() {
    let fake = FakeHelper::start(|request| match request {
        // Asked once, whether it has a filesystem of its own.
        Request::Usage { .. } => usage(directory(1 << 30, 1024)),
        _ => done(),
    });
    let plugin = fake.plugin();
    plugin.node_unpublish_volume(unpublication(MOUNT)).await.unwrap();
    plugin.node_unpublish_volume(unpublication(DEVICE)).await.unwrap();
    assert_eq!(fake.names(), ["Unmount", "Usage", "RemoveDevice", "LoopDetach"]);
}

#[tokio::test]
async fn unpublishing_finds_the_kind_at_any_path() {
    let fake = FakeHelper::start(|request| match request {
        Request::Usage { .. } => usage(image(1 << 30)),
        Request::LoopDetach { .. } => failure(ErrorKind::InUse),
        _ => done(),
    });
    fake.plugin().node_unpublish_volume(unpublication("/var/lib/kubelet/elsewhere")).await.unwrap();
    assert_eq!(fake.names(), ["Usage", "RemoveDevice", "LoopDetach"]);
}

#[tokio::test]
async fn a_path_that_misleads_about_the_kind_does_no_harm() {
    let fake = FakeHelper::start(|request| match request {
        Request::Unmount { .. } => failure(ErrorKind::WrongKind),
        _ => done(),
    });
    fake.plugin().node_unpublish_volume(unpublication(MOUNT)).await.unwrap();
    assert_eq!(fake.names(), ["Unmount", "RemoveDevice", "LoopDetach"]);
}

#[tokio::test]
async fn the_id_is_judged_before_the_path() {
    let known = Arc::new(AtomicBool::new(false));
    let is_known = Arc::clone(&known);
    let fake = FakeHelper::start(move |request| match request {
        Request::Usage { .. } if is_known.load(Ordering::SeqCst) => usage(directory(1 << 30, 1024)),
        Request::Usage { .. } => failure(ErrorKind::NotFound),
        other => panic!("{other:?}"),
    });
    let plugin = fake.plugin();
    let publish = |target: &'static str| plugin.node_publish_volume(Call::new(publication(false, target)));
    assert_eq!(publish("/etc/x").await.unwrap_err().code(), Code::NotFound);
    plugin.node_unpublish_volume(unpublication("/etc/x")).await.unwrap();
    known.store(true, Ordering::SeqCst);
    assert_eq!(publish("/etc/x").await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(plugin.node_unpublish_volume(unpublication("/etc/x")).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn what_is_no_id_needs_no_helper() {
    let fake = FakeHelper::start(|other| panic!("{other:?}"));
    let plugin = fake.plugin();
    for id in ["../../etc", "UPPER", "a", ".x", "x".repeat(200).as_str()] {
        let request = NodePublishVolumeRequest { volume_id: id.to_owned(), ..publication(false, MOUNT) };
        assert_eq!(plugin.node_publish_volume(Call::new(request)).await.unwrap_err().code(), Code::NotFound);
        let request = NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: "/etc/x".to_owned() };
        plugin.node_unpublish_volume(Call::new(request)).await.unwrap();
        let request = DeleteVolumeRequest { volume_id: id.to_owned(), ..DeleteVolumeRequest::default() };
        plugin.delete_volume(Call::new(request)).await.unwrap();
        let request = NodeGetVolumeStatsRequest {
            volume_id: id.to_owned(),
            volume_path: MOUNT.to_owned(),
            ..NodeGetVolumeStatsRequest::default()
        };
        assert_eq!(plugin.node_get_volume_stats(Call::new(request)).await.unwrap_err().code(), Code::NotFound);
    }
}

#[tokio::test]
async fn errors_of_the_helper_reach_the_caller_with_its_message() {
    for (kind, code) in [
        (ErrorKind::Busy, Code::Aborted),
        (ErrorKind::InUse, Code::FailedPrecondition),
        (ErrorKind::PoolBroken, Code::FailedPrecondition),
        (ErrorKind::Refused, Code::PermissionDenied),
        (ErrorKind::Io(5), Code::Internal),
    ] {
        let fake = FakeHelper::start(move |_| failure(kind));
        let status = fake.plugin().node_publish_volume(Call::new(publication(false, MOUNT))).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, "scripted"));
        assert!(status.details().is_empty());
    }
}

#[tokio::test]
async fn a_volume_that_has_grown_is_still_the_same() {
    let name_hash = identify("pvc-1").unwrap().1;
    let created = |required_bytes, spec: VolumeSpec| async move {
        let fake = FakeHelper::start(move |request| match request {
            Request::Create { .. } => failure(ErrorKind::AlreadyExists),
            Request::Usage { .. } => usage(VolumeSpec { name_hash, ..spec }),
            other => panic!("{other:?}"),
        });
        let capacity_range = Some(CapacityRange { required_bytes, limit_bytes: 0 });
        let request = CreateVolumeRequest { capacity_range, ..creation("pvc-1") };
        fake.plugin().create_volume(Call::new(request)).await.map(|answer| answer.into_inner().volume.unwrap())
    };
    // Its default number of inodes has grown with it.
    assert_eq!(created(1 << 30, directory(2 << 30, 131_072)).await.unwrap().capacity_bytes, 2 << 30);
    // It was created with a number of inodes that is no longer requested.
    assert_eq!(created(1 << 30, directory(2 << 30, 5000)).await.unwrap_err().code(), Code::AlreadyExists);
    // It is too small.
    assert_eq!(created(4 << 30, directory(2 << 30, 131_072)).await.unwrap_err().code(), Code::AlreadyExists);
}

#[tokio::test]
async fn the_size_of_an_existing_volume_is_answered_if_it_is_in_the_range() {
    let fake = FakeHelper::start(|_| size(2 << 30));
    let plugin = fake.plugin();
    let create = |required_bytes, limit_bytes| {
        let capacity_range = Some(CapacityRange { required_bytes, limit_bytes });
        plugin.create_volume(Call::new(CreateVolumeRequest { capacity_range, ..creation("pvc-1") }))
    };
    let volume = create(1 << 30, 3 << 30).await.unwrap().into_inner().volume.unwrap();
    assert_eq!((volume.capacity_bytes, volume.volume_id.as_str()), (2 << 30, "pvc-1"));
    assert_eq!(create(3 << 30, 0).await.unwrap_err().code(), Code::AlreadyExists);
    assert_eq!(create(1 << 30, 1 << 30).await.unwrap_err().code(), Code::AlreadyExists);
}

async fn expand(plugin: &Plugin, bytes: i64) -> ControllerExpandVolumeResponse {
    plugin.controller_expand_volume(expansion(bytes)).await.unwrap().into_inner()
}

#[tokio::test]
async fn a_grown_image_is_told_to_its_device_even_on_the_second_try() {
    let fake = FakeHelper::start(move |request| match request {
        Request::Usage { .. } => usage(image(1 << 30)),
        Request::GrowImage { size, .. } => fake::size(size.get()),
        _ => done(),
    });
    let plugin = fake.plugin();
    let grown = expand(&plugin, 2 << 30).await;
    assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (2 << 30, false));
    assert_eq!(expand(&plugin, 1 << 30).await.capacity_bytes, 1 << 30);
    assert_eq!(fake.names(), ["Usage", "GrowImage", "LoopResize", "Usage", "LoopResize"]);
}

#[tokio::test]
async fn a_growth_that_the_pool_cannot_hold_is_out_of_range() {
    let no_room = ErrorKind::NoRoom { room: 958_246_912, wanted: 1 << 30 };
    for (kind, message) in
        [(ErrorKind::NoSpace, "scripted"), (no_room, "pool default has room for 913.9 MiB, but 1 GiB are requested")]
    {
        let fake = FakeHelper::start(move |request| match request {
            Request::Usage { volume, .. } if volume.as_str() == "pvc-1" => usage(directory(1 << 30, 65536)),
            _ => failure(kind),
        });
        let plugin = fake.plugin();
        let status = plugin.controller_expand_volume(expansion(2 << 30)).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange);
        assert!(status.message().starts_with(message), "{}", status.message());
        let status = plugin.create_volume(Call::new(creation("pvc-2"))).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().starts_with(message), "{}", status.message());
        assert_eq!(expand(&plugin, 1 << 20).await.capacity_bytes, 1 << 30);
    }
}

#[tokio::test]
async fn a_volume_as_large_as_the_capacity_can_be_made_and_a_larger_one_cannot() {
    const ROOM: u64 = 721 << 20;
    let fake = FakeHelper::start(|request| match request {
        Request::PoolStatus { .. } => {
            Act::Answer(Ok(Reply::Pool(PoolStatus { inode_size: 512, ..fake::status(ROOM) })))
        }
        Request::Create { spec, .. } => {
            let inodes = match spec.kind {
                VolumeKind::Directory { inodes, .. } => inodes.get(),
                VolumeKind::Image { .. } | VolumeKind::Filesystem { .. } | VolumeKind::Snapshot { .. } => 0,
            };
            let wanted = spec.size.get() + inodes * 512;
            if wanted <= ROOM { size(spec.size.get()) } else { failure(ErrorKind::NoRoom { room: ROOM, wanted }) }
        }
        other => panic!("{other:?}"),
    });
    let plugin = fake.plugin();
    for (block, parameters) in [(false, vec![]), (true, vec![]), (false, vec![("inodes", "5000")])] {
        let parameters: BTreeMap<_, _> =
            parameters.into_iter().map(|(key, value): (&str, &str)| (key.to_owned(), value.to_owned())).collect();
        let volume_capabilities = vec![capability(block)];
        let asked = GetCapacityRequest {
            volume_capabilities: volume_capabilities.clone(),
            parameters: parameters.clone(),
            ..GetCapacityRequest::default()
        };
        let room = plugin.get_capacity(Call::new(asked)).await.unwrap().into_inner();
        assert_eq!(room.maximum_volume_size, Some(room.available_capacity));
        let create = |required_bytes| {
            let capacity_range = Some(CapacityRange { required_bytes, limit_bytes: 0 });
            let (volume_capabilities, parameters) = (volume_capabilities.clone(), parameters.clone());
            let request = CreateVolumeRequest { capacity_range, volume_capabilities, parameters, ..creation("pvc-1") };
            plugin.create_volume(Call::new(request))
        };
        create(room.available_capacity).await.unwrap();
        let larger = create(room.available_capacity + 4096).await.unwrap_err();
        assert_eq!(larger.code(), Code::ResourceExhausted);
        assert!(larger.message().contains(" too much; delete volumes"), "{}", larger.message());
    }
    // Where nobody says what it is for, it is for directories.
    let anything = plugin.get_capacity(Call::new(GetCapacityRequest::default())).await.unwrap().into_inner();
    let of_directories = GetCapacityRequest { volume_capabilities: vec![capability(false)], ..Default::default() };
    assert_eq!(anything, plugin.get_capacity(Call::new(of_directories)).await.unwrap().into_inner());
}

#[tokio::test]
async fn a_volume_has_no_more_inodes_left_than_its_filesystem() {
    for (used, available, (total, reported)) in [
        (Some(24), Some(1000), (1024, 1000)),
        (Some(24), Some(10), (34, 10)),
        (Some(2000), Some(0), (1024, 0)),
        (None, None, (1024, 0)),
    ] {
        let fake = FakeHelper::start(move |_| {
            let Act::Answer(Ok(Reply::Usage(counted))) = usage(directory(1 << 30, 1024)) else { unreachable!() };
            Act::Answer(Ok(Reply::Usage(Usage { used_inodes: used, available_inodes: available, ..counted })))
        });
        let request = NodeGetVolumeStatsRequest {
            volume_id: "pvc-1".to_owned(),
            volume_path: MOUNT.to_owned(),
            ..NodeGetVolumeStatsRequest::default()
        };
        let stats = fake.plugin().node_get_volume_stats(Call::new(request)).await.unwrap().into_inner();
        let inodes = stats.usage.iter().find(|usage| usage.unit() == volume_usage::Unit::Inodes).unwrap();
        assert_eq!((inodes.total, inodes.available), (total, reported), "{used:?} {available:?}");
        assert_eq!(inodes.used, used.map_or(0, |used| used as i64));
    }
}

#[tokio::test]
async fn only_an_allocation_goes_on_where_the_helper_is_busy() {
    let sparse = VolumeKind::Image { sparse: true, block_size: BlockSize::B512 };
    let cases = [
        (VolumeSpec { kind: sparse, ..image(1 << 20) }, ("allocation", "thick"), None, 3),
        (directory(1 << 20, 7), ("inodes", "9"), Some(Code::Aborted), 1),
    ];
    for (spec, (key, value), expected, requests) in cases {
        let busy = AtomicUsize::new(2);
        let fake = FakeHelper::start(move |request| match request {
            Request::Usage { .. } => usage(spec),
            _ if busy.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() => {
                failure(ErrorKind::Busy)
            }
            _ => size(1 << 20),
        });
        fake.greet_with(Greeting::Welcome(Box::new(Welcome {
            version: HIGHEST_VERSION,
            ..fake::welcome(&["default"])
        })));
        let request = ControllerModifyVolumeRequest {
            volume_id: "pvc-1".to_owned(),
            mutable_parameters: [(key.to_owned(), value.to_owned())].into(),
            ..ControllerModifyVolumeRequest::default()
        };
        let modified = fake.plugin().controller_modify_volume(Call::new(request)).await;
        assert_eq!(modified.err().map(|status| status.code()), expected, "{key}");
        assert_eq!(fake.names().iter().filter(|name| *name != "Usage").count(), requests, "{:?}", fake.names());
    }
}

#[tokio::test]
async fn lists_are_paged() {
    let ids: Vec<String> = (0..40).map(|number| format!("pvc-{number:02}")).collect();
    let all = ids.clone();
    let fake = FakeHelper::start(move |request| {
        let Request::List { after, limit } = request else { panic!("{request:?}") };
        let behind = |id: &&String| after.as_ref().is_none_or(|after| id.as_str() > after.as_str());
        // A packet may hold fewer than requested.
        let page = ids.iter().filter(behind).take(usize::from(*limit).min(7)).map(|id| Listed {
            volume: id.parse().unwrap(),
            pool: "default".parse().unwrap(),
            size: Bytes::try_from(1 << 20).unwrap(),
            block: false,
            targets: 0,
        });
        Act::Answer(Ok(Reply::Volumes(page.collect::<Vec<_>>().try_into().unwrap())))
    });
    let plugin = fake.plugin();
    let list = async |max_entries, starting_token: &str| {
        let request = ListVolumesRequest { max_entries, starting_token: starting_token.to_owned() };
        plugin.list_volumes(Call::new(request)).await.map(tonic::Response::into_inner)
    };
    for entries in [0, 1, 7, 39, 40, 41] {
        let (mut seen, mut token) = (Vec::new(), String::new());
        loop {
            let page = list(entries, &token).await.unwrap();
            assert!(entries == 0 || page.entries.len() <= entries as usize);
            assert!(!page.entries.is_empty(), "no page is empty when there are volumes");
            seen.extend(page.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id));
            token = page.next_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(seen, all, "{entries} at a time");
    }
    assert_eq!(list(0, "invalid-token").await.unwrap_err().code(), Code::Aborted);
    assert_eq!(list(-1, "").await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn whatever_is_required_and_missing_is_named() {
    let fake = FakeHelper::start(|other| panic!("{other:?}"));
    let plugin = fake.plugin();
    macro_rules! refused {
        ($method:ident, $request:expr, $field:expr) => {{
            let status = plugin.$method(Call::new($request)).await.unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{}", status.message());
            assert!(status.message().contains($field), "{}: {}", $field, status.message());
        }};
    }
    refused!(create_volume, CreateVolumeRequest::default(), "name");
    refused!(
        create_volume,
        CreateVolumeRequest { volume_capabilities: vec![], ..creation("a1") },
        "volume_capabilities"
    );
    let nothing = vec![VolumeCapability::default()];
    refused!(create_volume, CreateVolumeRequest { volume_capabilities: nothing, ..creation("a1") }, "access_type");
    let source = Some(VolumeContentSource::default());
    refused!(
        create_volume,
        CreateVolumeRequest { volume_content_source: source, ..creation("a1") },
        "volume_content_source"
    );
    let empty = Some(CapacityRange::default());
    refused!(create_volume, CreateVolumeRequest { capacity_range: empty, ..creation("a1") }, "capacity_range");
    refused!(delete_volume, DeleteVolumeRequest::default(), "volume_id");
    refused!(controller_expand_volume, ControllerExpandVolumeRequest::default(), "volume_id");
    let bare = ControllerExpandVolumeRequest { volume_id: "a1".to_owned(), ..ControllerExpandVolumeRequest::default() };
    refused!(controller_expand_volume, bare, "capacity_range");
    refused!(validate_volume_capabilities, ValidateVolumeCapabilitiesRequest::default(), "volume_id");
    let bare = ValidateVolumeCapabilitiesRequest {
        volume_id: "a1".to_owned(),
        ..ValidateVolumeCapabilitiesRequest::default()
    };
    refused!(validate_volume_capabilities, bare, "volume_capabilities");
    refused!(node_publish_volume, NodePublishVolumeRequest::default(), "volume_id");
    refused!(node_publish_volume, publication(false, ""), "target_path");
    let bare = NodePublishVolumeRequest { volume_capability: None, ..publication(false, MOUNT) };
    refused!(node_publish_volume, bare, "volume_capability");
    refused!(node_unpublish_volume, NodeUnpublishVolumeRequest::default(), "volume_id");
    let bare = NodeUnpublishVolumeRequest { volume_id: "a1".to_owned(), target_path: String::new() };
    refused!(node_unpublish_volume, bare, "target_path");
    refused!(node_get_volume_stats, NodeGetVolumeStatsRequest::default(), "volume_id");
    refused!(node_expand_volume, NodeExpandVolumeRequest::default(), "volume_id");
    let bare = NodeExpandVolumeRequest { volume_id: "a1".to_owned(), ..NodeExpandVolumeRequest::default() };
    refused!(node_expand_volume, bare, "volume_path");
    refused!(controller_get_volume, ControllerGetVolumeRequest::default(), "volume_id");
}

#[tokio::test]
async fn validation_confirms_all_or_says_why_not() {
    let fake = FakeHelper::start(|_| usage(directory(1 << 30, 65536)));
    let plugin = fake.plugin();
    let validate = async |capabilities: Vec<VolumeCapability>, parameters: &[(&str, &str)]| {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: "pvc-1".to_owned(),
            volume_capabilities: capabilities,
            parameters,
            ..ValidateVolumeCapabilitiesRequest::default()
        };
        let answer = plugin.validate_volume_capabilities(Call::new(request)).await.unwrap().into_inner();
        assert_eq!(answer.confirmed.is_some(), answer.message.is_empty(), "{}", answer.message);
        answer.confirmed.is_some()
    };
    assert!(validate(vec![capability(false)], &[]).await);
    assert!(validate(vec![capability(false)], &[("pool", "default"), ("inodes", "65536")]).await);
    assert!(!validate(vec![capability(false), capability(true)], &[]).await);
    assert!(!validate(vec![capability(false)], &[("pool", "other")]).await);
    assert!(!validate(vec![capability(false)], &[("dirMode", "0700")]).await);
    assert!(!validate(vec![capability(false)], &[("unknown", "x")]).await);
}
