//! The owner record: kept on a volume, it says whose that was, for the day on which nothing else does. It is text, which
//! `getfattr -n trusted.bulkhead.owner` shows as it is: a first line that names the form, then one line for each key.
//! Whoever reads it must not trust it: a frontend that was taken over may have written it.

use std::collections::BTreeMap;

use bulkhead_protocol::{Invalid, MAX_OWNER, OwnerRecord};

/// The first line. A record that begins with another one is of a later release, or of somebody else.
const FIRST: &str = "bulkhead-owner=1";

/// The claim, as `NAMESPACE/NAME`.
pub const CLAIM: &str = "claim";
/// The claim's uid.
pub const CLAIM_UID: &str = "claim-uid";
/// The name of the PersistentVolume.
pub const OBJECT: &str = "pv";
/// The uid of the PersistentVolume.
pub const OBJECT_UID: &str = "pv-uid";
/// The storage class.
pub const CLASS: &str = "class";
/// The access modes, separated by commas.
pub const MODES: &str = "modes";
/// What becomes of the volume once its claim is gone: `Delete` or `Retain`.
pub const RECLAIM: &str = "reclaim";
/// The class of volume attributes.
pub const ATTRIBUTES: &str = "attributes";
/// The filesystem that the storage class names.
pub const FILESYSTEM: &str = "fstype";
/// The mount options, separated by commas.
pub const MOUNT_OPTIONS: &str = "mount-options";
/// Of a snapshot: its VolumeSnapshot, as `NAMESPACE/NAME`; the namespace is that of its source, if that was known.
pub const SNAPSHOT: &str = "snapshot";
/// The uid of the VolumeSnapshot.
pub const SNAPSHOT_UID: &str = "snapshot-uid";
/// Of a snapshot that was taken with others: its VolumeGroupSnapshot, in the same way.
pub const GROUP: &str = "group";
/// The uid of the VolumeGroupSnapshot.
pub const GROUP_UID: &str = "group-uid";
/// The uid of the namespace kube-system, which no two clusters share.
pub const CLUSTER: &str = "cluster";

/// What a record says, by key. Keys of later releases are kept as well.
pub type Keys = BTreeMap<String, String>;

/// Why a record says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It begins with something else.
    #[error("its first line is not {FIRST}: it is of a later release, or was written by hand")]
    Form,
    /// A line is not as it should be.
    #[error("line {0} is not KEY=VALUE with % before two hexadecimal digits, or repeats a key")]
    Line(usize),
}

/// The record that says this. Begin with what matters most: what does not fit any more is left out.
///
/// # Errors
/// When a key has characters that no key has.
pub fn write<'v>(keys: impl IntoIterator<Item = (&'static str, &'v str)>) -> Result<OwnerRecord, Invalid> {
    let mut text = format!("{FIRST}\n");
    for (key, value) in keys.into_iter().filter(|(_, value)| !value.is_empty()) {
        let line = format!("{key}={}\n", encoded(value));
        if text.len() + line.len() <= MAX_OWNER {
            text.push_str(&line);
        }
    }
    text.try_into()
}

/// Returns what a record says.
///
/// # Errors
/// See [`Unreadable`].
pub fn read(record: &str) -> Result<Keys, Unreadable> {
    let mut lines = record.lines();
    if lines.next() != Some(FIRST) {
        return Err(Unreadable::Form);
    }
    let mut keys = Keys::new();
    for (number, line) in lines.enumerate() {
        let wrong = || Unreadable::Line(number + 2);
        let (key, value) = line.split_once('=').ok_or_else(wrong)?;
        let value = decoded(value).ok_or_else(wrong)?;
        if key.is_empty() || keys.insert(key.to_owned(), value).is_some() {
            return Err(wrong());
        }
    }
    Ok(keys)
}

fn encoded(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte == b'%' || !matches!(byte, b' '..=b'~') {
            text.push_str(&format!("%{byte:02X}"));
        } else {
            text.push(char::from(byte));
        }
    }
    text
}

fn decoded(value: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            bytes.push(u8::try_from(digit()? << 4 | digit()?).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let all = [(CLAIM, "shop/data"), (OBJECT, "pvc-1"), (CLASS, "50 %\nfast\u{e9}"), (MODES, "")];
        let record = write(all).unwrap();
        assert_eq!(record.as_str(), "bulkhead-owner=1\nclaim=shop/data\npv=pvc-1\nclass=50 %25%0Afast%C3%A9\n");
        let keys = read(record.as_str()).unwrap();
        assert_eq!(keys.len(), 3, "nothing is said where there is nothing to say");
        assert_eq!(
            all[..3].iter().map(|(key, _)| keys[*key].as_str()).collect::<Vec<_>>(),
            ["shop/data", "pvc-1", all[2].1]
        );
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_the_rest_is_there() {
        let long = "x".repeat(900);
        let record = write([(CLAIM, "shop/data"), (MOUNT_OPTIONS, &long), (CLASS, &long), (CLUSTER, "c")]).unwrap();
        let keys = read(record.as_str()).unwrap();
        assert_eq!(keys.keys().collect::<Vec<_>>(), [CLAIM, CLUSTER, MOUNT_OPTIONS]);
    }

    #[test]
    fn garbage_says_nothing() {
        for form in ["", "claim=a/b\n", "bulkhead-owner=2\nclaim=a/b\n", "\nbulkhead-owner=1\n"] {
            assert_eq!(read(form), Err(Unreadable::Form), "{form:?}");
        }
        for line in ["claim", "=a", "claim=%", "claim=%4", "claim=%GG", "claim=%FF", "claim=a\nclaim=b", ""] {
            let record = format!("bulkhead-owner=1\n{line}\n");
            assert!(matches!(read(&record), Err(Unreadable::Line(2 | 3))), "{line:?}");
        }
        assert_eq!(read("bulkhead-owner=1").unwrap(), Keys::new());
        assert_eq!(read("bulkhead-owner=1\nof-a-later=release\n").unwrap().len(), 1);
    }
}
