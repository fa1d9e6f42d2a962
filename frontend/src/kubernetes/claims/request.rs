//! From a claim to what is to be done about it. Nothing here asks anybody.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, TypedObjectReference};
use k8s_openapi::api::storage::v1::StorageClass;

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::objects::claim;
use crate::volumes::{Fault, Mode, NewVolume, Parameters, Place, SizeRange, mount_flags};

/// What a claim that has no volume yet wants of this node.
#[derive(Debug)]
pub enum Want {
    /// Nothing, or not yet.
    Nothing,
    /// A volume.
    Volume,
    /// A volume on whichever node takes it.
    AnyNode,
    /// Its contents come from somebody who also makes the volume.
    Populator,
}

/// What `claim` of `class` wants of the node called `node`. That its provisioner is ours, its caller has seen.
pub fn want(claim: &PersistentVolumeClaim, class: &StorageClass, node: &str, place: &Place) -> Want {
    // Nobody can use a claim that is being deleted.
    if claim.metadata.deletion_timestamp.is_some() || claim::volume(claim).is_some() {
        return Want::Nothing;
    }
    match claim::selected_node(claim) {
        Some(selected) if selected != node => Want::Nothing,
        Some(_) if foreign_source(claim).is_some() => Want::Populator,
        Some(_) => Want::Volume,
        None if binds_immediately(class) && allows(class, place) && foreign_source(claim).is_none() => Want::AnyNode,
        None => Want::Nothing,
    }
}

/// The volume that `claim` of `class` asks for.
///
/// # Errors
/// When it asks for something that cannot be had; the message is for the claim's owner.
pub fn order(claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<NewVolume, Failure> {
    let refused = |message: &str| Err(Failure::Refused(message.to_owned()));
    let Some(spec) = &claim.spec else { return refused("the claim is empty") };
    if spec.selector.is_some() {
        return refused("claim.spec.selector is not supported: volumes are made for their claims, not chosen");
    }
    if spec.volume_attributes_class_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return refused("claim.spec.volumeAttributesClassName is not supported: volumes have nothing to modify");
    }
    if let Some(source) = &spec.data_source_ref {
        return refused(&refused_source(source));
    }
    check_access_modes(spec.access_modes.as_deref().unwrap_or_default())?;
    let mode = if claim::is_block(claim) { Mode::Block } else { Mode::Directory };
    if mode == Mode::Directory {
        mount_flags(class.mount_options.iter().flatten().map(String::as_str))
            .map_err(|fault| in_class(class, &fault))?;
    }
    let Some(bytes) = claim::requested(claim) else {
        return refused("claim.spec.resources.requests.storage is no number of bytes that a volume can have");
    };
    let range = SizeRange::new(i64::try_from(bytes).unwrap_or(i64::MAX), 0)?;
    Ok(NewVolume { name: claim::volume_name(claim), mode, range, parameters: parameters(class)? })
}

/// The parameters of a class.
///
/// # Errors
/// When they are none that are known.
pub fn parameters(class: &StorageClass) -> Result<Parameters, Failure> {
    let pairs = class.parameters.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
    Parameters::parse(pairs).map_err(|fault| in_class(class, &fault))
}

/// Whether claims of `class` get their volumes before their pods have a node.
pub fn binds_immediately(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer")
}

fn in_class(class: &StorageClass, fault: &Fault) -> Failure {
    Failure::Refused(format!("storage class {}: {fault}", class.metadata.name.as_deref().unwrap_or_default()))
}

fn check_access_modes(modes: &[String]) -> Result<(), Failure> {
    let refused = |message: String| Err(Failure::Refused(message));
    match modes.iter().find(|mode| !matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod" | "ReadOnlyMany")) {
        _ if modes.is_empty() => refused("claim.spec.accessModes is empty".to_owned()),
        Some(mode) => refused(format!(
            "access mode {mode} is not supported: the volume is on one node; use ReadWriteOnce, ReadWriteOncePod or ReadOnlyMany"
        )),
        None => Ok(()),
    }
}

/// A data source of a kind that a volume populator serves.
fn foreign_source(claim: &PersistentVolumeClaim) -> Option<&TypedObjectReference> {
    let source = claim.spec.as_ref()?.data_source_ref.as_ref()?;
    let group = source.api_group.as_deref().unwrap_or_default();
    let common = source.kind == "VolumeSnapshot" || (source.kind == "PersistentVolumeClaim" && group.is_empty());
    (!common).then_some(source)
}

fn refused_source(source: &TypedObjectReference) -> String {
    format!(
        "claim.spec.dataSource: {} {} cannot be the source of a volume here: volumes begin empty; leave it out, and copy the data in a pod",
        source.kind, source.name
    )
}

/// Whether volumes of `class` may be here: one of its terms must hold, if it has any.
fn allows(class: &StorageClass, place: &Place) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    let (key, value) = (place.key(), place.value());
    terms.is_empty()
        || terms.iter().any(|term| {
            let requirements = term.match_label_expressions.as_deref().unwrap_or_default();
            requirements.iter().all(|wanted| wanted.key == key && wanted.values.iter().any(|allowed| allowed == value))
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn merged(base: Value, changes: Value) -> Value {
        match (base, changes) {
            (Value::Object(mut base), Value::Object(changes)) => {
                for (key, change) in changes {
                    let before = base.remove(&key).unwrap_or(Value::Null);
                    base.insert(key, merged(before, change));
                }
                Value::Object(base)
            }
            (_, changes) => changes,
        }
    }

    fn claim(changes: Value) -> PersistentVolumeClaim {
        let base = json!({
            "metadata": { "uid": "1", "annotations": { "volume.kubernetes.io/selected-node": "here" } },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
        });
        serde_json::from_value(merged(base, changes)).unwrap()
    }

    fn class(changes: Value) -> StorageClass {
        let base = json!({
            "metadata": { "name": "local" },
            "provisioner": "bulkhead.csi.local",
            "volumeBindingMode": "WaitForFirstConsumer",
        });
        serde_json::from_value(merged(base, changes)).unwrap()
    }

    fn wanted(claim_changes: Value, class_changes: Value) -> Want {
        let place = Place::new(&"bulkhead.csi.local".parse().unwrap(), "here");
        want(&claim(claim_changes), &class(class_changes), "here", &place)
    }

    fn refusal(claim_changes: Value, class_changes: Value) -> String {
        order(&claim(claim_changes), &class(class_changes)).unwrap_err().to_string()
    }

    #[test]
    fn only_claims_with_this_node_selected() {
        assert!(matches!(wanted(json!({}), json!({})), Want::Volume));
        let elsewhere = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": "there" } } });
        assert!(matches!(wanted(elsewhere, json!({})), Want::Nothing));
        let undecided = json!({ "metadata": { "annotations": null } });
        assert!(matches!(wanted(undecided, json!({})), Want::Nothing));
    }

    #[test]
    fn claims_that_are_served_or_going() {
        assert!(matches!(wanted(json!({ "spec": { "volumeName": "pvc-1" } }), json!({})), Want::Nothing));
        let going = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        assert!(matches!(wanted(going, json!({})), Want::Nothing));
    }

    #[test]
    fn immediate_claims_are_for_whoever_may_have_them() {
        let undecided = || json!({ "metadata": { "annotations": null } });
        let immediate = |terms: Value| json!({ "volumeBindingMode": "Immediate", "allowedTopologies": terms });
        let term =
            |key: &str, value: &str| json!({ "matchLabelExpressions": [{ "key": key, "values": ["x", value] }] });
        assert!(matches!(wanted(undecided(), immediate(json!(null))), Want::AnyNode));
        let here = term("bulkhead.csi.local/node", "here");
        assert!(matches!(wanted(undecided(), immediate(json!([term("zone", "a"), here]))), Want::AnyNode));
        let there = term("bulkhead.csi.local/node", "there");
        assert!(matches!(wanted(undecided(), immediate(json!([there]))), Want::Nothing));
    }

    #[test]
    fn populators_are_let_be() {
        let source = |kind: &str, group: &str| json!({ "spec": { "dataSourceRef": { "kind": kind, "name": "s", "apiGroup": group } } });
        assert!(matches!(wanted(source("Hello", "hello.example.com"), json!({})), Want::Populator));
        for (kind, group) in
            [("PersistentVolumeClaim", ""), ("VolumeSnapshot", "snapshot.storage.k8s.io"), ("VolumeSnapshot", "other")]
        {
            assert!(matches!(wanted(source(kind, group), json!({})), Want::Volume), "{kind}");
            assert!(refusal(source(kind, group), json!({})).contains(kind), "{kind}");
        }
    }

    #[test]
    fn what_is_asked_for() {
        let new = order(&claim(json!({})), &class(json!({ "parameters": { "pool": "fast" } }))).unwrap();
        assert_eq!((new.name.as_str(), new.mode), ("pvc-1", Mode::Directory));
        assert_eq!(new.range.choose().unwrap().get(), 1 << 30);
        let block = order(&claim(json!({ "spec": { "volumeMode": "Block" } })), &class(json!({}))).unwrap();
        assert_eq!(block.mode, Mode::Block);
    }

    #[test]
    fn what_cannot_be_had() {
        let modes = |modes: Value| json!({ "spec": { "accessModes": modes } });
        assert!(refusal(modes(json!(["ReadWriteOnce", "ReadWriteMany"])), json!({})).contains("ReadWriteMany"));
        assert!(refusal(modes(json!([])), json!({})).contains("accessModes"));
        order(&claim(modes(json!(["ReadOnlyMany", "ReadWriteOnce"]))), &class(json!({}))).unwrap();
        assert!(refusal(json!({ "spec": { "selector": {} } }), json!({})).contains("selector"));
        let attributes = json!({ "spec": { "volumeAttributesClassName": "gold" } });
        assert!(refusal(attributes, json!({})).contains("volumeAttributesClassName"));
        let nothing = json!({ "spec": { "resources": { "requests": { "storage": "much" } } } });
        assert!(refusal(nothing, json!({})).contains("requests.storage"));
    }

    #[test]
    fn a_wrong_class_is_named() {
        let unknown = refusal(json!({}), json!({ "parameters": { "colour": "red" } }));
        assert!(unknown.contains("storage class local") && unknown.contains("colour"), "{unknown}");
        let secret = json!({ "parameters": { "csi.storage.k8s.io/provisioner-secret-name": "s" } });
        assert!(refusal(json!({}), secret).contains("secret"));
        let options = json!({ "mountOptions": ["noatime", "discard"] });
        assert!(refusal(json!({}), options.clone()).contains("storage class local"));
        order(&claim(json!({ "spec": { "volumeMode": "Block" } })), &class(options)).unwrap();
    }
}
