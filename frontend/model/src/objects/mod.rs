//! The API's objects as values: what they say, and what ours look like. Nothing here does any I/O.

pub mod attributes_class;
pub mod claim;
pub mod class;
pub mod content;
pub mod fields;
pub mod group_class;
pub mod group_content;
pub mod lease;
pub mod names;
pub mod node_affinity;
pub mod owner;
pub mod persistent_volume;
pub mod reducer;
pub mod snapshot_class;
pub mod snapshot_content;
pub mod snapshot_metadata_service;
pub mod storage;
pub mod storage_class;
pub mod volume_snapshot;
