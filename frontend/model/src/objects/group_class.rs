//! Reading a VolumeGroupSnapshotClass.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::serde::{Deserialize, Serialize};
use kube::Resource;
use kube::core::ClusterResourceScope;

use super::class::Class;
use super::names::GROUP_SNAPSHOT_GROUP;

/// The object, as far as it is read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", default)]
pub struct VolumeGroupSnapshotClass {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// The driver whose groups are of this class.
    pub driver: String,
    /// What becomes of its groups once nobody wants them.
    #[serde(rename = "deletionPolicy")]
    pub deletion_policy: String,
    /// Settings.
    pub parameters: Option<BTreeMap<String, String>>,
}

impl Resource for VolumeGroupSnapshotClass {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VolumeGroupSnapshotClass".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP_SNAPSHOT_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "volumegroupsnapshotclasses".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Class for VolumeGroupSnapshotClass {
    const FIELD: &'static str = "volumeGroupSnapshotClassName";
    const IDENTITY: [&'static str; 3] =
        ["volumegroupsnapshot/name", "volumegroupsnapshot/namespace", "volumegroupsnapshotcontent/name"];

    fn driver(&self) -> &str {
        &self.driver
    }

    fn deletion_policy(&self) -> &str {
        &self.deletion_policy
    }

    fn parameters(&self) -> Option<&BTreeMap<String, String>> {
        self.parameters.as_ref()
    }
}
