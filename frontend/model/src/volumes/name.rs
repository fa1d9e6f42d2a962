//! Derives a volume's id from the name that the caller gives it.

use std::fmt::Write;

use bulkhead_protocol::{NameHash, VolumeId};
use sha2::{Digest, Sha256};

use super::Fault;

/// The maximum length of text that a CSI plugin may return (CSI, size limits). A longer name becomes a hash even if it
/// is a valid id, since ids are returned.
const LONGEST_TEXT: usize = 128;

/// The id of the volume called `name`, and the digest that distinguishes two names that lead to the same id.
///
/// A name is arbitrary Unicode and is never used as a path component: unless it is a valid volume id, it becomes a hash.
///
/// # Errors
/// When the name is empty.
pub fn identify(name: &str) -> Result<(VolumeId, NameHash), Fault> {
    if name.is_empty() {
        return Err(Fault::invalid("name is missing: give the volume a name"));
    }
    let digest: [u8; 32] = Sha256::digest(name).into();
    let own = if name.len() <= LONGEST_TEXT { name.parse().ok() } else { None };
    let volume = match own {
        Some(volume) => volume,
        None => hashed(&digest)?,
    };
    Ok((volume, NameHash(digest)))
}

/// `v-` and the digest in lower-case hexadecimal.
pub(super) fn hashed(digest: &[u8; 32]) -> Result<VolumeId, Fault> {
    let mut text = String::with_capacity(2 + 2 * digest.len());
    text.push_str("v-");
    text.push_str(&hexadecimal(digest));
    VolumeId::try_from(text).map_err(|error| Fault::invalid(error.to_string()))
}

/// `bytes` in lower-case hexadecimal.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_an_id_is_kept() {
        let name = "pvc-0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a111";
        assert_eq!(identify(name).unwrap().0.as_str(), name);
        let longest = "a".repeat(128);
        assert_eq!(identify(&longest).unwrap().0.as_str(), longest);
    }

    #[test]
    fn any_other_name_becomes_a_hash() {
        for name in ["x", "Name", "../../etc", "größe", ".hidden", "a/b", "ends-", &"a".repeat(129), &"a".repeat(130)]
        {
            let (volume, hash) = identify(name).unwrap();
            assert_eq!(volume.as_str().len(), 66, "{name}");
            assert_eq!(volume.as_str(), format!("v-{}", hexadecimal(&hash.0)), "{name}");
        }
    }

    #[test]
    fn the_hash_is_sha_256() {
        let (volume, _) = identify("A").unwrap();
        assert_eq!(volume.as_str(), "v-559aead08264d5795d3909718cdd05abd49572e84fe55590eef31a88a08fdffd");
    }

    #[test]
    fn a_name_that_looks_like_another_ones_hash_has_a_digest_of_its_own() {
        let (volume, hash) = identify("A").unwrap();
        let (same, other) = identify(volume.as_str()).unwrap();
        assert_eq!(same, volume);
        assert_ne!(other, hash);
    }

    #[test]
    fn an_empty_name_is_refused() {
        assert!(identify("").unwrap_err().to_string().starts_with("name is missing"));
    }
}
