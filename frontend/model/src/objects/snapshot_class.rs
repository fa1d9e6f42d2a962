//! Reading a VolumeSnapshotClass.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::serde::{Deserialize, Serialize};
use kube::Resource;
use kube::core::ClusterResourceScope;

use super::class::Class;
use super::names::SNAPSHOT_GROUP;

/// The object, as far as it is read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", default)]
pub struct VolumeSnapshotClass {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// The driver whose snapshots are of this class.
    pub driver: String,
    /// What becomes of its snapshots once nobody wants them.
    #[serde(rename = "deletionPolicy")]
    pub deletion_policy: String,
    /// Settings.
    pub parameters: Option<BTreeMap<String, String>>,
}

impl Resource for VolumeSnapshotClass {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VolumeSnapshotClass".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        SNAPSHOT_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "volumesnapshotclasses".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Class for VolumeSnapshotClass {
    const FIELD: &'static str = "volumeSnapshotClassName";
    const IDENTITY: [&'static str; 3] =
        ["volumesnapshot/name", "volumesnapshot/namespace", "volumesnapshotcontent/name"];

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

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn whatever_has_no_effect_is_refused() {
        let flaw = |parameters: serde_json::Value| {
            let class = json!({
                "metadata": { "name": "daily" }, "driver": "d", "deletionPolicy": "Retain", "parameters": parameters,
            });
            from_value::<VolumeSnapshotClass>(class).unwrap().flaw()
        };
        assert_eq!(flaw(json!(null)), None);
        assert_eq!(flaw(json!({ "csi.storage.k8s.io/volumesnapshot/name": "monday" })), None);
        assert_eq!(flaw(json!({ "deletionPolicy": "Retain" })), None);
        assert!(flaw(json!({ "deletionPolicy": "Delete" })).unwrap().contains("parameter deletionPolicy"));
        let secret = flaw(json!({ "csi.storage.k8s.io/snapshotter-secret-name": "s" })).unwrap();
        assert!(secret.contains("snapshot class daily names a secret"), "{secret}");
        for key in ["colour", "csi.storage.k8s.io/colour", ""] {
            let unknown = flaw(json!({ key: "red" })).unwrap();
            assert!(unknown.contains("there are none for snapshots"), "{unknown}");
        }
    }
}
