//! Conditions: what is wrong with a pool or a volume, as a kind for programs and in words for people.

use serde::{Deserialize, Serialize};

use crate::Text;

/// What a condition is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConditionKind {
    /// The pool's filesystem has shut down after an error.
    ShutDown,
    /// The pool's filesystem has become read-only.
    ReadOnly,
    /// The pool's filesystem does not answer.
    NotAnswering,
    /// Something is charged to projects that belong to no volume.
    QuotaEvasion,
    /// Deleted volumes keep space that cannot be released.
    NotReleased,
    /// There are as many volumes as are allowed.
    VolumeLimit,
    /// Sizes are not enforced; the pool is configured that way.
    NotEnforced,
    /// Anything else.
    Other,
}

/// A condition of a pool or of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// What it is about.
    pub kind: ConditionKind,
    /// What is wrong, and what to do.
    pub text: Text,
}

impl Condition {
    /// A condition in these words, cut to the maximum length of a text.
    pub fn new(kind: ConditionKind, text: impl Into<String>) -> Self {
        Self { kind, text: Text::new(text) }
    }
}
