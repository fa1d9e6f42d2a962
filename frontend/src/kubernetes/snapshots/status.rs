//! What is written into a VolumeSnapshotContent, as patches. Nothing here does any I/O.

use bulkhead_model::objects::names::{CONTENT_FINALIZER, MANAGED_BY_NODE, SNAPSHOT_BEING_CREATED};
use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use bulkhead_model::volumes::Place;
use bulkhead_protocol::Snapshot;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

/// The node at `place` handles it.
pub fn adopted(place: &Place) -> Value {
    json!({ "metadata": { "labels": { MANAGED_BY_NODE: place.value(), place.key(): place.value() } } })
}

/// An attempt to take the snapshot begins.
pub fn begun() -> Value {
    json!({ "metadata": { "annotations": { SNAPSHOT_BEING_CREATED: "yes" } } })
}

/// No attempt is in progress.
pub fn settled() -> Value {
    json!({ "metadata": { "annotations": { SNAPSHOT_BEING_CREATED: null } } })
}

/// The snapshot exists, and volumes can be made from it.
pub fn ready(snapshot: &Snapshot) -> Value {
    json!({ "status": {
        "snapshotHandle": snapshot.snapshot.as_str(),
        "readyToUse": true,
        "creationTime": i64::try_from(snapshot.origin.copied).unwrap_or(i64::MAX),
        "restoreSize": snapshot.size.get(),
        "error": null,
    } })
}

/// An attempt has failed because of `message`; `None` if that is what the object says already.
pub fn failed(content: &VolumeSnapshotContent, message: &str) -> Option<Value> {
    let is_news =
        content.error() != Some(message) || content.status.as_ref().and_then(|status| status.ready_to_use).is_none();
    is_news.then(|| {
        let error = json!({ "time": Timestamp::now().to_string(), "message": message });
        json!({ "status": { "readyToUse": false, "error": error } })
    })
}

/// The snapshot does not exist any more.
pub fn deleted() -> Value {
    json!({ "status": { "snapshotHandle": null, "readyToUse": null, "creationTime": null, "restoreSize": null } })
}

/// The object may go, as far as its driver is concerned.
pub fn let_go(content: &VolumeSnapshotContent) -> Value {
    let others: Vec<_> = content.finalizers().iter().filter(|name| *name != CONTENT_FINALIZER).collect();
    json!({ "metadata": { "finalizers": others, "annotations": { SNAPSHOT_BEING_CREATED: null } } })
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::{Bytes, Origin};

    use super::*;
    use crate::kubernetes::snapshots::fixtures::content;

    #[test]
    fn a_snapshot_in_the_words_of_the_api() {
        let id = |id: &str| id.parse().unwrap();
        let origin = Origin { source: id("pvc-1"), family: id("pvc-1"), copied: 1_700_000_000_000_000_001 };
        let (pool, size) = ("fast".parse().unwrap(), Bytes::try_from(8 << 20).unwrap());
        let snapshot = Snapshot { snapshot: id("snapshot-1"), pool, size, block: true, allocated: 0, origin };
        let expected = json!({ "status": {
            "snapshotHandle": "snapshot-1", "readyToUse": true, "creationTime": 1_700_000_000_000_000_001_i64,
            "restoreSize": 8 << 20, "error": null,
        } });
        assert_eq!(ready(&snapshot), expected);
    }

    #[test]
    fn the_same_failure_is_written_once() {
        let first = failed(&content(json!({})), "no room").unwrap();
        assert_eq!(
            (&first["status"]["readyToUse"], &first["status"]["error"]["message"]),
            (&json!(false), &json!("no room"))
        );
        let said = content(json!({ "status": first["status"] }));
        assert_eq!(failed(&said, "no room"), None);
        assert!(failed(&said, "other").is_some());
    }

    #[test]
    fn other_finalizers_stay() {
        let held =
            content(json!({ "metadata": { "finalizers": ["example.com/a", CONTENT_FINALIZER, "example.com/b"] } }));
        assert_eq!(let_go(&held)["metadata"]["finalizers"], json!(["example.com/a", "example.com/b"]));
    }
}
