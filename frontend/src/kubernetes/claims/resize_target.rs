//! Whether a claim requests an expansion, and to which size.

use bulkhead_model::objects::{claim, persistent_volume, storage};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use super::resize_status::{Progress, allocated_bytes, progress};

/// Returns whether the claim requests more than it has.
pub fn is_expansion_requested(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    let is_bound = status.and_then(|status| status.phase.as_deref()) == Some("Bound");
    let has = storage::bytes(status.and_then(|status| status.capacity.as_ref()));
    is_bound && !claim::is_being_deleted(claim) && has.is_some() && claim::requested_bytes(claim) > has
}

/// The size to try. An expansion that was started is finished first, even if less is requested by now: it may already
/// have been done. One that `has_failed` for good is not.
pub fn target(claim: &PersistentVolumeClaim, object: &PersistentVolume, has_failed: bool) -> u64 {
    let requested = claim::requested_bytes(claim).unwrap_or_default();
    let started = match progress(claim) {
        Progress::Started if !has_failed => allocated_bytes(claim).unwrap_or_default(),
        Progress::Started | Progress::None | Progress::Infeasible => 0,
    };
    let recorded = persistent_volume::capacity_bytes(object).unwrap_or_default();
    requested.max(started).max(recorded)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn gibibytes(requested: &str, allocated: Option<(&str, &str)>, recorded: &str) -> u64 {
        gibibytes_after(requested, allocated, recorded, false)
    }

    fn gibibytes_after(requested: &str, allocated: Option<(&str, &str)>, recorded: &str, has_failed: bool) -> u64 {
        let status = allocated.map(|(size, status)| {
            json!({ "allocatedResources": { "storage": size }, "allocatedResourceStatuses": { "storage": status } })
        });
        let claim = serde_json::from_value(json!({
            "spec": { "resources": { "requests": { "storage": requested } } }, "status": status,
        }));
        let object = serde_json::from_value(json!({ "spec": { "capacity": { "storage": recorded } } }));
        target(&claim.unwrap(), &object.unwrap(), has_failed) >> 30
    }

    #[test]
    fn a_started_expansion_is_finished() {
        assert_eq!(gibibytes("2Gi", None, "1Gi"), 2);
        assert_eq!(gibibytes("2Gi", Some(("4Gi", "ControllerResizeInProgress")), "1Gi"), 4);
        assert_eq!(gibibytes("8Gi", Some(("4Gi", "ControllerResizeInProgress")), "1Gi"), 8);
        assert_eq!(gibibytes("2Gi", Some(("4Gi", "ControllerResizeInfeasible")), "1Gi"), 2);
        assert_eq!(gibibytes("2Gi", None, "4Gi"), 4, "the volume was expanded already");
        let started = Some(("4Gi", "ControllerResizeInProgress"));
        assert_eq!(gibibytes_after("2Gi", started, "1Gi", true), 2, "one that failed for good is not");
    }

    #[test]
    fn only_bound_claims_that_request_more() {
        let is_requested = |requested: &str, has: Value, phase: &str| {
            is_expansion_requested(
                &serde_json::from_value(json!({
                    "spec": { "resources": { "requests": { "storage": requested } } },
                    "status": { "phase": phase, "capacity": has },
                }))
                .unwrap(),
            )
        };
        assert!(is_requested("2Gi", json!({ "storage": "1Gi" }), "Bound"));
        assert!(!is_requested("1Gi", json!({ "storage": "1Gi" }), "Bound"));
        assert!(!is_requested("1Gi", json!({ "storage": "1025Mi" }), "Bound"));
        assert!(!is_requested("2Gi", json!({ "storage": "1Gi" }), "Lost"));
        assert!(!is_requested("2Gi", Value::Null, "Bound"));
    }
}
