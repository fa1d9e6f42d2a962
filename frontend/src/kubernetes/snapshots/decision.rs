//! What a VolumeSnapshotContent of this node needs. Nothing here does any I/O.

use bulkhead_model::objects::snapshot_content::{Source, VolumeSnapshotContent, snapshot_name};

/// What the agent does about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Nothing, or nothing yet.
    Ignore,
    /// It takes a snapshot of the volume, and gives it this name.
    Take {
        /// The volume's id.
        volume: &'a str,
        /// The name.
        name: String,
    },
    /// It says what is known of the snapshot with this id, which exists if what somebody has written is right.
    Describe {
        /// The snapshot's id.
        snapshot: String,
    },
    /// It says that nothing is in progress any more.
    Settle,
    /// It lets the object go, once this snapshot is deleted if there is one to delete.
    Release {
        /// The snapshot's id.
        snapshot: Option<String>,
    },
}

/// Returns what the agent does about `content`, which its node handles.
pub fn decide(content: &VolumeSnapshotContent) -> Step<'_> {
    let Some(source) = content.source() else { return Step::Ignore };
    // Nobody deletes what a VolumeSnapshot still refers to: somebody has deleted the object by hand.
    let is_unbound = matches!(source, Source::Snapshot(_)) && content.snapshot_uid().is_none();
    if content.is_being_deleted() && (is_unbound || content.is_released()) {
        // Without the finalizer it was never ours to hold.
        if !content.has_finalizer() {
            return Step::Ignore;
        }
        let is_to_go = content.deletes_snapshot() && !content.is_of_group();
        return Step::Release { snapshot: content.handle().filter(|_| is_to_go) };
    }
    if content.is_of_group() {
        return Step::Ignore;
    }
    if content.is_ready() {
        return if content.is_being_created() { Step::Settle } else { Step::Ignore };
    }
    match source {
        Source::Snapshot(snapshot) if !content.is_being_deleted() => Step::Describe { snapshot: snapshot.to_owned() },
        // Without the finalizer, the object could vanish while the snapshot is taken, and nobody would know of it. The
        // snapshot controller adds it, and that is reported.
        Source::Volume(volume) if content.has_finalizer() => match content.snapshot_uid() {
            // It says of another snapshot that it is ready.
            Some(_) if content.is_said_to_be_ready() && !content.is_being_deleted() => {
                content.handle().map_or(Step::Ignore, |snapshot| Step::Describe { snapshot })
            }
            // One that is going gets none, unless that has begun: then what has become of it has to be found out.
            Some(uid) if !content.is_being_deleted() || content.is_being_created() => {
                Step::Take { volume, name: snapshot_name(uid) }
            }
            _ => Step::Ignore,
        },
        Source::Snapshot(_) | Source::Volume(_) => Step::Ignore,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kubernetes::snapshots::fixtures::content;

    const CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
    const DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";

    fn decided(changes: Value) -> Step<'static> {
        let content = Box::leak(Box::new(content(changes)));
        decide(content)
    }

    fn take() -> Step<'static> {
        Step::Take { volume: "pvc-1", name: "snapshot-1".to_owned() }
    }

    fn going(annotations: Value) -> Value {
        json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations } })
    }

    /// One that an administrator has made for a snapshot that exists.
    fn by_hand(mut changes: Value, uid: Option<&str>) -> Value {
        changes["spec"]["source"] = json!({ "volumeHandle": null, "snapshotHandle": "kept" });
        changes["spec"]["volumeSnapshotRef"]["uid"] = json!(uid);
        changes
    }

    #[test]
    fn a_snapshot_is_taken_once_its_object_can_be_held() {
        assert_eq!(decided(json!({})), take());
        assert_eq!(decided(json!({ "metadata": { "finalizers": null } })), Step::Ignore);
        assert_eq!(decided(json!({ "metadata": { "finalizers": ["example.com/other"] } })), Step::Ignore);
        let unbound = json!({ "spec": { "volumeSnapshotRef": { "uid": null } } });
        assert_eq!(decided(unbound), Step::Ignore, "it would have no name");
        assert_eq!(decided(json!({ "status": { "readyToUse": false, "error": { "message": "no" } } })), take());
    }

    #[test]
    fn one_that_is_ready_stays_as_it_is() {
        let ready = json!({ "readyToUse": true, "snapshotHandle": "snapshot-1" });
        assert_eq!(decided(json!({ "status": ready })), Step::Ignore);
        let begun = json!({ "status": ready, "metadata": { "annotations": { CREATED: "yes" } } });
        assert_eq!(decided(begun), Step::Settle);
    }

    #[test]
    fn nothing_is_taken_for_an_object_that_is_going() {
        assert_eq!(decided(going(json!(null))), Step::Ignore);
        assert_eq!(decided(going(json!({ CREATED: "yes" }))), take(), "it may exist by now");
        assert_eq!(decided(by_hand(going(json!(null)), Some("1"))), Step::Ignore);
    }

    #[test]
    fn a_snapshot_goes_with_its_volumesnapshot_and_not_before() {
        let release = |name: &str| Step::Release { snapshot: Some(name.to_owned()) };
        // Also one of which nothing was ever said: it may exist nevertheless.
        assert_eq!(decided(going(json!({ DELETED: "yes" }))), release("snapshot-1"));
        assert_eq!(decided(going(json!({ DELETED: "yes", CREATED: "yes" }))), release("snapshot-1"));
        let mut forged = going(json!({ DELETED: "yes" }));
        forged["status"] =
            json!({ "readyToUse": true, "snapshotHandle": "snapshot-2", "volumeGroupSnapshotHandle": "g" });
        assert_eq!(decided(forged), release("snapshot-1"), "whatever is said about it");
        let ready = json!({ "readyToUse": true, "snapshotHandle": "snapshot-1" });
        let released = json!({ "metadata": { "annotations": { DELETED: "yes" } }, "status": ready });
        assert_eq!(decided(released), Step::Ignore, "it is to be kept");
        assert_eq!(decided(by_hand(going(json!({ DELETED: "yes" })), Some("1"))), release("kept"));
        assert_eq!(decided(by_hand(going(json!(null)), None)), release("kept"), "nobody refers to it");
    }

    #[test]
    fn what_is_to_be_kept_is_kept() {
        let kept = Step::Release { snapshot: None };
        let mut retained = going(json!({ DELETED: "yes" }));
        retained["spec"]["deletionPolicy"] = json!("Retain");
        assert_eq!(decided(retained), kept);
        let group = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";
        assert_eq!(decided(going(json!({ DELETED: "yes", group: "g" }))), kept);
        let mut held_by_others = going(json!({ DELETED: "yes" }));
        held_by_others["metadata"]["finalizers"] = json!(["example.com/other"]);
        assert_eq!(decided(held_by_others), Step::Ignore);
    }

    #[test]
    fn what_somebody_has_named_is_looked_for() {
        let describe = |name: &str| Step::Describe { snapshot: name.to_owned() };
        assert_eq!(decided(by_hand(json!({}), None)), describe("kept"));
        assert_eq!(decided(by_hand(json!({}), Some("1"))), describe("kept"));
        let forged = json!({ "status": { "readyToUse": true, "snapshotHandle": "snapshot-2" } });
        assert_eq!(decided(forged.clone()), describe("snapshot-1"));
        assert_eq!(decided(by_hand(forged, Some("1"))), describe("kept"));
        let group =
            json!({ "metadata": { "annotations": { "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle": "g" } } });
        assert_eq!(decided(group), Step::Ignore, "nobody takes groups here");
    }
}
