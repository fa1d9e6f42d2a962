//! Reading a VolumeSnapshot, from which a claim's volume is to be made.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::serde::{Deserialize, Serialize};
use kube::Resource;
use kube::core::NamespaceResourceScope;

use super::names::SNAPSHOT_GROUP;

/// The object, as far as it is read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", default)]
pub struct VolumeSnapshot {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// What its owner asks for.
    pub spec: SnapshotSpec,
    /// What the snapshot controller says about it.
    pub status: SnapshotStatus,
}

/// What a VolumeSnapshot is to be of.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", default)]
pub struct SnapshotSpec {
    /// Its source.
    pub source: SnapshotSource,
}

/// The source of a VolumeSnapshot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", rename_all = "camelCase", default)]
pub struct SnapshotSource {
    /// A claim in its namespace, if it is to be taken of that.
    pub persistent_volume_claim_name: Option<String>,
}

/// What a snapshot controller says about a VolumeSnapshot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", rename_all = "camelCase", default)]
pub struct SnapshotStatus {
    /// The content that it is bound to.
    pub bound_volume_snapshot_content_name: Option<String>,
    /// Whether volumes can be made from it.
    pub ready_to_use: Option<bool>,
    /// Why it cannot be taken.
    pub error: Option<SnapshotError>,
}

/// Why a VolumeSnapshot cannot be taken.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", default)]
pub struct SnapshotError {
    /// In the controller's words.
    pub message: Option<String>,
}

impl SnapshotStatus {
    /// Returns whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.bound_volume_snapshot_content_name.is_none() && self.ready_to_use.is_none() && self.error.is_none()
    }
}

impl Resource for VolumeSnapshot {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VolumeSnapshot".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        SNAPSHOT_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "volumesnapshots".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
