//! Reading a VolumeSnapshotClass. There is nothing to choose about a snapshot here, so that a class says little.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::serde::{Deserialize, Serialize};
use kube::core::ClusterResourceScope;
use kube::{Resource, ResourceExt};

use super::names::SNAPSHOT_GROUP;
use crate::printable::printable;

/// Where parameters begin that are for whoever takes a snapshot, and not for its driver.
const RESERVED: &str = "csi.storage.k8s.io/";

/// How much of a parameter's name is shown, in bytes.
const LONGEST_NAME: usize = 120;

/// The object, as far as it is read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", default)]
pub struct VolumeSnapshotClass {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// The driver whose snapshots are of this class.
    pub driver: String,
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

impl VolumeSnapshotClass {
    /// Returns why no snapshot can be taken with it, if that is so: nothing that it asks for must silently have no
    /// effect.
    pub fn flaw(&self) -> Option<String> {
        let key = self.parameters.iter().flat_map(BTreeMap::keys).find(|key| !is_of_requester(key))?;
        let (class, shown) = (self.name_any(), printable(key, LONGEST_NAME));
        Some(if key.starts_with(RESERVED) && key.contains("secret") {
            format!("snapshot class {class} names a secret ({shown}), and this driver uses none: remove the parameter")
        } else {
            format!("snapshot class {class} has the parameter {shown}, but there are none for snapshots: remove it")
        })
    }
}

/// Returns whether a parameter only says whose snapshot it is.
fn is_of_requester(key: &str) -> bool {
    matches!(
        key.strip_prefix(RESERVED),
        Some("volumesnapshot/name" | "volumesnapshot/namespace" | "volumesnapshotcontent/name")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn whatever_has_no_effect_is_refused() {
        let flaw = |parameters: serde_json::Value| {
            let class = json!({ "metadata": { "name": "daily" }, "driver": "d", "parameters": parameters });
            from_value::<VolumeSnapshotClass>(class).unwrap().flaw()
        };
        assert_eq!(flaw(json!(null)), None);
        assert_eq!(flaw(json!({ "csi.storage.k8s.io/volumesnapshot/name": "monday" })), None);
        let secret = flaw(json!({ "csi.storage.k8s.io/snapshotter-secret-name": "s" })).unwrap();
        assert!(secret.contains("snapshot class daily names a secret"), "{secret}");
        for key in ["colour", "csi.storage.k8s.io/colour", ""] {
            let unknown = flaw(json!({ key: "red" })).unwrap();
            assert!(unknown.contains("there are none for snapshots"), "{unknown}");
        }
    }
}
