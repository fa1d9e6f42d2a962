//! What a PersistentVolume says about whose its volume is, as it is recorded on the volume.

use bulkhead_protocol::OwnerRecord;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;

use crate::owner::{
    ATTRIBUTES, CLAIM, CLAIM_UID, CLASS, CLUSTER, FILESYSTEM, MODES, MOUNT_OPTIONS, OBJECT, RECLAIM, write,
};

/// The record for the volume of `object` in the cluster with that uid; `None` if the object is not for any claim.
pub fn record(object: &PersistentVolume, cluster: Option<&str>) -> Option<OwnerRecord> {
    let spec = object.spec.as_ref()?;
    let claim = spec.claim_ref.as_ref()?;
    let full_name = format!("{}/{}", claim.namespace.as_deref()?, claim.name.as_deref()?);
    let name = object.name_any();
    let joined = |list: &Option<Vec<String>>| list.as_deref().unwrap_or_default().join(",");
    let (modes, options) = (joined(&spec.access_modes), joined(&spec.mount_options));
    let text = |value: &'_ Option<String>| value.clone().unwrap_or_default();
    let filesystem = spec.csi.as_ref().map(|csi| text(&csi.fs_type)).unwrap_or_default();
    let others = [
        (CLASS, text(&spec.storage_class_name)),
        (MODES, modes),
        (RECLAIM, text(&spec.persistent_volume_reclaim_policy)),
        (CLUSTER, cluster.unwrap_or_default().to_owned()),
        (ATTRIBUTES, text(&spec.volume_attributes_class_name)),
        (CLAIM_UID, text(&claim.uid)),
        (FILESYSTEM, filesystem),
        (MOUNT_OPTIONS, options),
    ];
    let others = others.iter().map(|(key, value)| (*key, value.as_str()));
    write([(CLAIM, full_name.as_str()), (OBJECT, name.as_str())].into_iter().chain(others)).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn everything_that_an_adopted_object_needs_is_noted() {
        let mut object = json!({
            "metadata": { "name": "pvc-1.here" },
            "spec": {
                "accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "storageClassName": "fast",
                "persistentVolumeReclaimPolicy": "Delete", "volumeAttributesClassName": "gold",
                "mountOptions": ["noatime", "noexec"],
                "csi": { "driver": "d", "volumeHandle": "pvc-1", "fsType": "xfs" },
                "claimRef": { "namespace": "shop", "name": "data", "uid": "u" },
            },
        });
        let record = |object: &serde_json::Value| record(&serde_json::from_value(object.clone()).unwrap(), Some("c"));
        assert_eq!(
            record(&object).unwrap().as_str(),
            "bulkhead-owner=1\nclaim=shop/data\npv=pvc-1.here\nclass=fast\nmodes=ReadWriteOnce,ReadOnlyMany\n\
             reclaim=Delete\ncluster=c\nattributes=gold\nclaim-uid=u\nfstype=xfs\nmount-options=noatime,noexec\n"
        );
        object["spec"]["claimRef"] = json!(null);
        assert_eq!(record(&object), None);
    }
}
