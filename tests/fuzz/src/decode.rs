//! Packets, and what is recorded in their form: from a frontend that was taken over, and from a pool's disk.

use bulkhead_privhelper::layout::Record;
use bulkhead_protocol::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes are one value or none, nothing of which can forge a line of the log.
pub fn run(packet: &[u8]) {
    value::<Hello>(packet);
    value::<Result<Welcome, Error>>(packet);
    value::<VolumeSpec>(packet);
    value::<Origin>(packet);
    if let Some(Err(error)) = value::<Response>(packet) {
        assert_shown(&error);
    }
    if let Some(request) = value::<Request>(packet) {
        assert_eq!(decode_request(packet, 1), Ok((request, CallId::default())));
    }
    for version in 1..=HIGHEST_VERSION {
        let Ok((request, call)) = decode_request(packet, version) else { continue };
        let with_call = || encode(&(&request, call)).is_ok_and(|again| again == packet);
        assert!(encode(&request).is_ok_and(|again| again == packet) || version >= 3 && with_call());
        request.log(&mut |_, value| assert_shown(value));
        if let Some(target) = request.target() {
            assert_shown(target);
        }
    }
    if let Some(record) = Record::decode(packet) {
        assert_eq!(record.encode().expect("it was one"), packet);
    }
}

/// The value that the packet is. No other packet is the same value.
fn value<T: DeserializeOwned + Serialize>(packet: &[u8]) -> Option<T> {
    let value = decode::<T>(packet).ok()?;
    assert!(packet.len() <= MAX_PACKET);
    assert_eq!(encode(&value).expect("what came in one packet fits into one"), packet, "two packets have one value");
    Some(value)
}

fn assert_shown(value: &dyn std::fmt::Display) {
    let shown = value.to_string();
    assert!(!shown.contains(char::is_control), "{shown:?}");
}
