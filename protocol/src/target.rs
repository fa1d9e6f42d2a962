//! Targets: where volumes are published.

use serde::{Deserialize, Serialize};

use crate::PublishName;
use crate::checked::checked_text;

/// The longest relative path in bytes, so that every request fits one packet.
pub const MAX_TARGET: usize = 3584;

checked_text!(
    /// A relative path of ordinary components: none is empty, `.` or `..`, none is longer than 255 bytes, no NUL.
    RelativePath,
    matches,
    "a target is a relative path without empty, '.' or '..' components, at most 255 bytes each and 3584 in all"
);

/// A place below a publish directory where a volume is, or is to be, published.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TargetPath {
    /// The publish directory.
    pub directory: PublishName,
    /// The path below it.
    pub path: RelativePath,
}

impl RelativePath {
    /// The components, first to last; there is at least one.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.as_str().split('/')
    }

    /// The path of the parent directory (empty for the publish directory itself) and the last component.
    pub fn split_last(&self) -> (&str, &str) {
        self.as_str().rsplit_once('/').unwrap_or(("", self.as_str()))
    }
}

fn matches(text: &str) -> bool {
    let ordinary = |part: &str| !part.is_empty() && part.len() <= 255 && part != "." && part != "..";
    text.len() <= MAX_TARGET && !text.contains('\0') && text.split('/').all(ordinary)
}
