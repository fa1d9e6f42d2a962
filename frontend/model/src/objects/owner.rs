//! What a PersistentVolume says about whose its volume is, as it is recorded on the volume; and whether it may say so.

use bulkhead_protocol::OwnerRecord;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;

use super::persistent_volume::{self, is_of_agents_form};
use crate::owner::{
    ATTRIBUTES, CLAIM, CLAIM_UID, CLASS, CLUSTER, FILESYSTEM, Keys, MODES, MOUNT_OPTIONS, OBJECT, OBJECT_UID, RECLAIM,
    write,
};
use crate::volumes::Place;

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
    // By the first of them it is judged who may change the record.
    let others = [
        (RECLAIM, text(&spec.persistent_volume_reclaim_policy)),
        (CLAIM_UID, text(&claim.uid)),
        (OBJECT_UID, text(&object.metadata.uid)),
        (CLUSTER, cluster.unwrap_or_default().to_owned()),
        (CLASS, text(&spec.storage_class_name)),
        (MODES, modes),
        (ATTRIBUTES, text(&spec.volume_attributes_class_name)),
        (FILESYSTEM, filesystem),
        (MOUNT_OPTIONS, options),
    ];
    let others = others.iter().map(|(key, value)| (*key, value.as_str()));
    write([(CLAIM, full_name.as_str()), (OBJECT, name.as_str())].into_iter().chain(others)).ok()
}

/// Why an object decides nothing about a volume. It is said of the volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Objection {
    /// It is another's.
    #[error("belongs to claim {claim} with uid {uid} and PersistentVolume {object} with uid {of}")]
    Another {
        /// The claim, as `NAMESPACE/NAME`.
        claim: String,
        /// The claim's uid.
        uid: String,
        /// The PersistentVolume's name.
        object: String,
        /// The PersistentVolume's uid.
        of: String,
    },
    /// It is of the cluster with this uid.
    #[error("belongs to the cluster {0}")]
    AnotherCluster(String),
    /// It is kept once its claim is gone.
    #[error("is kept, by its reclaim policy Retain")]
    Kept,
}

/// Returns why `object`, at `place` in the cluster with that uid, may neither delete a volume on which `noted` is noted
/// nor change the note. Whoever has an agent's token can make an object of the agents' form for any volume of the node;
/// such a one is believed only if it says what is noted, or is the very object that the note is about, which only an
/// administrator can have changed. What anybody else has made is believed.
pub fn objection(noted: &Keys, object: &PersistentVolume, place: &Place, cluster: Option<&str>) -> Option<Objection> {
    let said = |key: &str| noted.get(key).map(String::as_str);
    if !is_of_agents_form(object, place) || said(OBJECT_UID) == Some(persistent_volume::uid(object)) {
        return None;
    }
    if let Some(other) = said(CLUSTER).filter(|noted| cluster.is_some_and(|own| own != *noted)) {
        return Some(Objection::AnotherCluster(other.to_owned()));
    }
    let spec = object.spec.as_ref()?;
    let claim = spec.claim_ref.as_ref()?;
    let full_name = format!("{}/{}", claim.namespace.as_deref()?, claim.name.as_deref()?);
    let is_same = said(CLAIM) == Some(&full_name)
        && said(CLAIM_UID) == claim.uid.as_deref()
        && said(OBJECT) == object.metadata.name.as_deref();
    let another = || {
        let text = |key: &str| said(key).unwrap_or("unknown").to_owned();
        Objection::Another { claim: text(CLAIM), uid: text(CLAIM_UID), object: text(OBJECT), of: text(OBJECT_UID) }
    };
    if !is_same {
        return Some(another());
    }
    // One that was made anew is believed once it is bound: its claim is there then, which the token cannot make.
    if said(OBJECT_UID).is_some() && persistent_volume::phase(object) != "Bound" {
        return Some(another());
    }
    let is_kept = |policy: Option<&str>| policy == Some("Retain");
    let is_to_go = is_kept(said(RECLAIM)) && !is_kept(spec.persistent_volume_reclaim_policy.as_deref());
    is_to_go.then_some(Objection::Kept)
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use serde_json::{Value, json};

    use super::*;
    use crate::owner::read;

    fn object() -> Value {
        json!({
            "metadata": { "name": "pvc-u.here", "uid": "o" },
            "spec": {
                "accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "storageClassName": "fast",
                "persistentVolumeReclaimPolicy": "Retain", "volumeAttributesClassName": "gold",
                "mountOptions": ["noatime", "noexec"],
                "csi": { "driver": "d", "volumeHandle": "pvc-u", "fsType": "xfs" },
                "claimRef": { "namespace": "shop", "name": "data", "uid": "u" },
            },
            "status": { "phase": "Bound" },
        })
    }

    fn recorded(object: &Value) -> Option<OwnerRecord> {
        record(&serde_json::from_value(object.clone()).unwrap(), Some("c"))
    }

    #[test]
    fn everything_that_an_adopted_object_needs_is_noted() {
        let mut object = object();
        assert_eq!(
            recorded(&object).unwrap().as_str(),
            "bulkhead-owner=1\nclaim=shop/data\npv=pvc-u.here\nreclaim=Retain\nclaim-uid=u\npv-uid=o\ncluster=c\n\
             class=fast\nmodes=ReadWriteOnce,ReadOnlyMany\nattributes=gold\nfstype=xfs\n\
             mount-options=noatime,noexec\n"
        );
        object["spec"]["claimRef"] = json!(null);
        assert_eq!(recorded(&object), None);
    }

    #[test]
    fn what_judges_is_noted_however_long_the_names_are() {
        let mut object = object();
        let (longest, uid) = ("n".repeat(253), "0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a111");
        object["metadata"] = json!({ "name": longest, "uid": uid });
        object["spec"]["claimRef"] = json!({ "namespace": "n".repeat(63), "name": longest, "uid": uid });
        object["spec"]["storageClassName"] = json!(longest);
        let record = record(&serde_json::from_value(object).unwrap(), Some(uid)).unwrap();
        let keys = read(record.as_str()).unwrap();
        assert!([CLAIM, OBJECT, RECLAIM, CLAIM_UID, OBJECT_UID, CLUSTER].iter().all(|key| keys.contains_key(*key)));
    }

    /// Returns what a note that was made of [`object`] with one set of changes says against another one.
    fn judged(noted: &[(&str, Value)], asking: &[(&str, Value)]) -> Option<Objection> {
        let changed = |changes: &[(&str, Value)]| {
            let mut object = object();
            for (pointer, value) in changes {
                *object.pointer_mut(pointer).unwrap() = value.clone();
            }
            object
        };
        let noted = read(recorded(&changed(noted)).unwrap().as_str()).unwrap();
        let place = Place::new(&"bulkhead.csi.local".parse().unwrap(), "here");
        objection(&noted, &serde_json::from_value(changed(asking)).unwrap(), &place, Some("c"))
    }

    const UID: &str = "/metadata/uid";
    const NAME: &str = "/metadata/name";
    const POLICY: &str = "/spec/persistentVolumeReclaimPolicy";
    const CLAIMED: &str = "/spec/claimRef/uid";

    #[test]
    fn an_object_that_an_agent_may_have_made_is_believed_only_if_it_says_what_is_noted() {
        let (new, to_go) = ((UID, json!("p")), (POLICY, json!("Delete")));
        assert_eq!(judged(&[], &[]), None);
        assert_eq!(judged(&[], from_ref(&new)), None);
        assert_eq!(judged(from_ref(&to_go), &[new.clone(), to_go.clone()]), None);
        assert_eq!(judged(&[], &[new.clone(), to_go.clone()]), Some(Objection::Kept));
        assert_eq!(judged(&[], &[new.clone(), (POLICY, json!("Recycle"))]), Some(Objection::Kept));
        for noted in [(CLAIMED, json!("v")), ("/spec/claimRef/name", json!("other")), (NAME, json!("pvc-u"))] {
            let judged = judged(&[noted.clone(), to_go.clone()], &[new.clone(), to_go.clone()]);
            assert!(matches!(judged, Some(Objection::Another { .. })), "{noted:?}: {judged:?}");
        }
        for phase in ["Available", "Released", "Failed"] {
            let judged = judged(from_ref(&to_go), &[new.clone(), to_go.clone(), ("/status/phase", json!(phase))]);
            assert!(matches!(judged, Some(Objection::Another { .. })), "{phase}: {judged:?}");
        }
        let keys = read("bulkhead-owner=1\nclaim=shop/data\npv=pvc-u.here\nclaim-uid=u\ncluster=d\n").unwrap();
        let place = Place::new(&"bulkhead.csi.local".parse().unwrap(), "here");
        let object = serde_json::from_value(object()).unwrap();
        let of_another = Some(Objection::AnotherCluster("d".to_owned()));
        assert_eq!(objection(&keys, &object, &place, Some("c")), of_another);
        assert_eq!(objection(&keys, &object, &place, None), None, "which cluster this is, is not known");
    }

    #[test]
    fn an_administrator_is_believed() {
        let to_go = (POLICY, json!("Delete"));
        assert_eq!(judged(&[], from_ref(&to_go)), None, "the policy was edited");
        let given = [(UID, json!("p")), (CLAIMED, json!("v")), to_go.clone()];
        assert_eq!(judged(&[], &given), None, "the volume was given to another claim");
        assert_eq!(judged(&given, &[(UID, json!("q")), (CLAIMED, json!("w")), to_go]), None, "and once more");
        assert_eq!(judged(&[], &[(UID, json!("p")), (NAME, json!("by-hand"))]), None);
    }
}
