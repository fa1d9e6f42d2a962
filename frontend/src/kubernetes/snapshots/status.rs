//! What is written into an object, as patches. Nothing here does any I/O.

use bulkhead_model::objects::content::Content;
use bulkhead_model::objects::names::MANAGED_BY_NODE;
use bulkhead_model::volumes::Place;
use bulkhead_protocol::Snapshot;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::volumes::Group;

/// The node at `place` handles it.
pub fn adopted(place: &Place) -> Value {
    json!({ "metadata": { "labels": { MANAGED_BY_NODE: place.value(), place.key(): place.value() } } })
}

/// An attempt to take it begins.
pub fn begun<K: Content>() -> Value {
    json!({ "metadata": { "annotations": { K::BEING_CREATED: "yes" } } })
}

/// No attempt is in progress.
pub fn settled<K: Content>() -> Value {
    json!({ "metadata": { "annotations": { K::BEING_CREATED: null } } })
}

/// The snapshot exists, and volumes can be made from it.
pub fn ready(snapshot: &Snapshot) -> Value {
    json!({ "status": {
        "snapshotHandle": snapshot.snapshot.as_str(),
        "readyToUse": true,
        "creationTime": nanoseconds(snapshot.origin.copied),
        "restoreSize": snapshot.size.get(),
        "error": null,
    } })
}

/// An attempt has failed because of `message`; `None` if that is what the object says already.
pub fn failed<K: Content>(content: &K, message: &str) -> Option<Value> {
    let is_news = content.error() != Some(message) || content.said().is_ready.is_none();
    is_news.then(|| {
        let error = json!({ "time": Timestamp::now().to_string(), "message": message });
        json!({ "status": { "readyToUse": false, "error": error } })
    })
}

/// The group exists, and volumes can be made from its snapshots. The snapshot controller makes an object for each that is
/// listed: where a group was named, the objects of its snapshots are named as well.
pub fn ready_group(group: &Group, is_named: bool) -> Value {
    let listed = |taken: &Snapshot| {
        json!({
            "volumeHandle": taken.origin.source.as_str(),
            "snapshotHandle": taken.snapshot.as_str(),
            "readyToUse": true,
            "creationTime": nanoseconds(taken.origin.copied),
            "restoreSize": taken.size.get(),
        })
    };
    let taken = Timestamp::from_nanosecond(i128::from(group.taken())).unwrap_or(Timestamp::MAX);
    let mut status = json!({
        "volumeGroupSnapshotHandle": group.id.as_str(),
        "readyToUse": true,
        "creationTime": taken.to_string(),
        "error": null,
    });
    if !is_named {
        status["volumeSnapshotInfoList"] = group.snapshots.iter().map(listed).collect();
    }
    json!({ "status": status })
}

fn nanoseconds(since_1970: u64) -> i64 {
    i64::try_from(since_1970).unwrap_or(i64::MAX)
}

/// The snapshot does not exist any more.
pub fn deleted() -> Value {
    json!({ "status": { "snapshotHandle": null, "readyToUse": null, "creationTime": null, "restoreSize": null } })
}

/// Nothing of the group exists any more.
pub fn deleted_group() -> Value {
    json!({ "status": { "volumeGroupSnapshotHandle": null, "readyToUse": null, "creationTime": null } })
}

/// The object may go, as far as its driver is concerned.
pub fn let_go<K: Content>(content: &K) -> Value {
    let others: Vec<_> = content.finalizers().iter().filter(|name| *name != K::FINALIZER).collect();
    json!({ "metadata": { "finalizers": others, "annotations": { K::BEING_CREATED: null } } })
}

#[cfg(test)]
mod tests {
    use bulkhead_model::objects::names::CONTENT_FINALIZER;
    use bulkhead_protocol::{Bytes, Origin};

    use super::*;
    use crate::kubernetes::snapshots::fixtures::content;

    fn taken(id: &str) -> Snapshot {
        let volume = |id: &str| id.parse().unwrap();
        let origin = Origin { source: volume("pvc-1"), family: volume("pvc-1"), copied: 1_700_000_000_000_000_001 };
        let (pool, size) = ("fast".parse().unwrap(), Bytes::try_from(8 << 20).unwrap());
        Snapshot { snapshot: volume(id), pool, size, block: true, allocated: 0, origin }
    }

    #[test]
    fn a_snapshot_in_the_words_of_the_api() {
        let expected = json!({ "status": {
            "snapshotHandle": "snapshot-1", "readyToUse": true, "creationTime": 1_700_000_000_000_000_001_i64,
            "restoreSize": 8 << 20, "error": null,
        } });
        assert_eq!(ready(&taken("snapshot-1")), expected);
    }

    #[test]
    fn a_group_in_the_words_of_the_api() {
        let group = Group { id: "groupsnapshot-1".parse().unwrap(), snapshots: vec![taken("groupsnapshot-1.of-a")] };
        let mut expected = json!({ "status": {
            "volumeGroupSnapshotHandle": "groupsnapshot-1", "readyToUse": true, "error": null,
            "creationTime": "2023-11-14T22:13:20.000000001Z",
        } });
        assert_eq!(ready_group(&group, true), expected);
        expected["status"]["volumeSnapshotInfoList"] = json!([{
            "volumeHandle": "pvc-1", "snapshotHandle": "groupsnapshot-1.of-a", "readyToUse": true,
            "creationTime": 1_700_000_000_000_000_001_i64, "restoreSize": 8 << 20,
        }]);
        assert_eq!(ready_group(&group, false), expected);
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
