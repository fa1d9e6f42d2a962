//! Targets: where volumes are published.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::PublishName;

/// The longest relative path in bytes, so that every request fits one packet.
pub const MAX_TARGET: usize = 3584;

/// A relative path of ordinary components: none is empty, `.` or `..`, none is longer than 255 bytes, no NUL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct RelativePath(String);

/// A place below a publish directory at which a volume is, or is to be, published.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TargetPath {
    /// The publish directory.
    pub directory: PublishName,
    /// The path below it.
    pub path: RelativePath,
}

/// The text is no relative path to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidTarget;

impl RelativePath {
    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The components, first to last; there is at least one.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// The path of the parent directory (empty for the publish directory itself) and the last component.
    pub fn split_last(&self) -> (&str, &str) {
        self.0.rsplit_once('/').unwrap_or(("", &self.0))
    }

    fn matches(text: &str) -> bool {
        let ordinary = |part: &str| !part.is_empty() && part.len() <= 255 && part != "." && part != "..";
        text.len() <= MAX_TARGET && !text.contains('\0') && text.split('/').all(ordinary)
    }
}

impl TryFrom<String> for RelativePath {
    type Error = InvalidTarget;

    fn try_from(text: String) -> Result<Self, InvalidTarget> {
        if Self::matches(&text) { Ok(Self(text)) } else { Err(InvalidTarget) }
    }
}

impl std::str::FromStr for RelativePath {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<Self, InvalidTarget> {
        Self::try_from(text.to_owned())
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Display for TargetPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.directory, self.path)
    }
}

impl fmt::Display for InvalidTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(
            "a target is a relative path without empty, '.' or '..' components, at most 255 bytes each and 3584 in all",
        )
    }
}

impl std::error::Error for InvalidTarget {}
