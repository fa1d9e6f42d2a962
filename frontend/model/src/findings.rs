//! What a frontend has found about single volumes of its node, as JSON: the frontend serves it at /volumes beside its
//! metrics, and `kubectl bulkhead` reads it. Metrics have no labels for volumes, because their number is unbounded.

use serde::{Deserialize, Serialize};

/// The findings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Findings {
    /// The volumes that need attention, by their ids.
    pub abnormal: Vec<AbnormalVolume>,
    /// The volumes that no PersistentVolume names.
    pub orphans: Vec<OrphanedVolume>,
    /// How many volumes are not named, because there are too many.
    pub more: usize,
}

/// A volume that needs attention.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AbnormalVolume {
    /// Its id.
    pub volume: String,
    /// Whether it does not exist.
    pub missing: bool,
    /// Whether it exists, or may, but is not served.
    pub unserved: bool,
    /// What is wrong, and what to do.
    pub message: String,
}

/// A volume that no PersistentVolume names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OrphanedVolume {
    /// Its id.
    pub volume: String,
    /// Its pool.
    pub pool: String,
    /// Its size in bytes.
    pub bytes: u64,
}

impl AbnormalVolume {
    /// Its state in one word.
    pub fn word(&self) -> &'static str {
        match self {
            Self { missing: true, .. } => "missing",
            Self { unserved: true, .. } => "not-served",
            _ => "abnormal",
        }
    }
}
