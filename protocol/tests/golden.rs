//! The bytes of every variant. A change here is a change of the wire: a released variant never changes, so only lines
//! for new ones are ever added.

mod examples;

use bulkhead_protocol::*;

use examples::{CONDITIONS_OF_VERSION_3, conditions, id, requests, responses, target, welcome};

#[test]
fn the_largest_pages_fit_one_packet() {
    let longest = "a".repeat(130);
    let origin = Origin { source: id(&longest), family: id(&longest), copied: u64::MAX };
    let pool = "a".repeat(63).parse().expect("a name");
    let one = Snapshot { snapshot: id(&longest), pool, size: Bytes::MAX, block: true, allocated: u64::MAX, origin };
    let snapshots = UpTo::try_from(vec![one; MAX_SNAPSHOTS]).expect("as many as are allowed");
    let ranges = UpTo::try_from(vec![Range { offset: 0, length: 1 }; MAX_RANGES]).expect("as many as are allowed");
    let member = Member { volume: id(&longest), snapshot: id(&longest) };
    let members = UpTo::try_from(vec![member; MAX_MEMBERS]).expect("as many as are allowed");
    let request = Request::CreateGroup { members, name_hash: NameHash([0; 32]) };
    assert!(encode(&(&request, CallId(u32::MAX))).is_ok(), "{request:?}");
    for reply in [Reply::Snapshots(snapshots), Reply::Ranges { ranges, next: Some(1) }] {
        let response: Response = Ok(reply);
        assert!(encode(&response).is_ok(), "{response:?}");
    }
}

#[test]
fn a_pool_may_have_every_condition_at_once() {
    assert!(conditions().len() <= MAX_CONDITIONS);
    let whole = responses().iter().filter(|(name, _)| *name == "pool-of-version-4").count();
    assert_eq!(whole, 1, "and they fit one packet");
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
        (5, "create-group mount-labelled"),
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
            "create-group" => &["pvc-1", "snap-1", "pvc-2", "snap-2"],
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
        ("mount-labelled", "volume=pvc-1 context=system_u:object_r:container_file_t:s0:c1,c4.c7"),
        ("create-group", "members=2 volume=pvc-1 snapshot=snap-1 volume=pvc-2 snapshot=snap-2"),
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
