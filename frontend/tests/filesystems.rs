//! Volumes with a filesystem of their own, in an image: which requests a call leads to, and what is refused before one.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bulkhead_frontend::csi::Plugin;
use bulkhead_frontend::proto::csi::controller_server::Controller;
use bulkhead_frontend::proto::csi::node_server::Node;
use bulkhead_frontend::proto::csi::*;
use bulkhead_frontend::proto::inspection::inspection_server::Inspection;
use bulkhead_frontend::proto::inspection::{GetVolumeRequest, ListPoolsRequest};
use bulkhead_protocol::{
    BlockSize, Bytes, Condition, DirectoryMode, ErrorKind, HIGHEST_VERSION, NameHash, Reply, Request, Usage,
    VolumeKind, VolumeSpec, Welcome,
};
use tonic::{Code, Request as Call};

use fake::{Act, FakeHelper, Greeting, capability, creation, done, failure, no_copies, publication, size, welcome};

const MOUNT: &str = "/var/lib/kubelet/pods/0/volumes/kubernetes.io~csi/pvc-1/mount";
const OTHER: &str = "/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/pvc-1/mount";

fn filesystem(bytes: u64) -> VolumeSpec {
    let kind = VolumeKind::Filesystem { sparse: false, mode: DirectoryMode::try_from(0o755).unwrap() };
    VolumeSpec { size: Bytes::try_from(bytes).unwrap(), kind, name_hash: NameHash([0; 32]) }
}

/// Of a filesystem of 448 MiB in an image of 512.
fn usage(condition: Option<Condition>) -> Act {
    Act::Answer(Ok(Reply::Usage(Usage {
        pool: "default".parse().unwrap(),
        spec: filesystem(512 << 20),
        used_bytes: Some(18 << 20),
        available_bytes: Some(430 << 20),
        used_inodes: Some(4),
        available_inodes: Some(262_140),
        targets: 1,
        condition,
    })))
}

/// A helper that mounts one filesystem, at most at two targets.
fn mounting() -> FakeHelper {
    let (mounted, targets) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    recent(FakeHelper::start(move |request| match request {
        Request::Usage { .. } => usage(None),
        Request::MountFilesystem { .. } => {
            mounted.store(true, Ordering::SeqCst);
            done()
        }
        Request::BindMount { .. } if !mounted.load(Ordering::SeqCst) => failure(ErrorKind::Invalid),
        Request::BindMount { .. } => {
            targets.fetch_add(1, Ordering::SeqCst);
            done()
        }
        Request::Unmount { .. } => {
            targets.fetch_sub(1, Ordering::SeqCst);
            done()
        }
        Request::UnmountFilesystem { .. } if targets.load(Ordering::SeqCst) > 0 => failure(ErrorKind::InUse),
        Request::UnmountFilesystem { .. } => {
            mounted.store(false, Ordering::SeqCst);
            done()
        }
        Request::Create { spec, .. } => size(spec.size.get()),
        Request::GrowFilesystem { size, .. } => fake::size(size.get()),
        request => no_copies(request).unwrap_or_else(done),
    }))
}

/// The helper, as one that knows such volumes.
fn recent(fake: FakeHelper) -> FakeHelper {
    let welcome = Welcome { version: HIGHEST_VERSION, ..welcome(&["default"]) };
    fake.greet_with(Greeting::Welcome(Box::new(welcome)));
    fake
}

fn requested(parameters: &[(&str, &str)], required_bytes: i64) -> CreateVolumeRequest {
    let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    CreateVolumeRequest {
        parameters: parameters.collect(),
        capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
        ..creation("pvc-1")
    }
}

async fn publish(plugin: &Plugin, target: &str) -> Result<(), tonic::Status> {
    plugin.node_publish_volume(Call::new(publication(false, target))).await.map(drop)
}

async fn unpublish(plugin: &Plugin, target: &str) -> Result<(), tonic::Status> {
    let request = NodeUnpublishVolumeRequest { volume_id: "pvc-1".to_owned(), target_path: target.to_owned() };
    plugin.node_unpublish_volume(Call::new(request)).await.map(drop)
}

async fn stats(plugin: &Plugin) -> NodeGetVolumeStatsResponse {
    let request = NodeGetVolumeStatsRequest {
        volume_id: "pvc-1".to_owned(),
        volume_path: MOUNT.to_owned(),
        ..NodeGetVolumeStatsRequest::default()
    };
    plugin.node_get_volume_stats(Call::new(request)).await.unwrap().into_inner()
}

#[tokio::test]
async fn one_that_was_made_here_is_mounted_before_its_first_target_and_unmounted_after_its_last() {
    let fake = mounting();
    let plugin = fake.plugin();
    let create = |bytes| plugin.create_volume(Call::new(requested(&[("backing", "image")], bytes)));
    let refused = create(1 << 20).await.unwrap_err();
    assert!(refused.code() == Code::OutOfRange && refused.message().contains("at least 300 MiB"), "{refused}");
    assert_eq!(create(300 << 20).await.unwrap().into_inner().volume.unwrap().capacity_bytes, 300 << 20);
    publish(&plugin, MOUNT).await.unwrap();
    publish(&plugin, OTHER).await.unwrap();
    unpublish(&plugin, MOUNT).await.unwrap();
    unpublish(&plugin, OTHER).await.unwrap();
    let expected = [
        "Create", "MountFilesystem", "BindMount", "MountFilesystem", "BindMount", "Unmount", "UnmountFilesystem",
        "Unmount", "UnmountFilesystem",
    ];
    assert_eq!(fake.names(), expected);
}

#[tokio::test]
async fn after_a_restart_its_kind_is_found_out() {
    let fake = mounting();
    publish(&fake.plugin(), MOUNT).await.unwrap();
    unpublish(&fake.plugin(), MOUNT).await.unwrap();
    let expected = ["Usage", "MountFilesystem", "BindMount", "Unmount", "Usage", "UnmountFilesystem"];
    assert_eq!(fake.names(), expected);
}

#[tokio::test]
async fn a_directory_of_the_pool_costs_no_request_more() {
    let directory = VolumeSpec {
        kind: VolumeKind::Directory { inodes: 1024.try_into().unwrap(), mode: DirectoryMode::try_from(0o755).unwrap() },
        ..filesystem(1 << 30)
    };
    let fake = recent(FakeHelper::start(move |request| match request {
        Request::Create { spec, .. } => size(spec.size.get()),
        Request::Usage { .. } => {
            let Act::Answer(Ok(Reply::Usage(counted))) = usage(None) else { unreachable!() };
            Act::Answer(Ok(Reply::Usage(Usage { spec: directory, ..counted })))
        }
        Request::UnmountFilesystem { .. } | Request::MountFilesystem { .. } => panic!("it has none"),
        _ => done(),
    }));
    let plugin = fake.plugin();
    plugin.create_volume(Call::new(creation("pvc-1"))).await.unwrap();
    publish(&plugin, MOUNT).await.unwrap();
    unpublish(&plugin, MOUNT).await.unwrap();
    assert_eq!(fake.names(), ["Create", "BindMount", "Unmount"]);
    // Another run of the frontend has to ask once.
    unpublish(&fake.plugin(), MOUNT).await.unwrap();
    assert_eq!(fake.names()[3..], ["Unmount", "Usage"]);
}

#[tokio::test]
async fn a_failed_publish_leaves_nothing_mounted_and_a_broken_filesystem_is_told() {
    let fake = recent(FakeHelper::start(|request| match request {
        Request::Usage { .. } => usage(None),
        Request::BindMount { exclusive: false, .. } => failure(ErrorKind::Invalid),
        Request::UnmountFilesystem { .. } => failure(ErrorKind::InUse),
        _ => done(),
    }));
    let failed = publish(&fake.plugin(), MOUNT).await.unwrap_err();
    assert_eq!(failed.code(), Code::InvalidArgument, "not what happened to the filesystem afterwards");
    assert_eq!(fake.names(), ["Usage", "MountFilesystem", "BindMount", "UnmountFilesystem"]);

    let fake = recent(FakeHelper::start(|request| match request {
        Request::Usage { .. } => usage(Some(Condition::NotMountable { errno: 117 })),
        Request::MountFilesystem { .. } => failure(ErrorKind::Io(117)),
        _ => failure(ErrorKind::Invalid),
    }));
    let failed = publish(&fake.plugin(), MOUNT).await.unwrap_err();
    assert_eq!(failed.code(), Code::Internal);
    assert!(failed.message().starts_with("scripted: the filesystem in the volume's image could not be mounted"));
}

#[tokio::test]
async fn one_that_cannot_be_measured_is_unmounted_all_the_same() {
    for (kind, outcome) in [(ErrorKind::Io(5), Ok(())), (ErrorKind::Io(5), Err(Code::Aborted))] {
        let unmounted = if outcome.is_ok() { None } else { Some(ErrorKind::Busy) };
        let fake = recent(FakeHelper::start(move |request| match (request, unmounted) {
            (Request::Usage { .. }, _) => failure(kind),
            (Request::UnmountFilesystem { .. }, Some(kind)) => failure(kind),
            _ => done(),
        }));
        assert_eq!(unpublish(&fake.plugin(), MOUNT).await.map_err(|status| status.code()), outcome);
        assert_eq!(fake.names(), ["Unmount", "Usage", "UnmountFilesystem"]);
    }
    let fake = recent(FakeHelper::start(|request| match request {
        Request::Usage { .. } => failure(ErrorKind::NotFound),
        _ => done(),
    }));
    unpublish(&fake.plugin(), MOUNT).await.unwrap();
    assert_eq!(fake.names(), ["Unmount", "Usage"], "a deleted volume has nothing mounted");
}

#[tokio::test]
async fn its_figures_are_those_of_the_filesystem_in_it() {
    let fake = mounting();
    let told = stats(&fake.plugin()).await;
    let figures: Vec<_> = told.usage.iter().map(|usage| (usage.total, usage.used, usage.available)).collect();
    assert_eq!(figures, [(448 << 20, 18 << 20, 430 << 20), (262_144, 4, 262_140)]);
    assert!(!told.volume_condition.unwrap().abnormal);
    let request = GetVolumeRequest { id: "pvc-1".to_owned(), without_owner: true, with_sharing: false };
    let shown = fake.inspector().get_volume(Call::new(request)).await.unwrap().into_inner().volume.unwrap();
    assert_eq!((shown.kind.as_str(), shown.size_bytes, shown.inside_bytes), ("filesystem", 512 << 20, Some(448 << 20)));
    assert_eq!(shown.settings["backing"], "image");
}

#[tokio::test]
async fn one_that_has_shut_down_is_abnormal_and_says_what_to_do() {
    for condition in [Condition::FilesystemShutDown, Condition::NotMountable { errno: 117 }] {
        let fake = recent(FakeHelper::start(move |_| usage(Some(condition.clone()))));
        let told = stats(&fake.plugin()).await.volume_condition.unwrap();
        assert!(told.abnormal && told.message.contains("docs/operate.md"), "{}", told.message);
    }
    let fake = recent(FakeHelper::start(|_| usage(Some(Condition::NotDirect))));
    let told = stats(&fake.plugin()).await.volume_condition.unwrap();
    assert!(!told.abnormal && told.message.contains("page cache"), "{}", told.message);
}

#[tokio::test]
async fn it_grows_with_its_image_even_on_the_second_try() {
    let fake = mounting();
    let plugin = fake.plugin();
    for (required_bytes, grown) in [(1 << 30, 1 << 30), (1 << 20, 512 << 20)] {
        let request = ControllerExpandVolumeRequest {
            volume_id: "pvc-1".to_owned(),
            capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
            volume_capability: Some(capability(false)),
            ..ControllerExpandVolumeRequest::default()
        };
        let answer = plugin.controller_expand_volume(Call::new(request)).await.unwrap().into_inner();
        assert_eq!((answer.capacity_bytes, answer.node_expansion_required), (grown, false));
    }
    assert_eq!(fake.names(), ["Usage", "GrowFilesystem", "Usage", "GrowFilesystem"]);
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_before_the_helper_is_asked() {
    let fake = recent(FakeHelper::start(|other| panic!("{other:?}")));
    let plugin = fake.plugin();
    let image = ("backing", "image");
    for (more, word) in [
        (("inodes", "5000"), "inodes"),
        (("csi.storage.k8s.io/fstype", "ext4"), "ext4"),
        (("backing", "tape"), "directory or image"),
    ] {
        let status = plugin.create_volume(Call::new(requested(&[image, more], 1 << 30))).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(word), "{}", status.message());
    }
    let labelled = |parameters: &[(&str, &str)], option: &str| CreateVolumeRequest {
        volume_capabilities: vec![with_flags(capability(false), &[option])],
        ..requested(parameters, 1 << 30)
    };
    let wrong = plugin.create_volume(Call::new(labelled(&[image], "context=system_u:object_r:etc_t:s0")));
    let status = wrong.await.unwrap_err();
    assert!(status.message().contains("container_file_t:LEVEL"), "{}", status.message());
    let directory = plugin.create_volume(Call::new(labelled(&[], LABEL)));
    let status = directory.await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("use a class with backing: image"), "{}", status.message());
}

/// The option as a kubelet writes it.
const LABEL: &str = r#"context="system_u:object_r:container_file_t:s0:c2,c1""#;

fn with_flags(mut capability: VolumeCapability, flags: &[&str]) -> VolumeCapability {
    let Some(volume_capability::AccessType::Mount(mount)) = &mut capability.access_type else { panic!("a device") };
    mount.mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    capability
}

async fn publish_with(plugin: &Plugin, flags: &[&str]) -> Result<(), tonic::Status> {
    let publication = publication(false, MOUNT);
    let volume_capability = publication.volume_capability.map(|capability| with_flags(capability, flags));
    plugin.node_publish_volume(Call::new(NodePublishVolumeRequest { volume_capability, ..publication })).await.map(drop)
}

async fn confirmed(plugin: &Plugin, flags: &[&str]) -> Result<(), String> {
    let request = ValidateVolumeCapabilitiesRequest {
        volume_id: "pvc-1".to_owned(),
        volume_capabilities: vec![with_flags(capability(false), flags)],
        ..ValidateVolumeCapabilitiesRequest::default()
    };
    let answer = plugin.validate_volume_capabilities(Call::new(request)).await.unwrap().into_inner();
    answer.confirmed.map(drop).ok_or(answer.message)
}

#[tokio::test]
async fn one_that_is_published_with_a_label_is_mounted_with_that() {
    let fake = recent(FakeHelper::start(|request| match request {
        Request::Usage { .. } => usage(None),
        Request::MountFilesystem { .. } => panic!("it would have no label"),
        _ => done(),
    }));
    let plugin = fake.plugin();
    publish_with(&plugin, &["noatime", LABEL]).await.unwrap();
    assert_eq!(fake.names(), ["Usage", "MountLabelled", "BindMount"]);
    let seen = fake.seen.lock().unwrap().clone();
    let seen: Vec<_> = seen.into_iter().filter(|request| !matches!(request, Request::List { .. })).collect();
    let [_, Request::MountLabelled { context, .. }, Request::BindMount { flags, .. }] = &seen[..] else {
        panic!("{seen:?}")
    };
    assert_eq!(context.as_str(), "system_u:object_r:container_file_t:s0:c1,c2");
    assert!(flags.no_atime);
    confirmed(&plugin, &[LABEL]).await.unwrap();
    for wrong in ["context=", "context=s0", r#"context="user_u:object_r:container_file_t:s0""#] {
        let status = publish_with(&plugin, &[wrong]).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{wrong}");
        assert!(status.message().contains("container_file_t:LEVEL"), "{wrong}: {}", status.message());
    }
}

#[tokio::test]
async fn a_label_is_refused_for_a_directory_of_the_pool_and_by_an_earlier_helper() {
    let kind =
        VolumeKind::Directory { inodes: 1024.try_into().unwrap(), mode: DirectoryMode::try_from(0o755).unwrap() };
    let directory = recent(FakeHelper::start(move |request| match request {
        Request::Usage { .. } => {
            let Act::Answer(Ok(Reply::Usage(counted))) = usage(None) else { unreachable!() };
            let spec = VolumeSpec { kind, ..counted.spec };
            Act::Answer(Ok(Reply::Usage(Usage { spec, ..counted })))
        }
        other => panic!("{other:?}"),
    }));
    let status = publish_with(&directory.plugin(), &[LABEL]).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().starts_with("volume pvc-1 cannot be mounted with an SELinux context"), "{status}");
    assert!(status.message().contains("backing: image"), "{status}");
    assert!(confirmed(&directory.plugin(), &[LABEL]).await.unwrap_err().contains("backing: image"));

    let earlier = mounting();
    earlier.greet_with(Greeting::Welcome(Box::new(Welcome { version: 4, ..welcome(&["default"]) })));
    let status = publish_with(&earlier.plugin(), &[LABEL]).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("mount-labelled"), "{status}");
}

#[tokio::test]
async fn a_device_of_the_same_class_is_on_an_image_as_any_other() {
    let fake = recent(FakeHelper::start(|request| match request {
        Request::Create { spec, .. } => Act::Answer(Ok(Reply::Size(spec.size))),
        other => panic!("{other:?}"),
    }));
    let parameters = [("backing", "image"), ("blockSize", "4096"), ("sparse", "true")];
    let request =
        CreateVolumeRequest { volume_capabilities: vec![capability(true)], ..requested(&parameters, 1 << 20) };
    let volume = fake.plugin().create_volume(Call::new(request)).await.unwrap().into_inner().volume.unwrap();
    assert_eq!(volume.capacity_bytes, 1 << 20, "a filesystem would take more");
    let seen = fake.seen.lock().unwrap();
    let Some(Request::Create { spec, .. }) = seen.last() else { panic!("{seen:?}") };
    assert_eq!(spec.kind, VolumeKind::Image { sparse: true, block_size: BlockSize::B4096 });
}

#[tokio::test]
async fn a_pool_offers_as_many_as_it_is_configured_for() {
    let (limit, asked) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (now, seen) = (Arc::clone(&limit), Arc::clone(&asked));
    let fake = recent(FakeHelper::start(move |request| {
        seen.lock().unwrap().push(request.name());
        match request {
            Request::PoolStatus { .. } => Act::Answer(Ok(Reply::Pool(fake::status(1 << 40)))),
            Request::PoolCounts { .. } => fake::counts(now.load(Ordering::SeqCst), 2, (0, 0)),
            Request::Create { .. } => failure(ErrorKind::Unsupported),
            Request::List { .. } => fake::no_volumes(),
            other => panic!("{other:?}"),
        }
    }));
    let plugin = fake.plugin();
    let room = async |backing: &str, block| {
        let request = GetCapacityRequest {
            parameters: BTreeMap::from([("backing".to_owned(), backing.to_owned())]),
            volume_capabilities: vec![capability(block)],
            ..GetCapacityRequest::default()
        };
        let answer = plugin.get_capacity(Call::new(request)).await.unwrap().into_inner();
        (answer.available_capacity, answer.minimum_volume_size.unwrap())
    };
    assert_eq!(room("image", false).await, (0, 300 << 20));
    let status = plugin.create_volume(Call::new(requested(&[("backing", "image")], 1 << 30))).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "an orchestrator's agent tries another node");
    limit.store(3, Ordering::SeqCst);
    assert_eq!(room("image", false).await, (1 << 40, 300 << 20));
    assert_eq!(room("image", true).await, (1 << 40, 1 << 20), "a device takes none of them");
    limit.store(2, Ordering::SeqCst);
    assert_eq!((room("image", false).await.0, room("image", true).await.0), (0, 1 << 40));
    asked.lock().unwrap().clear();
    assert_eq!(room("directory", true).await.0, 1 << 40);
    assert_eq!(*asked.lock().unwrap(), ["pool-status"]);
    let pools = fake.inspector().list_pools(Call::new(ListPoolsRequest {})).await.unwrap().into_inner().pools;
    assert_eq!((pools[0].filesystems, pools[0].filesystem_limit), (2, 2));
    assert_eq!(
        (pools[0].inodes, pools[0].free_inodes),
        (None, None),
        "a pool without any is one that nobody has counted"
    );
}

#[tokio::test]
async fn a_helper_of_an_earlier_release_is_not_asked_for_one() {
    let fake = FakeHelper::start(|other| panic!("{other:?}"));
    let status = fake.plugin().create_volume(Call::new(requested(&[("backing", "image")], 1 << 30))).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("upgrade bulkhead-privhelper"), "{}", status.message());
}
