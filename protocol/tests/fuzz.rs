//! Packets that are nearly valid: the released ones, `golden.txt`, changed at random. Nothing panics, and whatever decodes
//! is the value that those very bytes are.
//!
//! `BULKHEAD_FUZZ_SECONDS=600 cargo test -p bulkhead-protocol --test fuzz` goes on for so long, with other changes in each
//! run.

#[path = "../../tests/src/random.rs"]
mod random;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bulkhead_protocol::*;
use random::Random;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The packets of an ordinary run.
const PACKETS: u64 = 100_000;

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal")).collect()
}

/// Returns whether the packet decodes; if so, its value encodes to the same bytes again.
fn is_value<T: DeserializeOwned + Serialize>(packet: &[u8]) -> bool {
    let Ok(value) = decode::<T>(packet) else { return false };
    let again = encode(&value).expect("what came in one packet fits into one");
    assert_eq!(again, packet, "two packets have one value");
    true
}

#[test]
fn changed_packets_decode_to_what_they_are_or_not_at_all() {
    let lines = include_str!("golden.txt").lines();
    let seeds: Vec<Vec<u8>> = lines.filter_map(|line| Some(unhex(line.split_once(' ')?.1))).collect();
    let longer = std::env::var("BULKHEAD_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let end = longer.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs());
    let seed = longer.map_or(1, |_| now());
    println!("the seed is {seed}");
    let mut random = Random::new(seed);
    let (mut tried, mut decoded) = (0_u64, 0_u64);
    while end.map_or(tried < PACKETS, |end| Instant::now() < end) {
        let packet = random.mutated(&seeds);
        let values = [
            is_value::<Hello>(&packet),
            is_value::<Request>(&packet),
            is_value::<Response>(&packet),
            is_value::<Result<Welcome, Error>>(&packet),
        ];
        tried += 1;
        decoded += u64::from(values.contains(&true));
    }
    println!("{tried} packets, of which {decoded} were values");
    assert!(decoded > tried / 10 && decoded < tried, "{decoded} of {tried} packets were values");
}
