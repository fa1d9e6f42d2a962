//! What a claim's status says of its growth: the fields that the control plane, the kubelet and quotas read
//! (Kubernetes 1.34, RecoverVolumeExpansionFailure).

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::kubernetes::objects::names::NO_NODE_EXPANSION;
use crate::kubernetes::objects::quantity::{bytes, quantity};
use crate::volumes::Fault;

/// How far an earlier attempt came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is none.
    None,
    /// It was begun, and may have grown the volume already.
    Begun,
    /// It could not be done.
    Infeasible,
}

/// How far an earlier attempt came.
pub fn progress(claim: &PersistentVolumeClaim) -> Progress {
    let statuses = claim.status.as_ref().and_then(|status| status.allocated_resource_statuses.as_ref());
    match statuses.and_then(|statuses| statuses.get("storage")).map(String::as_str) {
        None => Progress::None,
        Some("ControllerResizeInfeasible" | "NodeResizeInfeasible") => Progress::Infeasible,
        Some(_) => Progress::Begun,
    }
}

/// The size that the last attempt was for.
pub fn allocated(claim: &PersistentVolumeClaim) -> Option<u64> {
    bytes(claim.status.as_ref()?.allocated_resources.as_ref()?.get("storage")?)
}

/// A patch that says: a growth to `target` bytes has begun.
pub fn begun(target: u64) -> Value {
    json!({
        "metadata": { "annotations": { NO_NODE_EXPANSION: null } },
        "status": {
            "allocatedResources": { "storage": quantity(target) },
            "allocatedResourceStatuses": { "storage": "ControllerResizeInProgress" },
            "conditions": [
                condition("Resizing", ""),
                absent("FileSystemResizePending"),
                absent("ControllerResizeError"),
                absent("NodeResizeError"),
            ],
        },
    })
}

/// A patch that says: the volume has `size` bytes, and nothing is left to do. What was allocated stays: quotas go by it.
pub fn finished(size: u64) -> Value {
    json!({
        "metadata": { "annotations": { NO_NODE_EXPANSION: "true" } },
        "status": {
            "capacity": { "storage": quantity(size) },
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

/// A patch that says: a growth to `target` bytes cannot be done, because of `fault`. The owner may ask for less then.
pub fn infeasible(target: u64, fault: &Fault) -> Value {
    json!({
        "status": {
            "allocatedResources": { "storage": quantity(target) },
            "allocatedResourceStatuses": { "storage": "ControllerResizeInfeasible" },
            "conditions": [absent("Resizing"), condition("ControllerResizeError", &fault.to_string())],
        },
    })
}

/// A patch that says: the growth that was begun has failed, because of `fault`.
pub fn failed(fault: &Fault) -> Value {
    json!({ "status": { "conditions": [condition("ControllerResizeError", &fault.to_string())] } })
}

fn condition(kind: &str, message: &str) -> Value {
    json!({ "type": kind, "status": "True", "lastTransitionTime": Timestamp::now().to_string(), "message": message })
}

/// Conditions are merged by their type; one that is not there is as good as removed.
fn absent(kind: &str) -> Value {
    json!({ "$patch": "delete", "type": kind })
}
