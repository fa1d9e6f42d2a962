//! PersistentVolumes: how ours are described, and which of those in the API are ours.

use std::collections::BTreeMap;

use bulkhead_protocol::{DriverName, VolumeId};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

use super::names::{DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, FINALIZER, PROVISIONED_BY, PROVISIONER_IDENTITY};
use super::{claim, node_affinity, storage};
use crate::volumes::{Mode, Place, Provisioned};

const FILESYSTEM_PARAMETER: &str = "csi.storage.k8s.io/fstype";

/// What an object of ours says of its volume, whoever makes it.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// The object's name.
    pub name: String,
    /// The volume's id on its node.
    pub handle: String,
    /// The volume's size.
    pub bytes: u64,
    /// Whether it is a block volume.
    pub block: bool,
    /// The access modes.
    pub modes: Option<Vec<String>>,
    /// The claim that it is reserved for.
    pub claim: ObjectReference,
    /// The storage class.
    pub class: Option<String>,
    /// The filesystem that the class names. A block volume has none.
    pub filesystem: Option<String>,
    /// The mount options. A block volume has none.
    pub mount_options: Option<Vec<String>>,
    /// What becomes of the volume once its claim is gone.
    pub policy: String,
    /// The class of volume attributes.
    pub attributes: Option<String>,
}

impl Description {
    /// The object, for a volume of `driver` at `place`.
    pub fn at(self, driver: &DriverName, place: &Place) -> PersistentVolume {
        let text = |text: &str| text.to_owned();
        PersistentVolume {
            metadata: ObjectMeta {
                name: Some(self.name),
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
                access_modes: self.modes,
                capacity: Some(BTreeMap::from([(text("storage"), storage::quantity(self.bytes))])),
                claim_ref: Some(self.claim),
                csi: Some(CSIPersistentVolumeSource {
                    driver: driver.to_string(),
                    volume_handle: self.handle,
                    fs_type: self.filesystem.filter(|_| !self.block),
                    volume_attributes: Some(BTreeMap::from([(
                        text(PROVISIONER_IDENTITY),
                        format!("{driver}-{}", place.value()),
                    )])),
                    ..CSIPersistentVolumeSource::default()
                }),
                mount_options: self.mount_options.filter(|_| !self.block),
                node_affinity: Some(node_affinity::require(place)),
                persistent_volume_reclaim_policy: Some(self.policy),
                storage_class_name: self.class,
                volume_attributes_class_name: self.attributes,
                volume_mode: Some(text(if self.block { "Block" } else { "Filesystem" })),
                ..PersistentVolumeSpec::default()
            }),
            status: None,
        }
    }
}

/// The object for the volume that was `provisioned` at `place` for `claim` of `class`.
pub fn describe(
    driver: &DriverName,
    place: &Place,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    provisioned: &Provisioned,
) -> PersistentVolume {
    let filesystem = class.parameters.as_ref().and_then(|parameters| parameters.get(FILESYSTEM_PARAMETER));
    let description = Description {
        name: name_of(&claim::volume_name(claim), place),
        handle: provisioned.volume.to_string(),
        bytes: provisioned.size.get(),
        block: claim::mode(claim) == Mode::Block,
        modes: claim.spec.as_ref().and_then(|spec| spec.access_modes.clone()),
        claim: ObjectReference { resource_version: claim.resource_version(), ..claim.object_ref(&()) },
        class: class.metadata.name.clone(),
        filesystem: filesystem.cloned(),
        mount_options: class.mount_options.clone(),
        policy: class.reclaim_policy.clone().unwrap_or_else(|| "Delete".to_owned()),
        attributes: claim::attributes_class(claim).map(str::to_owned),
    };
    description.at(driver, place)
}

/// The name of the object that is made for `volume` at `place`. A policy compares its end with the selected node when the
/// claim is bound. A node's name is a label's value here, so this is far shorter than a name may be. Objects of older
/// releases are called like the volume.
pub fn name_of(volume: &str, place: &Place) -> String {
    format!("{volume}.{}", place.value())
}

/// The id of its volume, if that is a volume of `driver` at `place` and nowhere else.
pub fn own_volume(object: &PersistentVolume, driver: &DriverName, place: &Place) -> Option<VolumeId> {
    let csi = object.spec.as_ref()?.csi.as_ref().filter(|csi| csi.driver == driver.as_str())?;
    let provisioner = object.annotations().get(PROVISIONED_BY).map_or(csi.driver.as_str(), String::as_str);
    let is_own = provisioner == driver.as_str() && node_affinity::is_only(object, place);
    if is_own { csi.volume_handle.parse().ok() } else { None }
}

/// The id of the volume that it names, if that may be one of `driver` at `place`. In doubt it is: whoever wants to delete
/// the volume must know everything that may need it.
pub fn named_volume<'a>(object: &'a PersistentVolume, driver: &DriverName, place: &Place) -> Option<&'a str> {
    let is_ours = is_of_driver(object, driver) && !node_affinity::is_elsewhere(object, place);
    volume_handle(object).filter(|_| is_ours)
}

/// The nodes on which it can be used, as values of the key of `place`.
pub fn nodes<'a>(object: &'a PersistentVolume, place: &'a Place) -> impl Iterator<Item = &'a str> {
    node_affinity::nodes(object, place)
}

/// Returns whether its volume is one of `driver`.
pub fn is_of_driver(object: &PersistentVolume, driver: &DriverName) -> bool {
    let csi = object.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    csi.is_some_and(|csi| csi.driver == driver.as_str())
}

/// The id that its driver knows its volume by, whatever driver that is.
pub fn volume_handle(object: &PersistentVolume) -> Option<&str> {
    Some(&object.spec.as_ref()?.csi.as_ref()?.volume_handle)
}

/// The uid of the claim that it is reserved for or bound to.
pub fn claim_uid(object: &PersistentVolume) -> Option<&str> {
    object.spec.as_ref()?.claim_ref.as_ref()?.uid.as_deref()
}

/// The claim that it is reserved for or bound to; `None` if no claim's uid is stated.
pub fn claim_reference(object: &PersistentVolume) -> Option<ObjectRef<PersistentVolumeClaim>> {
    let reference = object.spec.as_ref()?.claim_ref.as_ref()?;
    let uid = reference.uid.clone().filter(|uid| !uid.is_empty())?;
    let mut claim = ObjectRef::new(reference.name.as_deref()?).within(reference.namespace.as_deref()?);
    claim.extra.uid = Some(uid);
    Some(claim)
}

/// Returns whether it is called, and names its volume, as the policies demand of an object that an agent makes at `place`:
/// after its claim. Whoever has the agent's token may have made it. One of another form was made, or given to another
/// claim, by somebody else.
pub fn is_of_agents_form(object: &PersistentVolume, place: &Place) -> bool {
    let Some(uid) = claim_uid(object) else { return false };
    let volume = format!("pvc-{uid}");
    volume_handle(object) == Some(&volume) && object.metadata.name == Some(name_of(&volume, place))
}

/// The driver, volume and claim that it ties together. Two objects that agree in these are interchangeable.
pub fn binding(object: &PersistentVolume) -> Option<(&str, &str, Option<&str>)> {
    let spec = object.spec.as_ref()?;
    let csi = spec.csi.as_ref()?;
    Some((&csi.driver, &csi.volume_handle, spec.claim_ref.as_ref()?.uid.as_deref()))
}

/// The size that it states, in bytes.
pub fn capacity_bytes(object: &PersistentVolume) -> Option<u64> {
    storage::bytes(object.spec.as_ref()?.capacity.as_ref())
}

/// Its phase.
pub fn phase(object: &PersistentVolume) -> &str {
    object.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Returns whether its volume is deleted once it is released.
pub fn is_deleted_when_released(object: &PersistentVolume) -> bool {
    object.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) == Some("Delete")
}

/// Returns whether our finalizer keeps it.
pub fn has_finalizer(object: &PersistentVolume) -> bool {
    object.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// Returns whether it is being deleted, although a finalizer still keeps it.
pub fn is_being_deleted(object: &PersistentVolume) -> bool {
    object.metadata.deletion_timestamp.is_some()
}

/// Its uid. The API server gives every object one.
pub fn uid(object: &PersistentVolume) -> &str {
    object.metadata.uid.as_deref().unwrap_or_default()
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
                "name": "pvc-1.here",
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
    fn in_doubt_an_object_names_a_volume() {
        let named = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut object = described("Filesystem");
            change(&mut object);
            let object = serde_json::from_value(object).unwrap();
            named_volume(&object, &driver(), &place()).map(str::to_owned)
        };
        let values = "/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0/values";
        let own = Some("pvc-1".to_owned());
        assert_eq!(named(&|_| {}), own);
        assert_eq!(
            named(&|object| object["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] = json!("x")),
            own
        );
        assert_eq!(named(&|object| *object.pointer_mut(values).unwrap() = json!(["here", "there"])), own);
        assert_eq!(named(&|object| *object.pointer_mut(values).unwrap() = json!(["there"])), None);
        assert_eq!(named(&|object| object["spec"]["csi"]["driver"] = json!("other.example.com")), None);
    }

    #[test]
    fn what_an_agent_may_make_is_told_from_what_others_have_made() {
        let made = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut object = described("Filesystem");
            change(&mut object);
            is_of_agents_form(&serde_json::from_value(object).unwrap(), &place())
        };
        assert!(made(&|_| {}));
        assert!(!made(&|object| object["spec"]["claimRef"]["uid"] = json!("2")), "it was given to another claim");
        assert!(!made(&|object| object["spec"]["claimRef"]["uid"] = json!(null)));
        assert!(!made(&|object| object["metadata"]["name"] = json!("pvc-1")));
        assert!(!made(&|object| object["spec"]["csi"]["volumeHandle"] = json!("pvc-2")));
    }

    #[test]
    fn only_what_is_described_this_way_is_ours() {
        let ours = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut object = described("Filesystem");
            change(&mut object);
            own_volume(&serde_json::from_value(object).unwrap(), &driver(), &place()).is_some()
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
}
