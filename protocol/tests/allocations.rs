//! How much memory decoding takes, whatever a packet claims. One test alone in its program: the count is the process's, and
//! another thread's memory would be in it.

use bulkhead_protocol::*;
use cap::Cap;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

#[global_allocator]
static MEMORY: Cap<std::alloc::System> = Cap::new(std::alloc::System, usize::MAX);

/// The most that decoding one packet may take, in bytes: the packet's own content, in the form it has in memory.
const DECODED_LIMIT: usize = 16 << 10;

#[test]
fn no_packet_takes_more_memory_than_its_content() {
    for claimed in [0_u64, 1, 16, 17, 4096, 1 << 20, 1 << 40, u64::MAX] {
        // A list of volumes, a text, and an option of one, each of the claimed length.
        for head in [&[0_u8, 0, 0, 0, 3, 0, 0, 0][..], &[1, 0, 0, 0, 0, 0, 0, 0], &[6, 0, 0, 0]] {
            decode_everything(&[head, &claimed.to_le_bytes()].concat());
        }
    }
    let decode_all = |packet: Vec<u8>| {
        decode_everything(&packet);
        Ok(())
    };
    let mut runner =
        TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1 << 13) });
    runner.run(&proptest::collection::vec(any::<u8>(), 0..600), decode_all).expect("random bytes");
    let behind_a_real_variant = (0_u32..24, proptest::collection::vec(any::<u8>(), 0..300))
        .prop_map(|(variant, rest)| [&variant.to_le_bytes()[..], &rest].concat());
    runner.run(&behind_a_real_variant, decode_all).expect("random bytes behind a real variant");
}

fn decode_everything(packet: &[u8]) {
    decode_bounded::<Hello>(packet);
    decode_bounded::<Request>(packet);
    decode_bounded::<Response>(packet);
    decode_bounded::<Result<Welcome, Error>>(packet);
    decode_bounded::<VolumeSpec>(packet);
}

fn decode_bounded<T: serde::de::DeserializeOwned>(packet: &[u8]) {
    let before = MEMORY.total_allocated();
    drop(decode::<T>(packet));
    let taken = MEMORY.total_allocated() - before;
    assert!(taken <= DECODED_LIMIT, "{taken} bytes were allocated for {packet:?}");
}
