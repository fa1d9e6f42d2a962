#[path = "../../../tests/src/random.rs"]
pub mod random;

use bulkhead_protocol::{CallId, ErrorKind, Response, VolumeId};
use random::Random;

use super::*;
use crate::state::testing::{self, state};
use crate::state::{Held, PublishDirectory};

/// The golden vectors of the protocol, with their names.
fn golden() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    let unhex = |hex: &str| -> Vec<u8> {
        let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("ASCII"));
        digits.map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal")).collect()
    };
    let lines = include_str!("../../../protocol/tests/golden.txt").lines();
    lines.filter_map(|line| line.split_once(' ')).map(move |(name, hex)| (name, unhex(hex)))
}

/// One request of each variant.
pub fn requests() -> Vec<Request> {
    golden()
        .filter_map(|(name, packet)| {
            let request: Request = bulkhead_protocol::decode(&packet).ok()?;
            name.starts_with(request.name()).then_some(request)
        })
        .collect()
}

fn refusal(state: &State, request: &Request) -> Option<ErrorKind> {
    answer(state, request).err().map(|error| error.kind)
}

fn answer(state: &State, request: &Request) -> Result<(Reply, Option<OwnedFd>), Error> {
    let (connection, _peer) = crate::sys::packet::pair().expect("sockets");
    dispatch(state, &connection, request, CallId(7))
}

#[test]
fn each_request_reaches_its_operation() {
    let state = state();
    for request in requests() {
        let refused = match request.name() {
            "create" | "create-from" | "pool-status" | "pool-counts" => Some(ErrorKind::Invalid),
            "loop-detach" | "unmount-filesystem" | "delete" | "delete-unused" | "delete-snapshot" | "list"
            | "list-snapshots" => None,
            "listen" => Some(ErrorKind::Unsupported),
            // There is no publish directory.
            "bind-mount" | "make-device" | "unmount" | "remove-device" => Some(ErrorKind::Refused),
            _ => Some(ErrorKind::NotFound),
        };
        assert_eq!(refusal(&state, &request), refused, "{request:?}");
    }
}

#[test]
fn a_request_that_changes_a_volume_waits_for_nobody_who_holds_it() {
    let state = state();
    for request in requests() {
        for volume in request.volumes() {
            let held = state.hold(volume, Pace::Disk).expect("it is free");
            let changes = request.row().changes;
            assert_eq!(refusal(&state, &request) == Some(ErrorKind::Busy), changes, "{request:?}");
            drop(held);
            assert_ne!(refusal(&state, &request), Some(ErrorKind::Busy), "{request:?}");
        }
    }
}

/// An operation on two volumes, as a request for one would be carried out.
fn exchange(source: Held<'_>, volume: Held<'_>) -> [VolumeId; 2] {
    [source.id.clone(), volume.id.clone()]
}

#[test]
fn an_operation_on_two_volumes_holds_both() {
    let (state, [one, other]) = (state(), ["vol-a", "vol-b"].map(testing::id));
    let run =
        |source, volume| Ok::<_, Error>(exchange(state.hold(source, Pace::Disk)?, state.hold(volume, Pace::Disk)?));
    assert_eq!(run(&one, &other).expect("both are free"), [one.clone(), other.clone()]);
    for held in [&one, &other] {
        let _held = state.hold(held, Pace::Disk).expect("it is free");
        assert_eq!(run(&one, &other).expect_err("one of them is held").kind, ErrorKind::Busy);
        assert_eq!(run(&other, &one).expect_err("one of them is held").kind, ErrorKind::Busy);
    }
    assert_eq!(run(&one, &one).expect_err("it cannot be both").kind, ErrorKind::Busy);
    run(&other, &one).expect("nothing is left held");
}

#[test]
fn only_usage_is_answered_while_its_target_is_locked() {
    let mut state = state();
    let mut targets = requests().into_iter().filter_map(|request| request.target().cloned());
    let target = targets.next_back().expect("a request with a target");
    let (name, host_path) = (target.directory.clone(), bulkhead_protocol::Text::new("/"));
    let shape = crate::place::Shape::Any;
    state.publish_directories.push(PublishDirectory { name, host_path, real_path: "/".into(), shape });
    let _held = state.locks.target(&target).expect("it is free");
    for request in requests() {
        let busy = request.target().is_some() && request.name() != "usage";
        assert_eq!(refusal(&state, &request) == Some(ErrorKind::Busy), busy, "{request:?}");
    }
}

#[test]
fn what_may_be_in_an_unserved_pool_is_not_taken_for_absent() {
    let mut state = state();
    let why = ("fast".parse().expect("a name"), "its record is damaged".to_owned());
    state.unserved.extend(["pvc-1", "snap-1"].map(|id| (testing::id(id), why.clone())));
    for request in requests() {
        let refused = match request.name() {
            "create" | "create-from" | "pool-status" | "pool-counts" => Some(ErrorKind::Invalid),
            "list" | "list-snapshots" => None,
            "listen" => Some(ErrorKind::Unsupported),
            "bind-mount" | "make-device" | "unmount" | "remove-device" => Some(ErrorKind::Refused),
            _ => Some(ErrorKind::PoolBroken),
        };
        assert_eq!(refusal(&state, &request), refused, "{request:?}");
    }
}

/// Nearly valid packets, sent to a helper for which the kernel is a few empty files.
#[test]
fn whatever_decodes_is_answered_in_one_packet() {
    let seeds: Vec<_> = golden().map(|(_, packet)| packet).collect();
    let (state, mut random, mut answered) = (state(), Random::new(1), 0);
    for _ in 0..50_000 {
        let Ok(request) = bulkhead_protocol::decode::<Request>(&random.mutated(&seeds)) else { continue };
        let answered_with: Response = answer(&state, &request).map(|(reply, _)| reply);
        assert!(bulkhead_protocol::encode(&answered_with).is_ok(), "{request:?}: {answered_with:?}");
        answered += 1;
    }
    assert!(answered > 5_000, "{answered} requests are too few to show anything");
}
