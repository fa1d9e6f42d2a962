#[path = "../../../tests/src/random.rs"]
mod random;

use std::collections::BTreeMap;

use bulkhead_protocol::{ErrorKind, Response};
use random::Random;

use super::*;
use crate::state::{Limits, Locks, Loops, Pins, Sockets, Volumes};

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

/// A helper without pools or publish directories.
fn state() -> State {
    let nothing = || rustix::fs::memfd_create("nothing", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
    State {
        driver: "bulkhead.csi.local".parse().expect("a name"),
        pools: Vec::new(),
        publish_directories: Vec::new(),
        limits: Limits::default(),
        volumes: Volumes::default(),
        pins: Pins::default(),
        unserved: BTreeMap::new(),
        loops: Loops::new(nothing(), nothing()),
        locks: Locks::default(),
        sockets: Sockets::new(BTreeMap::new()),
    }
}

fn refusal(state: &State, request: &Request) -> Option<ErrorKind> {
    dispatch(state, request).err().map(|error| error.kind)
}

#[test]
fn each_request_reaches_its_operation() {
    let state = state();
    for request in requests() {
        let refused = match request.name() {
            "create" | "pool-status" => Some(ErrorKind::Invalid),
            "unmount" | "loop-detach" | "remove-device" | "delete" | "delete-unused" | "list" => None,
            "listen" => Some(ErrorKind::Unsupported),
            _ => Some(ErrorKind::NotFound),
        };
        assert_eq!(refusal(&state, &request), refused, "{request:?}");
    }
}

#[test]
fn only_usage_is_answered_while_its_volume_is_locked() {
    let state = state();
    let held = state.locks.lock(&"pvc-1".parse().expect("a volume id"), None).expect("it is free");
    for request in requests() {
        let busy = request.volume().is_some() && request.name() != "usage";
        assert_eq!(refusal(&state, &request) == Some(ErrorKind::Busy), busy, "{request:?}");
    }
    drop(held);
    assert!(requests().iter().all(|request| refusal(&state, request) != Some(ErrorKind::Busy)));
}

#[test]
fn only_usage_is_answered_while_its_target_is_locked() {
    let state = state();
    let mut targets = requests().into_iter().filter_map(|request| request.target().cloned());
    let target = targets.next_back().expect("a request with a target");
    let _held = state.locks.lock(&"other".parse().expect("a volume id"), Some(&target)).expect("it is free");
    for request in requests() {
        let busy = request.target().is_some() && request.name() != "usage";
        assert_eq!(refusal(&state, &request) == Some(ErrorKind::Busy), busy, "{request:?}");
    }
}

#[test]
fn what_may_be_in_an_unserved_pool_is_not_taken_for_absent() {
    let mut state = state();
    state.unserved.insert("pvc-1".parse().expect("a volume id"), "its record is damaged".to_owned());
    for request in requests() {
        let refused = match request.name() {
            "create" | "pool-status" => Some(ErrorKind::Invalid),
            "list" => None,
            "listen" => Some(ErrorKind::Unsupported),
            _ => Some(ErrorKind::PoolBroken),
        };
        assert_eq!(refusal(&state, &request), refused, "{request:?}");
    }
}

#[test]
fn nothing_may_be_raised_after_a_request() {
    let state = state();
    for request in requests() {
        drop(dispatch(&state, &request));
        assert!(capability::allowed().is_empty(), "{request:?}");
    }
}

/// Nearly valid packets, sent to a helper for which the kernel is a few empty files.
#[test]
fn whatever_decodes_is_answered_in_one_packet_and_leaves_nothing_raised() {
    let seeds: Vec<_> = golden().map(|(_, packet)| packet).collect();
    let (state, mut random, mut answered) = (state(), Random::new(1), 0);
    for _ in 0..50_000 {
        let Ok(request) = bulkhead_protocol::decode::<Request>(&random.mutated(&seeds)) else { continue };
        let answer: Response = dispatch(&state, &request).map(|(reply, _)| reply);
        assert!(bulkhead_protocol::encode(&answer).is_ok(), "{request:?}: {answer:?}");
        assert!(capability::allowed().is_empty(), "{request:?}");
        answered += 1;
    }
    assert!(answered > 5_000, "{answered} requests are too few to show anything");
}
