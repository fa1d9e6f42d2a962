//! Snapshots that were taken together, as a group. What belongs to a group follows from the ids: nothing else records it, and so
//! nothing else can say otherwise.

use bulkhead_protocol::{NameHash, VolumeId};
use sha2::{Digest, Sha256};

use super::Fault;
use super::name::{hashed, hexadecimal, identify};

/// What is between the id of a group and the digest of a volume's id in the id of a snapshot.
const OF: &str = ".of-";
/// How many characters of the digest there are.
const DIGITS: usize = 16;
/// The maximum length of a group's id, with which the ids of its snapshots are no longer than a CSI plugin may return.
const LONGEST: usize = 128 - OF.len() - DIGITS;

/// The id of the group called `name`, and the digest that distinguishes two names that lead to the same id.
///
/// # Errors
/// When the name is empty.
pub fn identify_group(name: &str) -> Result<(VolumeId, NameHash), Fault> {
    if name.is_empty() {
        return Err(Fault::invalid("name is missing: give the group of snapshots a name"));
    }
    let digest: [u8; 32] = Sha256::digest(name).into();
    let own: Option<VolumeId> = if name.len() <= LONGEST { name.parse().ok() } else { None };
    let group = match own.filter(|own| group_of(own).is_none()) {
        Some(group) => group,
        None => hashed(&digest)?,
    };
    Ok((group, NameHash(digest)))
}

/// The id of the snapshot called `name` that is taken of one volume only, and the digest of the name. It is never one of a
/// group's.
///
/// # Errors
/// When the name is empty.
pub fn identify_snapshot(name: &str) -> Result<(VolumeId, NameHash), Fault> {
    let (snapshot, digest) = identify(name)?;
    let snapshot = if group_of(&snapshot).is_none() { snapshot } else { hashed(&digest.0)? };
    Ok((snapshot, digest))
}

/// The id of the snapshot of `volume` in a group.
///
/// # Errors
/// When no group has that id.
pub fn snapshot_in(group: &VolumeId, volume: &VolumeId) -> Result<VolumeId, Fault> {
    let mut digits = hexadecimal(&Sha256::digest(volume.as_str()));
    digits.truncate(DIGITS);
    let id = format!("{}{OF}{digits}", group.as_str());
    id.parse().map_err(|error| Fault::invalid(format!("no group of snapshots has this id: {error}")))
}

/// The id after which the snapshots of a group are listed, directly.
///
/// # Errors
/// When no group has that id.
pub fn before_those_of(group: &VolumeId) -> Result<VolumeId, Fault> {
    let id = format!("{}{}", group.as_str(), OF.trim_end_matches('-'));
    id.parse().map_err(|error| Fault::invalid(format!("no group of snapshots has this id: {error}")))
}

/// The group of a snapshot with this id, if it was taken as part of one.
pub fn group_of(snapshot: &VolumeId) -> Option<VolumeId> {
    let (group, digits) = snapshot.as_str().rsplit_once(OF)?;
    let is_digest = digits.len() == DIGITS && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    group.parse().ok().filter(|_| is_digest)
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::ErrorKind;

    use super::*;

    fn id(text: &str) -> VolumeId {
        text.parse().unwrap()
    }

    #[test]
    fn a_snapshot_tells_its_group() {
        let (group, _) = identify_group("groupsnapshot-0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a111").unwrap();
        assert_eq!(group.as_str(), "groupsnapshot-0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a111");
        let [one, other] = ["pvc-1", "pvc-2"].map(|volume| snapshot_in(&group, &id(volume)).unwrap());
        assert_ne!(one, other);
        for snapshot in [&one, &other] {
            assert_eq!(group_of(snapshot), Some(group.clone()));
        }
        for single in ["snapshot-1", "ab.of-1", "ab.of-0123456789abcdeg", "ab.of-0123456789abcdef0"] {
            assert_eq!(group_of(&id(single)), None, "{single}");
        }
    }

    #[test]
    fn the_snapshots_of_a_group_are_listed_one_after_the_other() {
        let group = id("ab");
        let (before, own) = (before_those_of(&group).unwrap(), snapshot_in(&group, &id("pvc-1")).unwrap());
        assert!(before < own);
        let others = ["ab", "ab-of", "ab.o", "ab.of", "ab.of.x", "ab.of0", "ab.og", "aba", "bb"].map(id);
        assert!(others.iter().all(|other| *other <= before || *other > own), "none is between them");
    }

    #[test]
    fn the_longest_ids_are_returned_whole() {
        let (group, _) = identify_group(&"a".repeat(LONGEST)).unwrap();
        assert_eq!(snapshot_in(&group, &id("pvc-1")).unwrap().as_str().len(), 128);
        for name in [&"a".repeat(LONGEST + 1), "Name", "../x", "ab.of-0123456789abcdef"] {
            let (group, digest) = identify_group(name).unwrap();
            assert_eq!(group.as_str(), format!("v-{}", hexadecimal(&digest.0)), "{name}");
            snapshot_in(&group, &id("pvc-1")).unwrap();
        }
        let (single, digest) = identify_snapshot("ab.of-0123456789abcdef").unwrap();
        assert_eq!(single.as_str(), format!("v-{}", hexadecimal(&digest.0)), "it is no group's");
        assert_eq!(identify_snapshot("snapshot-1").unwrap(), identify("snapshot-1").unwrap());
        let fault = snapshot_in(&id(&"a".repeat(128)), &id("pvc-1")).unwrap_err();
        assert!(fault.is(ErrorKind::Invalid));
        assert!(identify_group("").unwrap_err().to_string().starts_with("name is missing"));
    }
}
