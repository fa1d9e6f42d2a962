//! VolumeSnapshotContents for unit tests.

use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use bulkhead_model::volumes::Place;
use serde_json::{Value, json};

use crate::kubernetes::claims::fixtures::merged;

/// The node of the tests.
pub fn place() -> Place {
    Place::new(&"bulkhead.csi.local".parse().unwrap(), "here")
}

/// One that a snapshot controller has made for a VolumeSnapshot of a volume on this node, `here`, with `changes` applied.
pub fn content(changes: Value) -> VolumeSnapshotContent {
    let base = json!({
        "metadata": {
            "name": "snapcontent-1", "uid": "c-1", "resourceVersion": "7",
            "labels": { "bulkhead.csi.local/node": "here" },
            "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"],
        },
        "spec": {
            "driver": "bulkhead.csi.local", "deletionPolicy": "Delete", "source": { "volumeHandle": "pvc-1" },
            "volumeSnapshotClassName": "daily",
            "volumeSnapshotRef": { "namespace": "shop", "name": "monday", "uid": "1" },
        },
    });
    serde_json::from_value(merged(base, changes)).unwrap()
}
