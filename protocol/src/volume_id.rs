//! The volume id: the one name that travels from a CSI call to a directory entry in a pool.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The id of a volume: `^[a-z][a-z0-9-.]{0,128}[a-z0-9]$`, so 2 to 130 bytes of ASCII.
///
/// It is safe as a single path component: it is not empty, has no slash, does not begin with a dot and is shorter
/// than `NAME_MAX`. There is no way to hold one that does not match.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct VolumeId(String);

/// The text is no volume id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidVolumeId;

impl VolumeId {
    /// The longest id in bytes.
    pub const MAX_LENGTH: usize = 130;

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `text` is a volume id: the pattern above, by hand, since a regular expression engine has no place
    /// in a privileged process.
    fn matches(text: &str) -> bool {
        let inner = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
        match text.as_bytes() {
            [first, middle @ .., last] => {
                text.len() <= Self::MAX_LENGTH
                    && first.is_ascii_lowercase()
                    && middle.iter().all(inner)
                    && (last.is_ascii_lowercase() || last.is_ascii_digit())
            }
            _ => false,
        }
    }
}

impl TryFrom<String> for VolumeId {
    type Error = InvalidVolumeId;

    fn try_from(text: String) -> Result<Self, InvalidVolumeId> {
        if Self::matches(&text) { Ok(Self(text)) } else { Err(InvalidVolumeId) }
    }
}

impl std::str::FromStr for VolumeId {
    type Err = InvalidVolumeId;

    fn from_str(text: &str) -> Result<Self, InvalidVolumeId> {
        if Self::matches(text) { Ok(Self(text.to_owned())) } else { Err(InvalidVolumeId) }
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Display for InvalidVolumeId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a volume id is 2 to 130 characters of a-z, 0-9, '-' and '.', begins with a letter and ends with a letter or digit")
    }
}

impl std::error::Error for InvalidVolumeId {}
