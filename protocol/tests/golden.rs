//! The bytes of every variant. A change here is a change of the wire: a released variant never changes, so only lines
//! for new ones are ever added.

use bulkhead_protocol::*;

fn id(text: &str) -> VolumeId {
    text.parse().expect("a volume id")
}

fn size(bytes: u64) -> Bytes {
    Bytes::try_from(bytes).expect("a size")
}

fn inodes(number: u64) -> Inodes {
    Inodes::try_from(number).expect("a number of inodes")
}

fn target() -> TargetPath {
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

fn requests() -> Vec<(&'static str, Request)> {
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
    ]
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

#[test]
fn the_largest_pages_fit_one_packet() {
    let longest = "a".repeat(130);
    let origin = Origin { source: id(&longest), family: id(&longest), copied: u64::MAX };
    let pool = "a".repeat(63).parse().expect("a name");
    let one = Snapshot { snapshot: id(&longest), pool, size: Bytes::MAX, block: true, allocated: u64::MAX, origin };
    let snapshots = UpTo::try_from(vec![one; MAX_SNAPSHOTS]).expect("as many as are allowed");
    let ranges = UpTo::try_from(vec![Range { offset: 0, length: 1 }; MAX_RANGES]).expect("as many as are allowed");
    for reply in [Reply::Snapshots(snapshots), Reply::Ranges { ranges, next: Some(1) }] {
        let response: Response = Ok(reply);
        assert!(encode(&response).is_ok(), "{response:?}");
    }
}

fn owner() -> OwnerRecord {
    "claim=shop/data\n".parse().expect("an owner")
}

/// One of each kind.
fn conditions() -> Vec<Condition> {
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

/// How many kinds there were until version 3.
const CONDITIONS_OF_VERSION_3: usize = 21;

#[test]
fn a_pool_may_have_every_condition_at_once() {
    assert!(conditions().len() <= MAX_CONDITIONS);
    let whole = responses().iter().filter(|(name, _)| *name == "pool-of-version-4").count();
    assert_eq!(whole, 1, "and they fit one packet");
}

fn responses() -> Vec<(&'static str, Response)> {
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

fn welcome() -> Result<Welcome, Error> {
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal")).collect()
}

fn encoded() -> Vec<(String, Vec<u8>)> {
    let mut all = vec![("hello".to_owned(), encode(&Hello::new(1)).expect("it fits"))];
    all.push(("welcome".to_owned(), encode(&welcome()).expect("it fits")));
    all.extend(requests().into_iter().map(|(name, value)| (name.to_owned(), encode(&value).expect("it fits"))));
    all.extend(responses().into_iter().map(|(name, value)| (name.to_owned(), encode(&value).expect("it fits"))));
    all
}

#[test]
fn the_bytes_of_every_variant_are_as_they_were_released() {
    let now: Vec<String> = encoded().iter().map(|(name, bytes)| format!("{name} {}", hex(bytes))).collect();
    let released: Vec<&str> = include_str!("golden.txt").lines().collect();
    let lost: Vec<_> = released.iter().filter(|line| !now.iter().any(|new| new == *line)).collect();
    assert!(lost.is_empty(), "the wire has changed; these bytes were released:\n{lost:#?}");
    let new: Vec<_> = now.iter().filter(|line| !released.contains(&line.as_str())).map(String::as_str).collect();
    assert!(new.is_empty(), "golden.txt lacks these lines, in the order of the examples:\n{}", new.join("\n"));
    assert_eq!(now, released, "golden.txt is not in the order of the examples");
}

#[test]
fn released_bytes_decode_to_their_values() {
    let golden: std::collections::HashMap<_, _> =
        include_str!("golden.txt").lines().filter_map(|line| line.split_once(' ')).collect();
    for (name, value) in requests() {
        assert_eq!(decode::<Request>(&unhex(golden[name])), Ok(value), "{name}");
    }
    for (name, value) in responses() {
        assert_eq!(decode::<Response>(&unhex(golden[name])), Ok(value), "{name}");
    }
    assert_eq!(decode::<Hello>(&unhex(golden["hello"])), Ok(Hello::new(1)));
    assert_eq!(decode(&unhex(golden["welcome"])), Ok(welcome()));
}

#[test]
fn each_request_has_a_name_and_a_version_of_its_own() {
    // The requests that each version added, in the order of their numbers.
    let released = [
        (
            1,
            "create set-quota grow-image bind-mount unmount loop-attach loop-detach loop-resize make-device \
             remove-device usage list delete pool-status listen",
        ),
        (2, "delete-unused"),
        (3, "set-owner owner"),
        (
            4,
            "mount-filesystem unmount-filesystem grow-filesystem pool-counts create-snapshot create-from \
             delete-snapshot list-snapshots origin delta set-inodes allocate sharing",
        ),
    ];
    let named = released.iter().flat_map(|(version, names)| names.split(' ').map(|name| (name, *version)));
    let rows: Vec<_> = Request::ROWS.iter().map(|row| (row.name, row.since_version)).collect();
    assert_eq!(rows, named.collect::<Vec<_>>(), "name a new request in this test: released ones never change");
    let mut found: Vec<_> =
        requests().iter().map(|(_, request)| (request.name(), request.row().since_version)).collect();
    found.dedup();
    assert_eq!(found, rows, "requests() has an example of each, in the order of their numbers");
    assert!(found.iter().all(|(_, version)| *version <= HIGHEST_VERSION));
}

/// The rows of the table of requests on the page: number, variant, and version if it is not the first.
fn documented() -> Vec<(usize, String, u16)> {
    let page = include_str!("../PROTOCOL.md");
    let table = page.split("| number, name | fields | reply |").nth(1).expect("the table of requests");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let name = row.trim_matches('|').split('|').next().expect("a first column");
        let version = name
            .split_once("(version ")
            .map_or(1, |(_, rest)| rest.trim().trim_end_matches(')').parse().expect("a version"));
        let (number, variant) = name.trim().split_once(" `").expect("a number and a name");
        let variant = variant.split('`').next().expect("a name").to_owned();
        (number.parse().expect("a number"), variant, version)
    })
    .collect()
}

#[test]
fn the_page_has_the_table_of_requests() {
    let rows = Request::ROWS.iter().enumerate();
    let in_code: Vec<_> = rows.map(|(number, row)| (number, row.variant.to_owned(), row.since_version)).collect();
    assert_eq!(documented(), in_code, "PROTOCOL.md, on the left, has a row for each request");
}

/// The variants of [`Reply`] in the order of their numbers; the compiler asks for a new one.
macro_rules! variants {
    ($($variant:pat),* $(,)?) => {
        const REPLIES: &[fn(&Reply) -> bool] = &[$(|reply| matches!(reply, $variant)),*];
        const _: fn(&Reply) = |reply| match reply { $($variant => {})* };
    };
}

variants! {
    Reply::Done, Reply::Size(_), Reply::Usage(_), Reply::Volumes(_), Reply::Pool(_), Reply::Listening,
    Reply::Owner { .. }, Reply::Counts { .. }, Reply::Snapshot(_), Reply::Snapshots(_), Reply::Origin(_),
    Reply::Ranges { .. }, Reply::Sharing { .. },
}

#[test]
fn each_reply_has_an_example_and_is_on_the_page() {
    let (page, examples) = (include_str!("../PROTOCOL.md"), responses());
    for (number, is_it) in (0_u32..).zip(REPLIES) {
        let reply = examples.iter().filter_map(|(_, response)| response.as_ref().ok()).find(|reply| is_it(reply));
        let reply = reply.unwrap_or_else(|| panic!("responses() has no example of reply {number}"));
        assert_eq!(encode(reply).expect("it fits")[..4], number.to_le_bytes(), "{reply:?}");
        let debug = format!("{reply:?}");
        let name = debug.split([' ', '(']).next().expect("a name");
        assert!(
            page.contains(&format!("\n| {number} `{name}` |")),
            "PROTOCOL.md has no row for reply {number}, {name}"
        );
    }
}

#[test]
fn the_page_has_every_condition_with_its_number() {
    let page = include_str!("../PROTOCOL.md").split_whitespace().collect::<Vec<_>>().join(" ");
    for (number, condition) in conditions().iter().enumerate() {
        let packet = encode(condition).expect("it fits");
        assert_eq!(packet[..4], u32::try_from(number).expect("a small number").to_le_bytes(), "{condition:?}");
        let debug = format!("{condition:?}");
        let name = debug.split(' ').next().expect("a name");
        assert!(page.contains(&format!("| {number} `{name}` |")), "{number} {name} is not on the page");
    }
}

#[test]
fn a_request_tells_its_volumes_and_its_target() {
    for (name, request) in requests() {
        // A list begins after a volume, and does nothing to it.
        let wanted: &[&str] = match name {
            "list"
            | "list-after"
            | "pool-status"
            | "listen-csi"
            | "listen-registration"
            | "pool-counts"
            | "list-snapshots"
            | "list-snapshots-all" => &[],
            "create-snapshot" | "create-from" => &["pvc-1", "snap-1"],
            "delete-snapshot" | "delta" | "delta-of-one" => &["snap-1"],
            _ => &["pvc-1"],
        };
        let found: Vec<_> = request.volumes().into_iter().map(VolumeId::as_str).collect();
        assert_eq!(found, wanted, "{name}");
        let at_target = ["bind-mount", "unmount", "make-device", "remove-device", "usage-at"].contains(&name);
        assert_eq!(request.target(), at_target.then_some(&target()), "{name}");
    }
}

#[test]
fn a_request_logs_its_fields_except_for_what_is_long_or_means_nothing() {
    for (name, logged) in [
        ("create-directory", "volume=pvc-1 pool=fast size=1048576 inodes=1024 mode=0755"),
        ("create-image", "volume=pvc-1 pool=fast size=4096 sparse=true block_size=4096"),
        ("create-filesystem", "volume=pvc-1 pool=fast size=536870912 filesystem=true sparse=true mode=0750"),
        ("bind-mount", "volume=pvc-1 read_only=true no_exec=false no_atime=true no_diratime=false exclusive=true"),
        ("usage-at", "volume=pvc-1"),
        ("list", "after=- limit=16"),
        ("list-after", "after=pvc-1 limit=1"),
        ("listen-csi", "socket=Csi"),
        ("set-owner", "volume=pvc-1 owner=16"),
        ("create-snapshot", "volume=pvc-1 snapshot=snap-1"),
    ] {
        let (_, request) = requests().into_iter().find(|(own, _)| *own == name).expect("an example");
        let mut said = Vec::new();
        request.log(&mut |field, value| said.push(format!("{field}={value}")));
        assert_eq!(said.join(" "), logged, "{name}");
    }
}

#[test]
fn one_byte_less_and_one_byte_more_are_refused() {
    for (name, value) in requests() {
        let mut packet = encode(&value).expect("it fits");
        for length in 0..packet.len() {
            assert_eq!(decode::<Request>(&packet[..length]), Err(CodecError::Malformed), "{name} cut to {length}");
        }
        packet.push(0);
        assert_eq!(decode::<Request>(&packet), Err(CodecError::TrailingBytes), "{name} and a byte");
    }
}

#[test]
fn an_unknown_variant_is_refused() {
    let known = encode(&Request::Owner { volume: id("pvc-1") }).expect("it fits");
    for number in [u32::try_from(Request::ROWS.len()).expect("a small number"), 255, u32::MAX] {
        let packet = [&number.to_le_bytes(), &known[4..]].concat();
        assert_eq!(decode::<Request>(&packet), Err(CodecError::Malformed), "{number}");
    }
}

#[test]
fn what_a_client_is_too_old_for_is_not_sent_to_it() {
    for (number, condition) in conditions().into_iter().enumerate() {
        let at = |version| condition.clone().at_version(version);
        assert_eq!(at(4), condition);
        assert_eq!(at(3), if number < CONDITIONS_OF_VERSION_3 { condition.clone() } else { Condition::Other });
    }
    let older = |reply: Reply| reply.at_version(3);
    for (name, response) in responses() {
        let Ok(reply) = response else { continue };
        assert_eq!(reply.clone().at_version(4), Ok(reply.clone()), "{name}");
        match (name, older(reply.clone())) {
            ("usage-of-filesystem" | "usage-of-snapshot", refused) => {
                let error = refused.expect_err("its kind is newer");
                assert_eq!(error.kind, ErrorKind::Unsupported);
                assert!(error.message.as_str().contains("needs protocol version 4"), "{error}");
            }
            ("pool-of-version-4", known) => {
                let Ok(Reply::Pool(status)) = known else { panic!("it is known: {known:?}") };
                let others = status.conditions.as_slice().iter().filter(|condition| **condition == Condition::Other);
                assert_eq!(others.count(), 1 + conditions().len() - CONDITIONS_OF_VERSION_3);
            }
            (_, known) => assert_eq!(known, Ok(reply), "{name}"),
        }
    }
    let Some(Ok(Reply::Usage(usage))) = responses().into_iter().find(|(name, _)| *name == "usage-reply").map(|it| it.1)
    else {
        panic!("there is one")
    };
    let newer = Reply::Usage(Usage { condition: Some(Condition::NotDirect), ..usage.clone() });
    assert_eq!(older(newer), Ok(Reply::Usage(Usage { condition: Some(Condition::Other), ..usage })));
    for (name, request) in requests() {
        let needed = if name == "create-filesystem" { 4 } else { request.row().since_version };
        assert_eq!(request.since_version(), needed, "{name}");
    }
}

#[test]
fn the_version_in_use_is_the_lower_of_the_two() {
    assert_eq!(negotiate(Hello::new(HIGHEST_VERSION)), Ok(HIGHEST_VERSION));
    assert_eq!(negotiate(Hello::new(u16::MAX)), Ok(HIGHEST_VERSION));
    assert_eq!(negotiate(Hello::new(0)).map_err(|error| error.kind), Err(ErrorKind::Invalid));
    let other: Hello = decode(b"BULKHEAT\x01\x00").expect("the form of a hello");
    assert_eq!(negotiate(other).map_err(|error| error.kind), Err(ErrorKind::Invalid));
}
