//! The record of whose a volume is: a frontend that was taken over may have written it.

use bulkhead_model::owner::{
    ATTRIBUTES, CLAIM, CLAIM_UID, CLASS, CLUSTER, FILESYSTEM, MODES, MOUNT_OPTIONS, OBJECT, RECLAIM, read, write,
};
use bulkhead_protocol::MAX_OWNER;

const KEYS: [&str; 10] =
    [CLAIM, OBJECT, CLASS, MODES, RECLAIM, CLUSTER, ATTRIBUTES, CLAIM_UID, FILESYSTEM, MOUNT_OPTIONS];

/// What is written is read again, whatever it says.
pub fn run(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    let said = read(&text).unwrap_or_default();
    let said: Vec<(&str, &str)> = KEYS
        .iter()
        .filter_map(|key| Some((*key, said.get(*key)?.as_str())).filter(|(_, value)| !value.is_empty()))
        .collect();
    for pairs in [said, vec![(CLAIM, &text), (CLASS, &text)]] {
        let record = write(pairs.iter().copied()).expect("a record");
        assert!(record.as_str().len() <= MAX_OWNER);
        let again = read(record.as_str()).expect("it was written just now");
        // What does not fit any more is left out as a whole.
        assert!(again.iter().all(|(key, value)| pairs.contains(&(key.as_str(), value.as_str()))), "{again:?}");
        let length: usize = pairs.iter().map(|(key, value)| key.len() + 3 * value.len() + 2).sum();
        assert!(again.len() == pairs.iter().filter(|(_, value)| !value.is_empty()).count() || length > MAX_OWNER - 20);
    }
}
