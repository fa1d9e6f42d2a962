//! Reading a VolumeSnapshotContent: the object by which a cluster knows a snapshot, as a PersistentVolume is that of a
//! volume.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::serde::{Deserialize, Serialize};
use kube::core::ClusterResourceScope;
use kube::{Resource, ResourceExt};

use super::names::{
    CONTENT_FINALIZER, MANAGED_BY_NODE, SNAPSHOT_BEING_CREATED, SNAPSHOT_BEING_DELETED, SNAPSHOT_GROUP,
    SNAPSHOT_GROUP_HANDLE,
};
use crate::volumes::{Mode, Place, identify};

/// The object, as far as it is read. The API group is not one of Kubernetes itself, and may be absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", default)]
pub struct VolumeSnapshotContent {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// What it is.
    pub spec: ContentSpec,
    /// What has been said about it; missing until then. Whoever has the token of some agent may have said it: nothing is
    /// deleted or copied because of it.
    pub status: Option<ContentStatus>,
}

/// What a content is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", rename_all = "camelCase", default)]
pub struct ContentSpec {
    /// The driver of the snapshot.
    pub driver: String,
    /// Whether the snapshot is deleted with it: `Delete` or `Retain`.
    pub deletion_policy: String,
    /// What it is a snapshot of, or which snapshot it is.
    pub source: ContentSource,
    /// The mode of the volume, where whoever made the content knew it.
    pub source_volume_mode: Option<String>,
    /// The class that it was made with.
    pub volume_snapshot_class_name: Option<String>,
    /// The VolumeSnapshot that it is bound to.
    pub volume_snapshot_ref: SnapshotReference,
}

/// One of the two is given.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", rename_all = "camelCase", default)]
pub struct ContentSource {
    /// The volume to take a snapshot of.
    pub volume_handle: Option<String>,
    /// A snapshot that exists already.
    pub snapshot_handle: Option<String>,
}

/// Which VolumeSnapshot a content is bound to. Without a uid it waits for one of that name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", default)]
pub struct SnapshotReference {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: Option<String>,
}

/// What was said about a snapshot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", rename_all = "camelCase", default)]
pub struct ContentStatus {
    /// The driver's name for the snapshot.
    pub snapshot_handle: Option<String>,
    /// Whether volumes can be made from it.
    pub ready_to_use: Option<bool>,
    /// When it was taken, in nanoseconds since 1970.
    pub creation_time: Option<i64>,
    /// The smallest size of a volume that is made from it, in bytes.
    pub restore_size: Option<i64>,
    /// Why the last attempt has failed, if it has.
    pub error: Option<ContentError>,
}

/// Why an attempt has failed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", default)]
pub struct ContentError {
    /// For the owner of the VolumeSnapshot.
    pub message: Option<String>,
}

/// Where the snapshot comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// It is to be taken of this volume.
    Volume(&'a str),
    /// It exists already, under this name.
    Snapshot(&'a str),
}

impl Resource for VolumeSnapshotContent {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VolumeSnapshotContent".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        SNAPSHOT_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "volumesnapshotcontents".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl VolumeSnapshotContent {
    /// Its uid. The API server gives every object one.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Returns where its snapshot comes from.
    pub fn source(&self) -> Option<Source<'_>> {
        let ContentSource { volume_handle, snapshot_handle } = &self.spec.source;
        match (volume_handle.as_deref(), snapshot_handle.as_deref()) {
            (Some(volume), None) => Some(Source::Volume(volume)),
            (None, Some(snapshot)) => Some(Source::Snapshot(snapshot)),
            // The API's rules exclude that.
            (None, None) | (Some(_), Some(_)) => None,
        }
    }

    /// The uid of its VolumeSnapshot, if it is bound to one.
    pub fn snapshot_uid(&self) -> Option<&str> {
        self.spec.volume_snapshot_ref.uid.as_deref().filter(|uid| !uid.is_empty())
    }

    /// The driver's name for the snapshot, also for one that has yet to be taken. It follows from the specification, which
    /// no agent can change.
    pub fn handle(&self) -> Option<String> {
        match self.source()? {
            Source::Snapshot(snapshot) => Some(snapshot.to_owned()),
            Source::Volume(_) => {
                let (id, _) = identify(&snapshot_name(self.snapshot_uid()?)).ok()?;
                Some(id.to_string())
            }
        }
    }

    /// Returns whether volumes can be made from it, as was said of the snapshot with its own handle.
    pub fn is_ready(&self) -> bool {
        self.is_said_to_be_ready() && self.said_handle() == self.handle().as_deref()
    }

    /// Returns whether volumes can be made from it, as was said of whatever snapshot.
    pub fn is_said_to_be_ready(&self) -> bool {
        self.status.as_ref().and_then(|status| status.ready_to_use) == Some(true)
    }

    /// The handle that its status has.
    pub fn said_handle(&self) -> Option<&str> {
        self.status.as_ref()?.snapshot_handle.as_deref()
    }

    /// Returns what was last said to have failed.
    pub fn error(&self) -> Option<&str> {
        self.status.as_ref()?.error.as_ref()?.message.as_deref()
    }

    /// Returns whether it is one of a group of snapshots that were taken together. Nobody takes such groups here.
    pub fn is_of_group(&self) -> bool {
        self.annotations().contains_key(SNAPSHOT_GROUP_HANDLE)
    }

    /// Returns whether the snapshot is deleted along with it.
    pub fn deletes_snapshot(&self) -> bool {
        self.spec.deletion_policy == "Delete"
    }

    /// Returns whether it is being deleted.
    pub fn is_being_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Returns whether its VolumeSnapshot is being deleted.
    pub fn is_released(&self) -> bool {
        self.annotations().contains_key(SNAPSHOT_BEING_DELETED)
    }

    /// Returns whether an attempt to take its snapshot has begun.
    pub fn is_being_created(&self) -> bool {
        self.annotations().contains_key(SNAPSHOT_BEING_CREATED)
    }

    /// Returns whether it stays until its driver lets it go.
    pub fn has_finalizer(&self) -> bool {
        self.finalizers().iter().any(|name| name == CONTENT_FINALIZER)
    }

    /// The mode of the volume that it is a snapshot of, if it says so.
    pub fn mode(&self) -> Option<Mode> {
        match self.spec.source_volume_mode.as_deref()? {
            "Block" => Some(Mode::Block),
            _ => Some(Mode::Directory),
        }
    }

    /// The node that handles it, as labels say: the one that snapshot controllers give, or else ours.
    pub fn node(&self, place: &Place) -> Option<&str> {
        let labels = self.labels();
        let node = labels.get(MANAGED_BY_NODE).or_else(|| labels.get(place.key()));
        node.map(String::as_str).filter(|node| !node.is_empty())
    }
}

/// The name of the snapshot that is taken for the VolumeSnapshot with this uid, as its driver knows it.
pub fn snapshot_name(uid: &str) -> String {
    format!("snapshot-{uid}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn content(changes: Value) -> VolumeSnapshotContent {
        let mut content = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": { "name": "snapcontent-1" },
            "spec": { "driver": "bulkhead.csi.local", "deletionPolicy": "Delete", "source": { "volumeHandle": "pvc-1" },
                      "volumeSnapshotRef": { "namespace": "shop", "name": "monday", "uid": "1" } },
        });
        for (key, value) in changes.as_object().unwrap() {
            content[key] = value.clone();
        }
        from_value(content).unwrap()
    }

    #[test]
    fn a_snapshot_has_the_name_that_its_specification_gives_it() {
        assert_eq!(content(json!({})).handle().as_deref(), Some("snapshot-1"), "before it is taken");
        let said = |handle: &str| content(json!({ "status": { "snapshotHandle": handle, "readyToUse": true } }));
        assert!(said("snapshot-1").is_ready());
        let forged = said("snapshot-2");
        assert_eq!((forged.handle().as_deref(), forged.is_ready()), (Some("snapshot-1"), false));
        let by_hand = json!({ "driver": "bulkhead.csi.local", "source": { "snapshotHandle": "kept" },
                              "volumeSnapshotRef": { "namespace": "shop", "name": "monday" } });
        let by_hand = content(json!({ "spec": by_hand }));
        assert_eq!((by_hand.handle().as_deref(), by_hand.snapshot_uid()), (Some("kept"), None));
        assert_eq!(by_hand.source(), Some(Source::Snapshot("kept")));
    }

    #[test]
    fn the_snapshot_controllers_label_comes_first() {
        let place = Place::new(&"bulkhead.csi.local".parse().unwrap(), "here");
        let labelled = |labels: Value| content(json!({ "metadata": { "labels": labels } }));
        assert_eq!(labelled(json!({ "bulkhead.csi.local/node": "here" })).node(&place), Some("here"));
        let both = json!({ "bulkhead.csi.local/node": "here", MANAGED_BY_NODE: "there" });
        assert_eq!(labelled(both).node(&place), Some("there"));
        assert_eq!(labelled(json!({ "bulkhead.csi.local/node": "" })).node(&place), None);
    }
}
