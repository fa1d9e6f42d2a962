use bulkhead_protocol::{MountFlags, Text};

use super::attributes::Attribute;
use super::wire::{Access, Command, Content, Found, Proof};
use super::*;
use crate::dispatch::tests::random::Random;
use crate::mounter::Work;
use crate::sys::file::FileId;
use crate::sys::packet;
use crate::sys::quota::{Look, ProjectId};

/// A placer with a publish directory and a pool that are empty, and not where a test could mount anything.
fn place() -> Place {
    let nothing = || rustix::fs::memfd_create("nothing", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
    let below = Below { name: "work".parse().expect("a name"), shape: Shape::Any, root: nothing(), copy: None };
    let pool = PoolPlace {
        name: "fast".parse().expect("a name"),
        directory: nothing(),
        marker: nothing(),
        device: (0, 0),
        mounting: None,
    };
    Place {
        driver: "bulkhead.csi.local".parse().expect("a name"),
        publish: vec![below],
        pools: vec![pool],
        nodes: Nodes::new(nothing()),
        project_ids: (100_000, 100_009),
        beyond: BTreeMap::from([((0, 0), [ProjectId(7)].into())]),
    }
}

/// One request of each kind.
fn requests() -> Vec<Request> {
    let target = || TargetPath { directory: "work".parse().expect("a name"), path: "a".parse().expect("a path") };
    let volume = || "vol-a".parse().expect("an id");
    let pool = || "fast".parse().expect("a name");
    let id = FileId { device: (8, 1), inode: 7 };
    let content = || Content { pool: pool(), kind: Kind::Directory, id, device: Some(0x8_0000) };
    let found = Found::Seen(id, Proof::Place(id));
    vec![
        Request::Bind(volume(), content(), target(), MountFlags::default()),
        Request::Unbind(target(), Kind::Directory, Some(found), true),
        Request::Look(target(), Some((volume(), Kind::Block))),
        Request::IsGone(7.try_into().expect("not zero")),
        Request::IsMoved("work".parse().expect("a name")),
        Request::Open(0x8_0000, Access::Look),
        Request::Command(0x8_0000, Command::SetReadOnly(true)),
        Request::Quotas(pool(), Look::AtOnce, vec![ProjectId(7)].try_into().expect("one")),
        Request::NextQuota(pool(), Look::Waiting, ProjectId(7)),
        Request::SetQuota(pool(), ProjectId(100_000), (1, 1)),
        Request::Filesystem(pool(), 0x8_0000, OnFilesystem::Work(Work::Sync)),
        Request::Attribute(pool(), Attribute::Record, Text::new("vol-a")),
        Request::SetAttribute(pool(), Attribute::Journal, Text::new(""), vec![7].try_into().expect("one")),
    ]
}

/// Sends a packet, and returns whether it was answered; otherwise its line was closed.
fn is_answered(place: &Arc<Place>, packet: &[u8]) -> bool {
    let (line, other) = packet::pair().expect("a pair");
    packet::send(&line, packet, None).expect("there is room");
    let own = Arc::clone(place);
    let served = std::thread::spawn(move || own.serve(&other));
    let answer = packet::receive(&line, &mut [0; MAX_PACKET]);
    drop(line);
    served.join().expect("it ends well");
    matches!(answer, Ok(Received::Packet(_)))
}

#[test]
fn each_request_is_answered_and_what_is_none_closes_the_line() {
    let place = Arc::new(place());
    for request in requests() {
        let packet = bulkhead_protocol::encode(&request).expect("it fits");
        assert_eq!(bulkhead_protocol::decode::<Request>(&packet).as_ref(), Ok(&request));
        assert!(is_answered(&place, &packet), "{request:?}");
        assert!(!is_answered(&place, &packet[..packet.len() - 1]), "{request:?}, cut off");
        assert!(!is_answered(&place, &[&packet[..], b"x"].concat()), "{request:?} and more");
    }
}

#[test]
fn nearly_valid_packets_are_answered_or_close_the_line() {
    let seeds: Vec<_> = requests().iter().map(|request| bulkhead_protocol::encode(request).expect("it fits")).collect();
    let (place, mut random, mut answered) = (place(), Random::new(1), 0);
    for _ in 0..20_000 {
        let Ok(request) = bulkhead_protocol::decode::<Request>(&random.mutated(&seeds)) else { continue };
        let _allowed = allow(&[]);
        let answer = place.carry_out(request.clone()).map(|(answer, _)| answer);
        assert!(bulkhead_protocol::encode(&answer).is_ok(), "{request:?}: {answer:?}");
        answered += 1;
    }
    assert!(answered > 2_000, "{answered} requests are too few to show anything");
}

#[test]
fn only_limits_of_the_range_and_of_its_end_are_set() {
    let check = |project| quotas::check(place().project_ids, ProjectId(project));
    for project in [0, 1, 99_999, 100_011, 1_048_577, u32::MAX] {
        assert_eq!(check(project), Err(SysError::of(Errno::PERM)), "{project}");
    }
    for project in [100_000, 100_009, 100_010] {
        assert_eq!(check(project), Ok(()), "{project}");
    }
}
