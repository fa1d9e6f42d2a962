//! Volumes with what is recorded on each about whose it is, as JSON: `bulkheadctl volume export` prints them, the
//! frontend serves them at /volumes/owners, and `kubectl bulkhead adopt` makes PersistentVolumes of them. And
//! snapshots, which the frontend serves at /snapshots, so that `kubectl bulkhead orphans` finds those that no object
//! names.

use serde::{Deserialize, Serialize};

use crate::owner::Keys;

/// A volume as it is exported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Exported {
    /// The node that it is on; empty where that is known from elsewhere.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// When it was read, as RFC 3339 has it; empty where it is read at this moment.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub exported_at: String,
    /// The release of the program that read it; empty likewise.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// Its id.
    pub volume: String,
    /// Its pool.
    pub pool: String,
    /// Whether it is a block volume.
    pub block: bool,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it may have been published, and so may hold data.
    pub ever_published: bool,
    /// What is recorded about whose it is; nothing if nothing is.
    pub owner: Option<Keys>,
    /// Why what is recorded cannot be read.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// Volumes in the order of their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExportedPage {
    /// The volumes.
    pub volumes: Vec<Exported>,
    /// The token for the next page, if there is one.
    pub next: Option<String>,
}

/// A snapshot as it is exported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExportedSnapshot {
    /// Its id.
    pub snapshot: String,
    /// Its pool.
    pub pool: String,
    /// The bytes that it refers to.
    pub bytes: u64,
}

/// Snapshots in the order of their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SnapshotPage {
    /// The snapshots.
    pub snapshots: Vec<ExportedSnapshot>,
    /// The token for the next page, if there is one.
    pub next: Option<String>,
}
