//! Whether a claim concerns this node, and how.

use bulkhead_model::objects::{claim, storage_class};
use bulkhead_model::volumes::Place;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, TypedObjectReference};
use k8s_openapi::api::storage::v1::StorageClass;

/// What this node does about a claim that has no volume yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing, or nothing yet.
    Ignore,
    /// It makes the volume.
    Provision,
    /// It competes with the other nodes for the claim.
    Compete,
    /// It leaves the claim to a volume populator, which also makes the volume.
    LeaveToPopulator,
}

/// What the node called `node`, at `place`, does about `claim` of `class`, whose provisioner is known to be ours.
pub fn decide(claim: &PersistentVolumeClaim, class: &StorageClass, node: &str, place: &Place) -> Decision {
    // A claim that is being deleted cannot be used.
    if claim::is_being_deleted(claim) || claim::persistent_volume(claim).is_some() {
        return Decision::Ignore;
    }
    let is_for_populator = claim_source(claim).is_some_and(is_for_populator);
    match claim::selected_node(claim) {
        Some(selected) if selected != node => Decision::Ignore,
        Some(_) if is_for_populator => Decision::LeaveToPopulator,
        Some(_) => Decision::Provision,
        None if is_for_populator => Decision::Ignore,
        None if storage_class::binds_immediately(class) && storage_class::allows(class, place) => Decision::Compete,
        None => Decision::Ignore,
    }
}

fn claim_source(claim: &PersistentVolumeClaim) -> Option<&TypedObjectReference> {
    claim.spec.as_ref()?.data_source_ref.as_ref()
}

/// Whether a data source is of a kind that populators serve: any but the two that provisioners serve.
fn is_for_populator(source: &TypedObjectReference) -> bool {
    let group = source.api_group.as_deref().unwrap_or_default();
    let is_claim = source.kind == "PersistentVolumeClaim" && group.is_empty();
    !is_claim && source.kind != "VolumeSnapshot"
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
}
