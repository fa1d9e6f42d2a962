//! What an object of this node needs. Nothing here does any I/O.

use bulkhead_model::objects::content::{Content, Source};

/// What the agent does about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, or nothing yet.
    Ignore,
    /// It takes what the object asks for, and gives it this name.
    Take {
        /// The name.
        name: String,
    },
    /// It says what is known of what has this id, which exists if what somebody has written is right.
    Describe {
        /// The id.
        handle: String,
    },
    /// It says that nothing is in progress any more.
    Settle,
    /// It lets the object go, once what has this id is deleted if there is something to delete.
    Release {
        /// The id.
        handle: Option<String>,
    },
}

/// Returns what the agent does about `content`, which its node handles.
pub fn decide<K: Content>(content: &K) -> Step {
    let Some(source) = content.source() else { return Step::Ignore };
    // Nobody deletes what its owner still refers to: somebody has deleted the object by hand.
    let is_unbound = matches!(source, Source::Existing(_)) && content.owner_uid().is_none();
    if content.is_being_deleted() && (is_unbound || content.is_released()) {
        // Without the finalizer it was never ours to hold.
        if !content.has_finalizer() {
            return Step::Ignore;
        }
        return Step::Release { handle: content.handle().filter(|_| content.deletes_snapshot()) };
    }
    if content.is_of_group() {
        return Step::Ignore;
    }
    if content.is_ready() {
        return if content.is_being_created() { Step::Settle } else { Step::Ignore };
    }
    match source {
        Source::Existing(handle) if !content.is_being_deleted() => Step::Describe { handle: handle.to_owned() },
        // Without the finalizer, the object could vanish while the snapshot is taken, and nobody would know of it. The
        // snapshot controller adds it, and that is reported.
        Source::Volumes(_) if content.has_finalizer() => match content.owner_uid() {
            // It says of another one that it is ready.
            Some(_) if content.is_said_to_be_ready() && !content.is_being_deleted() => {
                content.handle().map_or(Step::Ignore, |handle| Step::Describe { handle })
            }
            // One that is going gets none, unless that has begun: then what has become of it has to be found out.
            Some(uid) if !content.is_being_deleted() || content.is_being_created() => {
                Step::Take { name: K::name_for(uid) }
            }
            _ => Step::Ignore,
        },
        Source::Existing(_) | Source::Volumes(_) => Step::Ignore,
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_model::objects::group_content::VolumeGroupSnapshotContent;
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::kubernetes::snapshots::fixtures::content;

    const CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
    const DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";

    fn decided(changes: Value) -> Step {
        decide(&content(changes))
    }

    fn take() -> Step {
        Step::Take { name: "snapshot-1".to_owned() }
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
        let release = |name: &str| Step::Release { handle: Some(name.to_owned()) };
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
        let kept = Step::Release { handle: None };
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
        let describe = |name: &str| Step::Describe { handle: name.to_owned() };
        assert_eq!(decided(by_hand(json!({}), None)), describe("kept"));
        assert_eq!(decided(by_hand(json!({}), Some("1"))), describe("kept"));
        let forged = json!({ "status": { "readyToUse": true, "snapshotHandle": "snapshot-2" } });
        assert_eq!(decided(forged.clone()), describe("snapshot-1"));
        assert_eq!(decided(by_hand(forged, Some("1"))), describe("kept"));
        let group =
            json!({ "metadata": { "annotations": { "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle": "g" } } });
        assert_eq!(decided(group), Step::Ignore, "it is taken with its group");
    }

    #[test]
    fn a_group_is_taken_and_goes_as_a_snapshot_does() {
        let decided = |metadata: Value, source: Value| {
            decide::<VolumeGroupSnapshotContent>(
                &from_value(json!({
                    "metadata": metadata,
                    "spec": { "driver": "bulkhead.csi.local", "deletionPolicy": "Delete", "source": source,
                              "volumeGroupSnapshotRef": { "namespace": "shop", "name": "evening", "uid": "1" } },
                }))
                .unwrap(),
            )
        };
        let held = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection";
        let released = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";
        let (new, volumes) = (json!({ "finalizers": [held] }), json!({ "volumeHandles": ["pvc-1", "pvc-2"] }));
        assert_eq!(decided(new.clone(), volumes.clone()), Step::Take { name: "groupsnapshot-1".to_owned() });
        let handles = json!({ "volumeGroupSnapshotHandle": "kept", "volumeSnapshotHandles": [] });
        let named = json!({ "groupSnapshotHandles": handles });
        assert_eq!(decided(new, named), Step::Describe { handle: "kept".to_owned() });
        let gone = json!({ "finalizers": [held], "deletionTimestamp": "2026-01-01T00:00:00Z",
                           "annotations": { released: "yes" } });
        assert_eq!(decided(gone, volumes), Step::Release { handle: Some("groupsnapshot-1".to_owned()) });
    }
}
