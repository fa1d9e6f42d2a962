//! Whether a claim concerns this node, and how.

use bulkhead_model::objects::{claim, storage_class};
use bulkhead_model::volumes::Place;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;

use super::source::{is_left_to_populator, source};

/// What this node does about a claim that has no volume yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing, or nothing yet.
    Ignore,
    /// It makes the volume.
    Provision,
    /// It competes with the other nodes for the claim.
    Compete,
    /// It takes the claim if it has what the volume is to begin as a copy of, and no other node does.
    TakeIfHeld,
    /// It leaves the claim to a volume populator, which also makes the volume.
    LeaveToPopulator,
}

/// Returns what the node called `node`, at `place`, does about `claim` of `class`, whose provisioner is known to be
/// ours.
pub fn decide(claim: &PersistentVolumeClaim, class: &StorageClass, node: &str, place: &Place) -> Decision {
    // A claim that is being deleted cannot be used.
    if claim::is_being_deleted(claim) || claim::persistent_volume(claim).is_some() {
        return Decision::Ignore;
    }
    let is_for_populator = is_left_to_populator(claim);
    // A source that nobody can serve is refused by the node that gets the claim, whichever that is.
    let has_source = matches!(source(claim), Ok(Some(_)));
    match claim::selected_node(claim) {
        Some(selected) if selected != node => Decision::Ignore,
        Some(_) if is_for_populator => Decision::LeaveToPopulator,
        Some(_) => Decision::Provision,
        None if has_source => Decision::TakeIfHeld,
        None if is_for_populator => Decision::Ignore,
        None if storage_class::binds_immediately(class) && storage_class::allows(class, place) => Decision::Compete,
        None => Decision::Ignore,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kubernetes::claims::fixtures::{claim, class};

    fn decided(claim_changes: Value, class_changes: Value) -> Decision {
        let place = Place::new(&"bulkhead.csi.local".parse().unwrap(), "here");
        decide(&claim(claim_changes), &class(class_changes), "here", &place)
    }

    #[test]
    fn only_claims_with_this_node_selected() {
        assert_eq!(decided(json!({}), json!({})), Decision::Provision);
        let elsewhere = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": "there" } } });
        assert_eq!(decided(elsewhere, json!({})), Decision::Ignore);
        let undecided = json!({ "metadata": { "annotations": null } });
        assert_eq!(decided(undecided, json!({})), Decision::Ignore);
    }

    #[test]
    fn claims_that_are_bound_or_being_deleted() {
        assert_eq!(decided(json!({ "spec": { "volumeName": "pvc-1" } }), json!({})), Decision::Ignore);
        let going = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        assert_eq!(decided(going, json!({})), Decision::Ignore);
    }

    #[test]
    fn immediate_claims_are_for_every_node_that_may_have_them() {
        let undecided = || json!({ "metadata": { "annotations": null } });
        let immediate = |terms: Value| json!({ "volumeBindingMode": "Immediate", "allowedTopologies": terms });
        let term =
            |key: &str, value: &str| json!({ "matchLabelExpressions": [{ "key": key, "values": ["x", value] }] });
        assert_eq!(decided(undecided(), immediate(json!(null))), Decision::Compete);
        let here = term("bulkhead.csi.local/node", "here");
        assert_eq!(decided(undecided(), immediate(json!([term("zone", "a"), here]))), Decision::Compete);
        let there = term("bulkhead.csi.local/node", "there");
        assert_eq!(decided(undecided(), immediate(json!([there]))), Decision::Ignore);
    }

    #[test]
    fn sources_of_populators_are_left_to_them() {
        let source = |kind: &str, group: &str| json!({ "spec": { "dataSourceRef": { "kind": kind, "name": "s", "apiGroup": group } } });
        assert_eq!(decided(source("Hello", "hello.example.com"), json!({})), Decision::LeaveToPopulator);
        for (kind, group) in
            [("PersistentVolumeClaim", ""), ("VolumeSnapshot", "snapshot.storage.k8s.io"), ("VolumeSnapshot", "other")]
        {
            assert_eq!(decided(source(kind, group), json!({})), Decision::Provision, "{kind}");
        }
    }

    #[test]
    fn a_copy_is_for_the_node_of_its_source_however_its_class_binds() {
        for mode in ["Immediate", "WaitForFirstConsumer"] {
            let source = json!({ "kind": "PersistentVolumeClaim", "name": "s" });
            let claim = json!({ "metadata": { "annotations": null }, "spec": { "dataSourceRef": source } });
            assert_eq!(decided(claim, json!({ "volumeBindingMode": mode })), Decision::TakeIfHeld, "{mode}");
        }
    }
}
