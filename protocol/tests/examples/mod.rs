//! An example of every request and reply, by the name of its line in `golden.txt`.

use bulkhead_protocol::*;

pub fn id(text: &str) -> VolumeId {
    text.parse().expect("a volume id")
}

fn size(bytes: u64) -> Bytes {
    Bytes::try_from(bytes).expect("a size")
}

fn inodes(number: u64) -> Inodes {
    Inodes::try_from(number).expect("a number of inodes")
}

pub fn target() -> TargetPath {
    TargetPath { directory: "kubelet-pods".parse().expect("a name"), path: "u/m".parse().expect("a path") }
}

fn directory() -> VolumeSpec {
    let mode = DirectoryMode::try_from(0o755).expect("a mode");
    VolumeSpec {
        size: size(1 << 20),
        kind: VolumeKind::Directory { inodes: inodes(1024), mode },
        name_hash: NameHash([7; 32]),
    }
}

fn image() -> VolumeSpec {
    let kind = VolumeKind::Image { sparse: true, block_size: BlockSize::B4096 };
    VolumeSpec { size: size(4096), kind, name_hash: NameHash([9; 32]) }
}

fn filesystem() -> VolumeSpec {
    let mode = DirectoryMode::try_from(0o750).expect("a mode");
    let kind = VolumeKind::Filesystem { sparse: true, mode };
    VolumeSpec { size: size(1 << 29), kind, name_hash: NameHash([8; 32]) }
}

pub fn requests() -> Vec<(&'static str, Request)> {
    let volume = id("pvc-1");
    let flags = MountFlags { read_only: true, no_exec: false, no_atime: true, no_diratime: false };
    let pool: PoolName = "fast".parse().expect("a name");
    vec![
        ("create-directory", Request::Create { volume: volume.clone(), pool: pool.clone(), spec: directory() }),
        ("create-image", Request::Create { volume: volume.clone(), pool: pool.clone(), spec: image() }),
        ("create-filesystem", Request::Create { volume: volume.clone(), pool: pool.clone(), spec: filesystem() }),
        ("set-quota", Request::SetQuota { volume: volume.clone(), size: size(8192), inodes: inodes(2048) }),
        ("grow-image", Request::GrowImage { volume: volume.clone(), size: size(8192) }),
        ("bind-mount", Request::BindMount { volume: volume.clone(), target: target(), flags, exclusive: true }),
        ("unmount", Request::Unmount { volume: volume.clone(), target: target() }),
        ("loop-attach", Request::LoopAttach { volume: volume.clone(), read_only: true }),
        ("loop-detach", Request::LoopDetach { volume: volume.clone() }),
        ("loop-resize", Request::LoopResize { volume: volume.clone() }),
        ("make-device", Request::MakeDevice { volume: volume.clone(), target: target(), exclusive: false }),
        ("remove-device", Request::RemoveDevice { volume: volume.clone(), target: target() }),
        ("usage", Request::Usage { volume: volume.clone(), target: None }),
        ("usage-at", Request::Usage { volume: volume.clone(), target: Some(target()) }),
        ("list", Request::List { after: None, limit: 16 }),
        ("list-after", Request::List { after: Some(volume.clone()), limit: 1 }),
        ("delete", Request::Delete { volume }),
        ("pool-status", Request::PoolStatus { pool }),
        ("listen-csi", Request::Listen { socket: Socket::Csi }),
        ("listen-registration", Request::Listen { socket: Socket::Registration }),
        ("delete-unused", Request::DeleteUnused { volume: id("pvc-1") }),
        ("set-owner", Request::SetOwner { volume: id("pvc-1"), owner: owner() }),
        ("owner", Request::Owner { volume: id("pvc-1") }),
        ("mount-filesystem", Request::MountFilesystem { volume: id("pvc-1") }),
        ("unmount-filesystem", Request::UnmountFilesystem { volume: id("pvc-1") }),
        ("grow-filesystem", Request::GrowFilesystem { volume: id("pvc-1"), size: size(8192) }),
        ("pool-counts", Request::PoolCounts { pool: "fast".parse().expect("a name") }),
        (
            "create-snapshot",
            Request::CreateSnapshot { volume: id("pvc-1"), snapshot: id("snap-1"), name_hash: NameHash([6; 32]) },
        ),
        (
            "create-from",
            Request::CreateFrom {
                volume: id("pvc-1"),
                pool: "fast".parse().expect("a name"),
                spec: image(),
                source: id("snap-1"),
            },
        ),
        ("delete-snapshot", Request::DeleteSnapshot { snapshot: id("snap-1") }),
        ("list-snapshots", Request::ListSnapshots { after: Some(id("snap-1")), of: Some(id("pvc-1")), limit: 7 }),
        ("list-snapshots-all", Request::ListSnapshots { after: None, of: None, limit: 1 }),
        ("origin", Request::Origin { volume: id("pvc-1") }),
        ("delta", Request::Delta { snapshot: id("snap-1"), base: Some(id("snap-2")), from: 4096 }),
        ("delta-of-one", Request::Delta { snapshot: id("snap-1"), base: None, from: 0 }),
        ("set-inodes", Request::SetInodes { volume: id("pvc-1"), inodes: inodes(2048) }),
        ("allocate", Request::Allocate { volume: id("pvc-1") }),
        ("sharing", Request::Sharing { volume: id("pvc-1"), from: 4096 }),
        ("create-group", Request::CreateGroup { members: members(), name_hash: NameHash([5; 32]) }),
        ("mount-labelled", Request::MountLabelled { volume: id("pvc-1"), context: context() }),
    ]
}

fn context() -> SecurityContext {
    "system_u:object_r:container_file_t:s0:c1,c4.c7".parse().expect("a context")
}

fn members() -> UpTo<Member, MAX_MEMBERS> {
    let member = |number| Member { volume: id(&format!("pvc-{number}")), snapshot: id(&format!("snap-{number}")) };
    UpTo::try_from(vec![member(1), member(2)]).expect("two members")
}

fn origin() -> Origin {
    Origin { source: id("pvc-1"), family: id("pvc-0"), copied: 1_700_000_000_000_000_000 }
}

fn snapshot() -> Snapshot {
    Snapshot {
        snapshot: id("snap-1"),
        pool: "fast".parse().expect("a name"),
        size: size(8192),
        block: true,
        allocated: 4096,
        origin: origin(),
    }
}

fn owner() -> OwnerRecord {
    "claim=shop/data\n".parse().expect("an owner")
}

/// How many kinds of conditions there were until version 3.
pub const CONDITIONS_OF_VERSION_3: usize = 21;

/// One of each kind.
pub fn conditions() -> Vec<Condition> {
    vec![
        Condition::Unconfined,
        Condition::ShutDown,
        Condition::ReadOnly,
        Condition::NotAnswering { seconds: 15 },
        Condition::Apart { directory: "t".parse().expect("a name"), cause: Separation::Moved },
        Condition::NotServed { volumes: 1 },
        Condition::Overpromised { promised: 2, limit: 1 },
        Condition::QuotasOff,
        Condition::DefaultLimits,
        Condition::QuotaEvasion { bytes: 4096, inodes: 1, first: 4711, more: true },
        Condition::QuotaFiles { bytes: 4096 },
        Condition::NoInodes,
        Condition::NotReleased { volumes: 1, project: 4711 },
        Condition::VolumeLimit { volumes: 2, limit: 1 },
        Condition::NoExec,
        Condition::NotEnforced,
        Condition::NotInspected { errno: 5 },
        Condition::ImageSize { found: 4096, recorded: 8192 },
        Condition::Oversized { used: 4096 },
        Condition::OtherLimits { bytes: 4096, inodes: 2, soft: true },
        Condition::Other,
        Condition::FilesystemShutDown,
        Condition::NotMountable { errno: 117 },
        Condition::NotDirect,
        Condition::Unmounted,
    ]
}

fn ranges() -> UpTo<Range, MAX_RANGES> {
    UpTo::try_from(vec![Range { offset: 4096, length: 4096 }]).expect("one range")
}

pub fn responses() -> Vec<(&'static str, Response)> {
    let pool: PoolName = "fast".parse().expect("a name");
    let usage = Usage {
        pool: pool.clone(),
        spec: directory(),
        used_bytes: Some(4096),
        available_bytes: Some(1),
        used_inodes: None,
        available_inodes: Some(7),
        targets: 2,
        condition: Some(Condition::NotEnforced),
    };
    let listed = Listed { volume: id("pvc-1"), pool, size: size(4096), block: true, targets: 1 };
    let status = PoolStatus {
        quota: QuotaMode::None,
        total: 5,
        available: 4,
        largest_volume: 3,
        promised: 2,
        inode_size: 512,
        volumes: 1,
        emptying: 0,
        conditions: UpTo::try_from(conditions()).expect("all of them fit"),
    };
    let released = conditions().into_iter().take(CONDITIONS_OF_VERSION_3).collect::<Vec<_>>();
    let released = PoolStatus { conditions: UpTo::try_from(released).expect("all of them fit"), ..status.clone() };
    let of_filesystem = Usage { spec: filesystem(), condition: Some(Condition::FilesystemShutDown), ..usage.clone() };
    let of = SnapshotOf::Image { block_size: BlockSize::B4096 };
    let of_snapshot = Usage {
        spec: VolumeSpec { kind: VolumeKind::Snapshot { of }, ..image() },
        condition: None,
        ..of_filesystem.clone()
    };
    let mut all = vec![
        ("done", Ok(Reply::Done)),
        ("size", Ok(Reply::Size(size(4096)))),
        ("usage-reply", Ok(Reply::Usage(usage))),
        ("volumes", Ok(Reply::Volumes(UpTo::try_from(vec![listed]).expect("one volume")))),
        ("pool", Ok(Reply::Pool(released))),
        ("pool-of-version-4", Ok(Reply::Pool(status))),
        ("listening", Ok(Reply::Listening)),
        ("owner-reply", Ok(Reply::Owner { owner: Some(owner()), used: true })),
        ("usage-of-filesystem", Ok(Reply::Usage(of_filesystem))),
        (
            "counts",
            Ok(Reply::Counts {
                filesystem_limit: 300,
                filesystems: 2,
                inodes: 1000,
                free_inodes: 7,
                snapshots: 5,
                extent_limit: 200_000,
                snapshot_bytes: 8192,
            }),
        ),
        ("snapshot", Ok(Reply::Snapshot(snapshot()))),
        ("snapshots", Ok(Reply::Snapshots(UpTo::try_from(vec![snapshot()]).expect("one snapshot")))),
        ("origin-reply", Ok(Reply::Origin(Some(origin())))),
        ("ranges", Ok(Reply::Ranges { ranges: ranges(), next: Some(8192) })),
        ("sharing-reply", Ok(Reply::Sharing { allocated: 12_288, shared: 4096, next: Some(8192) })),
        ("usage-of-snapshot", Ok(Reply::Usage(of_snapshot))),
    ];
    let kinds = [
        ("not-found", ErrorKind::NotFound),
        ("already-exists", ErrorKind::AlreadyExists),
        ("incompatible", ErrorKind::Incompatible),
        ("in-use", ErrorKind::InUse),
        ("busy", ErrorKind::Busy),
        ("no-space", ErrorKind::NoSpace),
        ("unsupported", ErrorKind::Unsupported),
        ("invalid", ErrorKind::Invalid),
        ("refused", ErrorKind::Refused),
        ("pool-broken", ErrorKind::PoolBroken),
        ("io", ErrorKind::Io(5)),
        ("wrong-kind", ErrorKind::WrongKind),
        ("no-room", ErrorKind::NoRoom { room: 4096, wanted: 8192 }),
        ("too-fragmented", ErrorKind::TooFragmented { extents: 3, limit: 2 }),
    ];
    all.extend(kinds.map(|(name, kind)| (name, Err(Error::new(kind, "no")))));
    all
}

pub fn welcome() -> Result<Welcome, Error> {
    let pool = Pool { name: "fast".parse().expect("a name"), quota: QuotaMode::Enforced, filesystem: Text::new("xfs") };
    let publish = PublishDirectory { name: "t".parse().expect("a name"), host_path: Text::new("/t") };
    Ok(Welcome {
        version: 1,
        release: Text::new("0.1.0"),
        driver: "bulkhead.csi.local".parse().expect("a name"),
        csi_socket: Text::new("/run/csi.sock"),
        registers: true,
        publish_directories: UpTo::try_from(vec![publish]).expect("one directory"),
        pools: UpTo::try_from(vec![pool]).expect("one pool"),
    })
}
