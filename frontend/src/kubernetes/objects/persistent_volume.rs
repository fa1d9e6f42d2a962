//! PersistentVolumes: what ours look like, and which are ours.

use std::collections::BTreeMap;

use bulkhead_protocol::{DriverName, VolumeId};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};

use super::claim;
use super::names::{DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, FINALIZER, PROVISIONED_BY, PROVISIONER_IDENTITY};
use super::quantity::quantity;
use crate::volumes::{Place, Provisioned};

const FILESYSTEM_PARAMETER: &str = "csi.storage.k8s.io/fstype";

/// The object for the volume that was `provisioned` here for `claim` of `class`.
pub fn describe(
    driver: &DriverName,
    place: &Place,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    provisioned: &Provisioned,
) -> PersistentVolume {
    let text = |text: &str| text.to_owned();
    let block = claim::is_block(claim);
    let filesystem = class.parameters.as_ref().and_then(|parameters| parameters.get(FILESYSTEM_PARAMETER));
    let spec = claim.spec.as_ref();
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(claim::volume_name(claim)),
            labels: Some(place.segments()),
            annotations: Some(BTreeMap::from([
                (text(PROVISIONED_BY), driver.to_string()),
                (text(DELETION_SECRET_NAME), String::new()),
                (text(DELETION_SECRET_NAMESPACE), String::new()),
            ])),
            finalizers: Some(vec![text(FINALIZER)]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.and_then(|spec| spec.access_modes.clone()),
            capacity: Some(BTreeMap::from([(text("storage"), quantity(provisioned.size.get()))])),
            claim_ref: Some(ObjectReference { resource_version: claim.resource_version(), ..claim.object_ref(&()) }),
            csi: Some(CSIPersistentVolumeSource {
                driver: driver.to_string(),
                volume_handle: provisioned.volume.to_string(),
                fs_type: filesystem.filter(|_| !block).cloned(),
                volume_attributes: Some(BTreeMap::from([(
                    text(PROVISIONER_IDENTITY),
                    format!("{driver}-{}", place.value()),
                )])),
                ..CSIPersistentVolumeSource::default()
            }),
            mount_options: class.mount_options.clone().filter(|_| !block),
            node_affinity: Some(affinity(place)),
            persistent_volume_reclaim_policy: Some(class.reclaim_policy.clone().unwrap_or_else(|| text("Delete"))),
            storage_class_name: class.metadata.name.clone(),
            volume_mode: Some(text(if block { "Block" } else { "Filesystem" })),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

/// The id of the volume that `object` stands for, if that is one of `driver`'s at `place` and nowhere else.
pub fn own(object: &PersistentVolume, driver: &DriverName, place: &Place) -> Option<VolumeId> {
    let spec = object.spec.as_ref()?;
    let csi = spec.csi.as_ref().filter(|csi| csi.driver == driver.as_str())?;
    let provisioner = object.annotations().get(PROVISIONED_BY).map_or(csi.driver.as_str(), String::as_str);
    let terms = &spec.node_affinity.as_ref()?.required.as_ref()?.node_selector_terms;
    let here = !terms.is_empty() && terms.iter().all(|term| is_only(term, place));
    if provisioner == driver.as_str() && here { csi.volume_handle.parse().ok() } else { None }
}

/// Whether `object` says that it is on another node than `place`.
pub fn is_elsewhere(object: &PersistentVolume, place: &Place) -> bool {
    let required = object.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    let terms = required.map(|required| required.node_selector_terms.as_slice()).unwrap_or_default();
    !terms.is_empty() && terms.iter().all(|term| names_others(term, place))
}

/// The phase of its life.
pub fn phase(object: &PersistentVolume) -> &str {
    object.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Whether releasing it deletes it.
pub fn is_deleted_when_released(object: &PersistentVolume) -> bool {
    object.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) == Some("Delete")
}

fn affinity(place: &Place) -> VolumeNodeAffinity {
    let here = NodeSelectorRequirement {
        key: place.key().to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![place.value().to_owned()]),
    };
    let term = NodeSelectorTerm { match_expressions: Some(vec![here]), match_fields: None };
    VolumeNodeAffinity { required: Some(NodeSelector { node_selector_terms: vec![term] }) }
}

fn names_others(term: &NodeSelectorTerm, place: &Place) -> bool {
    term.match_expressions.iter().flatten().any(|expression| {
        let mut values = expression.values.iter().flatten();
        expression.key == place.key() && expression.operator == "In" && !values.any(|value| value == place.value())
    })
}

fn is_only(term: &NodeSelectorTerm, place: &Place) -> bool {
    term.match_expressions.iter().flatten().any(|expression| {
        let values = expression.values.as_deref().unwrap_or_default();
        expression.key == place.key() && expression.operator == "In" && values == [place.value()]
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn driver() -> DriverName {
        "bulkhead.csi.local".parse().unwrap()
    }

    fn place() -> Place {
        Place::new(&driver(), "here")
    }

    fn described(mode: &str) -> serde_json::Value {
        let claim = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "name": "data", "namespace": "shop", "uid": "1", "resourceVersion": "7" },
            "spec": { "accessModes": ["ReadWriteOnce"], "volumeMode": mode },
        }))
        .unwrap();
        let class = serde_json::from_value(json!({
            "metadata": { "name": "local" }, "provisioner": "bulkhead.csi.local", "reclaimPolicy": "Retain",
            "mountOptions": ["noatime"], "parameters": { "csi.storage.k8s.io/fstype": "xfs" },
        }))
        .unwrap();
        let provisioned = Provisioned { volume: "pvc-1".parse().unwrap(), size: (1_u64 << 30).try_into().unwrap() };
        serde_json::to_value(describe(&driver(), &place(), &claim, &class, &provisioned)).unwrap()
    }

    #[test]
    fn field_by_field() {
        let here = json!([{ "matchExpressions": [
            { "key": "bulkhead.csi.local/node", "operator": "In", "values": ["here"] }] }]);
        let expected = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {
                "name": "pvc-1",
                "labels": { "bulkhead.csi.local/node": "here" },
                "annotations": {
                    "pv.kubernetes.io/provisioned-by": "bulkhead.csi.local",
                    "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                    "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
                },
                "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": { "storage": "1Gi" },
                "claimRef": { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "shop",
                              "name": "data", "uid": "1", "resourceVersion": "7" },
                "csi": { "driver": "bulkhead.csi.local", "volumeHandle": "pvc-1", "fsType": "xfs",
                         "volumeAttributes":
                             { "storage.kubernetes.io/csiProvisionerIdentity": "bulkhead.csi.local-here" } },
                "mountOptions": ["noatime"],
                "nodeAffinity": { "required": { "nodeSelectorTerms": here } },
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "local",
                "volumeMode": "Filesystem",
            },
        });
        assert_eq!(described("Filesystem"), expected);
    }

    #[test]
    fn a_device_has_no_filesystem_and_is_not_mounted() {
        let block = described("Block");
        assert_eq!(block["spec"]["volumeMode"], "Block");
        assert!(block["spec"]["csi"].get("fsType").is_none() && block["spec"].get("mountOptions").is_none());
    }

    #[test]
    fn what_is_described_is_ours_and_nothing_else() {
        let ours = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut object = described("Filesystem");
            change(&mut object);
            own(&serde_json::from_value(object).unwrap(), &driver(), &place()).is_some()
        };
        let terms = "/spec/nodeAffinity/required/nodeSelectorTerms";
        assert!(ours(&|_| {}));
        assert!(ours(&|object| object["metadata"]["annotations"] = json!({})));
        assert!(!ours(&|object| object["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] = json!("x")));
        assert!(!ours(&|object| object["spec"]["csi"]["driver"] = json!("other.example.com")));
        assert!(!ours(&|object| object["spec"]["csi"]["volumeHandle"] = json!("../../etc")));
        assert!(!ours(&|object| *object.pointer_mut(terms).unwrap() = json!([])));
        let value = format!("{terms}/0/matchExpressions/0/values");
        assert!(!ours(&|object| *object.pointer_mut(&value).unwrap() = json!(["there"])));
        assert!(!ours(&|object| *object.pointer_mut(&value).unwrap() = json!(["here", "there"])));
        assert!(!ours(&|object| {
            object["spec"].as_object_mut().unwrap().remove("nodeAffinity");
        }));
    }

    #[test]
    fn elsewhere_is_where_another_node_is_named() {
        let elsewhere = |terms: serde_json::Value| {
            let mut object = described("Filesystem");
            object["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"] = terms;
            is_elsewhere(&serde_json::from_value(object).unwrap(), &place())
        };
        let term = |key: &str, value: &str| json!({ "matchExpressions": [{ "key": key, "operator": "In", "values": [value] }] });
        let (here, there) = (term("bulkhead.csi.local/node", "here"), term("bulkhead.csi.local/node", "there"));
        assert!(elsewhere(json!([there])));
        assert!(!elsewhere(json!([here])));
        assert!(!elsewhere(json!([there, here])));
        assert!(!elsewhere(json!([])));
        assert!(!elsewhere(json!([term("kubernetes.io/hostname", "there")])), "by a key that says nothing to us");
    }
}
