//! Reading a VolumeSnapshotContent: the object by which a cluster knows a snapshot, as a PersistentVolume is that of a
//! volume.

use std::borrow::Cow;
use std::slice::from_ref;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::serde::{Deserialize, Serialize};
use kube::core::ClusterResourceScope;
use kube::{Resource, ResourceExt};

use super::content::{Content, ContentError, Reference, Said, Source};
use super::names::{
    CONTENT_FINALIZER, SNAPSHOT_BEING_CREATED, SNAPSHOT_BEING_DELETED, SNAPSHOT_GROUP, SNAPSHOT_GROUP_HANDLE,
};
use crate::volumes::{Mode, identify, snapshot_in};

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
    pub volume_snapshot_ref: Reference,
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

impl Content for VolumeSnapshotContent {
    const OWNER: &'static str = "VolumeSnapshot";
    const FINALIZER: &'static str = CONTENT_FINALIZER;
    const BEING_CREATED: &'static str = SNAPSHOT_BEING_CREATED;
    const BEING_DELETED: &'static str = SNAPSHOT_BEING_DELETED;

    fn driver(&self) -> &str {
        &self.spec.driver
    }

    fn deletion_policy(&self) -> &str {
        &self.spec.deletion_policy
    }

    fn class(&self) -> Option<&str> {
        self.spec.volume_snapshot_class_name.as_deref()
    }

    fn owner(&self) -> &Reference {
        &self.spec.volume_snapshot_ref
    }

    fn source(&self) -> Option<Source<'_>> {
        let ContentSource { volume_handle, snapshot_handle } = &self.spec.source;
        match (volume_handle, snapshot_handle) {
            (Some(volume), None) => Some(Source::Volumes(from_ref(volume))),
            (None, Some(snapshot)) => Some(Source::Existing(snapshot)),
            // The API's rules exclude that.
            (None, None) | (Some(_), Some(_)) => None,
        }
    }

    fn name_for(uid: &str) -> String {
        format!("snapshot-{uid}")
    }

    fn handle(&self) -> Option<String> {
        let taken = match (self.source()?, self.annotations().get(SNAPSHOT_GROUP_HANDLE)) {
            (Source::Existing(snapshot), _) => return Some(snapshot.to_owned()),
            (Source::Volumes(volumes), Some(group)) => {
                snapshot_in(&group.parse().ok()?, &volumes.first()?.parse().ok()?)
            }
            (Source::Volumes(_), None) => identify(&Self::name_for(self.owner_uid()?)).map(|(snapshot, _)| snapshot),
        };
        taken.ok().map(|snapshot| snapshot.to_string())
    }

    fn said(&self) -> Said<'_> {
        let Some(ContentStatus { snapshot_handle, ready_to_use, error, .. }) = &self.status else {
            return Said::default();
        };
        let error = error.as_ref().and_then(|error| error.message.as_deref());
        Said { handle: snapshot_handle.as_deref(), is_ready: *ready_to_use, error }
    }

    fn is_of_group(&self) -> bool {
        self.annotations().contains_key(SNAPSHOT_GROUP_HANDLE)
    }
}

impl VolumeSnapshotContent {
    /// The mode of the volume that it is a snapshot of, if it says so.
    pub fn mode(&self) -> Option<Mode> {
        match self.spec.source_volume_mode.as_deref()? {
            "Block" => Some(Mode::Block),
            _ => Some(Mode::Directory),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::super::names::MANAGED_BY_NODE;
    use super::*;
    use crate::volumes::Place;

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
        assert_eq!((by_hand.handle().as_deref(), by_hand.owner_uid()), (Some("kept"), None));
        assert_eq!(by_hand.source(), Some(Source::Existing("kept")));
    }

    #[test]
    fn one_of_a_group_has_the_name_that_the_group_gives_it() {
        let of_group = |handle: &str| {
            let annotations = json!({ "annotations": { SNAPSHOT_GROUP_HANDLE: "groupsnapshot-1" } });
            let status = json!({ "snapshotHandle": handle, "readyToUse": true });
            content(json!({ "metadata": annotations, "status": status }))
        };
        let name = of_group("").handle().unwrap();
        assert!(name.starts_with("groupsnapshot-1.of-"), "{name}");
        assert!(of_group(&name).is_ready() && !of_group(&name).deletes_snapshot());
        assert!(!of_group("snapshot-1").is_ready());
        let by_hand = json!({ "driver": "bulkhead.csi.local", "source": { "snapshotHandle": name },
                              "volumeSnapshotRef": { "namespace": "shop", "name": "monday" } });
        assert_eq!(content(json!({ "spec": by_hand })).handle(), Some(name));
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
