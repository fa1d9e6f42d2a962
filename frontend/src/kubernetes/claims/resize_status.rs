//! What a claim's status says about its expansion: the fields that the control plane, the kubelet and quotas read
//! (Kubernetes 1.34, RecoverVolumeExpansionFailure).

use bulkhead_model::objects::names::NO_NODE_EXPANSION;
use bulkhead_model::objects::storage;
use bulkhead_model::volumes::Fault;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

use super::conditions::{absent, present};

/// How far an earlier attempt got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There was none.
    None,
    /// It was started, and may have expanded the volume already.
    Started,
    /// It cannot succeed.
    Infeasible,
}

/// Returns how far an earlier attempt got.
pub fn progress(claim: &PersistentVolumeClaim) -> Progress {
    let statuses = claim.status.as_ref().and_then(|status| status.allocated_resource_statuses.as_ref());
    match statuses.and_then(|statuses| statuses.get("storage")).map(String::as_str) {
        None => Progress::None,
        Some("ControllerResizeInfeasible" | "NodeResizeInfeasible") => Progress::Infeasible,
        Some(_) => Progress::Started,
    }
}

/// The size that the last attempt was for.
pub fn allocated_bytes(claim: &PersistentVolumeClaim) -> Option<u64> {
    storage::bytes(claim.status.as_ref()?.allocated_resources.as_ref())
}

/// Returns whether the claim already says that an expansion to `target` was tried and failed. `has_failed` is whether
/// this agent remembers that it failed for good.
pub fn is_target_of_failure(claim: &PersistentVolumeClaim, target: u64, has_failed: bool) -> bool {
    allocated_bytes(claim) == Some(target) && (has_failed || progress(claim) == Progress::Infeasible)
}

/// The patch for an expansion to `target` bytes that has started.
pub fn started(target: u64) -> Value {
    json!({
        "metadata": { "annotations": { NO_NODE_EXPANSION: null } },
        "status": {
            "allocatedResources": { "storage": storage::quantity(target) },
            "allocatedResourceStatuses": { "storage": "ControllerResizeInProgress" },
            "conditions": [
                present("Resizing", "", ""),
                absent("FileSystemResizePending"),
                absent("ControllerResizeError"),
                absent("NodeResizeError"),
            ],
        },
    })
}

/// The patch for a volume that has `size` bytes, with nothing left to do. `allocatedResources` remains: quotas count
/// it.
pub fn finished(size: u64) -> Value {
    json!({
        "metadata": { "annotations": { NO_NODE_EXPANSION: "true" } },
        "status": {
            "capacity": { "storage": storage::quantity(size) },
            "allocatedResourceStatuses": { "storage": null },
            "conditions": [
                absent("Resizing"),
                absent("FileSystemResizePending"),
                absent("ControllerResizeError"),
                absent("NodeResizeError"),
            ],
        },
    })
}

/// The patch for an expansion to `target` bytes that cannot succeed, because of `fault`. The owner may then request
/// less.
pub fn infeasible(target: u64, fault: &Fault) -> Value {
    json!({
        "status": {
            "allocatedResources": { "storage": storage::quantity(target) },
            "allocatedResourceStatuses": { "storage": "ControllerResizeInfeasible" },
            "conditions": [absent("Resizing"), present("ControllerResizeError", "", &fault.to_string())],
        },
    })
}

/// The patch for a started expansion that has failed, because of `fault`.
pub fn failed(fault: &Fault) -> Value {
    json!({ "status": { "conditions": [present("ControllerResizeError", "", &fault.to_string())] } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(allocated: &str, status: Option<&str>) -> PersistentVolumeClaim {
        let statuses = status.map(|status| json!({ "storage": status }));
        serde_json::from_value(json!({
            "status": { "allocatedResources": { "storage": allocated }, "allocatedResourceStatuses": statuses },
        }))
        .unwrap()
    }

    #[test]
    fn progress_of_every_status() {
        for (status, expected) in [
            (None, Progress::None),
            (Some("ControllerResizeInProgress"), Progress::Started),
            (Some("NodeResizePending"), Progress::Started),
            (Some("ControllerResizeInfeasible"), Progress::Infeasible),
            (Some("NodeResizeInfeasible"), Progress::Infeasible),
        ] {
            assert_eq!(progress(&claim("2Gi", status)), expected, "{status:?}");
        }
    }

    #[test]
    fn a_failure_is_repeated_only_with_the_same_target() {
        let (started, infeasible) = (Some("ControllerResizeInProgress"), Some("ControllerResizeInfeasible"));
        let two = 2 << 30;
        assert!(is_target_of_failure(&claim("2Gi", infeasible), two, false));
        assert!(!is_target_of_failure(&claim("3Gi", infeasible), two, false));
        assert!(!is_target_of_failure(&claim("2Gi", started), two, false));
        assert!(is_target_of_failure(&claim("2Gi", started), two, true));
    }

    #[test]
    fn nothing_is_left_of_a_finished_expansion() {
        let removed = |patch: &Value| -> Vec<String> {
            let conditions = patch["status"]["conditions"].as_array().unwrap();
            let removed = conditions.iter().filter(|condition| condition["$patch"] == "delete");
            removed.map(|condition| condition["type"].as_str().unwrap().to_owned()).collect()
        };
        let kinds = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];
        assert_eq!(removed(&finished(1)), kinds);
        assert_eq!(removed(&started(1)), kinds[1..]);
        assert!(finished(1)["status"].get("allocatedResources").is_none(), "quotas count what was allocated");
    }
}
