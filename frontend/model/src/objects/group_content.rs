//! Reading a VolumeGroupSnapshotContent: the object by which a cluster knows snapshots of several volumes that were taken at one
//! moment. Each of them has a VolumeSnapshotContent as well, which the snapshot controller makes.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::serde::{Deserialize, Serialize};
use kube::Resource;
use kube::core::ClusterResourceScope;

use super::content::{Content, ContentError, Reference, Said, Source};
use super::names::{GROUP_BEING_CREATED, GROUP_BEING_DELETED, GROUP_FINALIZER, GROUP_SNAPSHOT_GROUP};
use crate::volumes::identify_group;

/// The object, as far as it is read. The API group is not one of Kubernetes itself, and may be absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", default)]
pub struct VolumeGroupSnapshotContent {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// What it is.
    pub spec: GroupSpec,
    /// What has been said about it; missing until then.
    pub status: Option<GroupStatus>,
}

/// What a content is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", rename_all = "camelCase", default)]
pub struct GroupSpec {
    /// The driver of the snapshots.
    pub driver: String,
    /// Whether the snapshots are deleted with it: `Delete` or `Retain`.
    pub deletion_policy: String,
    /// What they are snapshots of, or which they are.
    pub source: GroupSource,
    /// The class that it was made with.
    pub volume_group_snapshot_class_name: Option<String>,
    /// The VolumeGroupSnapshot that it is bound to.
    pub volume_group_snapshot_ref: Reference,
}

/// One of the two is given.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", rename_all = "camelCase", default)]
pub struct GroupSource {
    /// The volumes to take snapshots of.
    pub volume_handles: Vec<String>,
    /// A group that exists already.
    pub group_snapshot_handles: Option<GroupHandles>,
}

/// What a driver calls a group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", rename_all = "camelCase", default)]
pub struct GroupHandles {
    /// The group.
    pub volume_group_snapshot_handle: String,
    /// Its snapshots.
    pub volume_snapshot_handles: Vec<String>,
}

/// What was said about a group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", rename_all = "camelCase", default)]
pub struct GroupStatus {
    /// The driver's name for the group.
    pub volume_group_snapshot_handle: Option<String>,
    /// Whether volumes can be made from its snapshots.
    pub ready_to_use: Option<bool>,
    /// Why the last attempt has failed, if it has.
    pub error: Option<ContentError>,
}

impl Resource for VolumeGroupSnapshotContent {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VolumeGroupSnapshotContent".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP_SNAPSHOT_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "volumegroupsnapshotcontents".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Content for VolumeGroupSnapshotContent {
    const OWNER: &'static str = "VolumeGroupSnapshot";
    const FINALIZER: &'static str = GROUP_FINALIZER;
    const BEING_CREATED: &'static str = GROUP_BEING_CREATED;
    const BEING_DELETED: &'static str = GROUP_BEING_DELETED;

    fn driver(&self) -> &str {
        &self.spec.driver
    }

    fn deletion_policy(&self) -> &str {
        &self.spec.deletion_policy
    }

    fn class(&self) -> Option<&str> {
        self.spec.volume_group_snapshot_class_name.as_deref()
    }

    fn owner(&self) -> &Reference {
        &self.spec.volume_group_snapshot_ref
    }

    fn source(&self) -> Option<Source<'_>> {
        let GroupSource { volume_handles, group_snapshot_handles } = &self.spec.source;
        match (volume_handles.as_slice(), group_snapshot_handles) {
            (volumes @ [_, ..], None) => Some(Source::Volumes(volumes)),
            ([], Some(handles)) => Some(Source::Existing(&handles.volume_group_snapshot_handle)),
            // The API's rules exclude that.
            ([], None) | ([_, ..], Some(_)) => None,
        }
    }

    fn name_for(uid: &str) -> String {
        format!("groupsnapshot-{uid}")
    }

    fn handle(&self) -> Option<String> {
        match self.source()? {
            Source::Existing(group) => Some(group.to_owned()),
            Source::Volumes(_) => {
                let (group, _) = identify_group(&Self::name_for(self.owner_uid()?)).ok()?;
                Some(group.to_string())
            }
        }
    }

    fn said(&self) -> Said<'_> {
        let Some(GroupStatus { volume_group_snapshot_handle, ready_to_use, error }) = &self.status else {
            return Said::default();
        };
        let error = error.as_ref().and_then(|error| error.message.as_deref());
        Said { handle: volume_group_snapshot_handle.as_deref(), is_ready: *ready_to_use, error }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn content(source: Value, status: Value) -> VolumeGroupSnapshotContent {
        from_value(json!({
            "metadata": { "name": "groupsnapcontent-1" },
            "spec": { "driver": "bulkhead.csi.local", "deletionPolicy": "Delete", "source": source,
                      "volumeGroupSnapshotRef": { "namespace": "shop", "name": "evening", "uid": "1" } },
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_group_has_the_name_that_its_specification_gives_it() {
        let volumes = || json!({ "volumeHandles": ["pvc-1", "pvc-2"] });
        let new = content(volumes(), Value::Null);
        let both = ["pvc-1".to_owned(), "pvc-2".to_owned()];
        assert_eq!(new.source(), Some(Source::Volumes(&both)));
        assert_eq!(new.handle().as_deref(), Some("groupsnapshot-1"), "before it is taken");
        let said = |handle: &str| json!({ "volumeGroupSnapshotHandle": handle, "readyToUse": true });
        assert!(content(volumes(), said("groupsnapshot-1")).is_ready());
        let forged = content(volumes(), said("groupsnapshot-2"));
        assert_eq!((forged.handle().as_deref(), forged.is_ready()), (Some("groupsnapshot-1"), false));
        let handles = json!({ "volumeGroupSnapshotHandle": "kept", "volumeSnapshotHandles": ["kept.of-1"] });
        let by_hand = content(json!({ "groupSnapshotHandles": handles }), Value::Null);
        assert_eq!(by_hand.source(), Some(Source::Existing("kept")));
        assert_eq!(by_hand.handle().as_deref(), Some("kept"));
        assert_eq!(content(json!({}), Value::Null).source(), None);
    }
}
