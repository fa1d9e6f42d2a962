//! What a claim says about the attributes of its volume: which are wanted, and how far the attempt to have them got
//! (Kubernetes 1.34, VolumeAttributesClass; KEP-3751). Nothing here does any I/O.

use bulkhead_model::objects::claim;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

use super::conditions::{absent, present};

const MODIFYING: &str = "ModifyingVolume";
const FAILED: &str = "ModifyVolumeError";

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Nothing,
    /// The attempt has been withdrawn before it began: its owner is told so.
    Withdraw,
    /// The volume is to get the attributes of the class of this name.
    Modify(String),
}

/// Returns what is to be done next about `claim`. What was begun is finished first, even if something else is wanted by
/// now, because it may be done already; unless it has failed for good, as `has_failed` says of the class of a name.
pub fn next(claim: &PersistentVolumeClaim, has_failed: impl Fn(&str) -> bool) -> Next {
    let status = claim.status.as_ref();
    if status.and_then(|status| status.phase.as_deref()) != Some("Bound") || claim::is_being_deleted(claim) {
        return Next::Nothing;
    }
    let attempt = status.and_then(|status| status.modify_volume_status.as_ref());
    let begun = attempt.filter(|attempt| attempt.status == "InProgress");
    let begun = begun.and_then(|attempt| attempt.target_volume_attributes_class_name.as_deref());
    if let Some(begun) = begun.filter(|begun| !has_failed(begun)) {
        return Next::Modify(begun.to_owned());
    }
    let current = status.and_then(|status| status.current_volume_attributes_class_name.as_deref());
    match claim::attributes_class(claim) {
        None if has_condition(claim, MODIFYING) => Next::Withdraw,
        None => Next::Nothing,
        Some(wanted) if attempt.is_none() && current == Some(wanted) => Next::Nothing,
        Some(wanted) => Next::Modify(wanted.to_owned()),
    }
}

/// Returns whether the claim says already that it waits for the class called `target`.
pub fn is_waiting(claim: &PersistentVolumeClaim, target: &str) -> bool {
    let attempt = claim.status.as_ref().and_then(|status| status.modify_volume_status.as_ref());
    attempt.is_some_and(|attempt| {
        attempt.status == "Pending" && attempt.target_volume_attributes_class_name.as_deref() == Some(target)
    })
}

/// The patch for an attempt that waits for the class called `target`.
pub fn pending(target: &str) -> Value {
    json!({ "status": { "modifyVolumeStatus": attempt(target, "Pending") } })
}

/// The patch for an attempt that begins. This is written before the volume is touched: nobody may take the claim's other
/// class for what the volume has.
pub fn begun(target: &str) -> Value {
    let message = format!("Modifying volume to \"{target}\" is in progress.");
    json!({ "status": {
        "modifyVolumeStatus": attempt(target, "InProgress"),
        "conditions": [present(MODIFYING, "", &message)],
    } })
}

/// The patch for an attempt that has succeeded.
pub fn done(target: &str) -> Value {
    json!({ "status": {
        "currentVolumeAttributesClassName": target,
        "modifyVolumeStatus": null,
        "conditions": [absent(MODIFYING), absent(FAILED)],
    } })
}

/// The patch for an attempt that has failed, for a reason with this name and this message. One that is infeasible is never
/// going to succeed.
pub fn failed(target: &str, is_infeasible: bool, reason: &str, message: &str) -> Value {
    let progress = format!("Modifying volume to \"{target}\" failed. Waiting for retry.");
    json!({ "status": {
        "modifyVolumeStatus": attempt(target, if is_infeasible { "Infeasible" } else { "InProgress" }),
        "conditions": [present(FAILED, reason, message), present(MODIFYING, "", &progress)],
    } })
}

/// The patch for an attempt that has been withdrawn. What is said about the last one stays.
pub fn withdrawn() -> Value {
    json!({ "status": { "conditions": [absent(MODIFYING)] } })
}

fn has_condition(claim: &PersistentVolumeClaim, kind: &str) -> bool {
    let conditions = claim.status.as_ref().and_then(|status| status.conditions.as_deref());
    conditions.unwrap_or_default().iter().any(|condition| condition.type_ == kind)
}

fn attempt(target: &str, status: &str) -> Value {
    json!({ "targetVolumeAttributesClassName": target, "status": status })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next_of(wanted: Option<&str>, status: Value, has_failed: bool) -> Next {
        let mut claim = json!({ "spec": { "volumeAttributesClassName": wanted }, "status": { "phase": "Bound" } });
        claim["status"].as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
        next(&serde_json::from_value(claim).unwrap(), |_| has_failed)
    }

    fn modify(target: &str) -> Next {
        Next::Modify(target.to_owned())
    }

    #[test]
    fn what_differs_is_modified() {
        let current = json!({ "currentVolumeAttributesClassName": "gold" });
        assert_eq!(next_of(Some("gold"), current.clone(), false), Next::Nothing);
        assert_eq!(next_of(Some("silver"), current.clone(), false), modify("silver"));
        assert_eq!(next_of(Some("gold"), json!({}), false), modify("gold"));
        for none in [None, Some("")] {
            assert_eq!(next_of(none, current.clone(), false), Next::Nothing);
        }
        assert_eq!(next_of(Some("silver"), json!({ "phase": "Lost" }), false), Next::Nothing);
    }

    #[test]
    fn what_was_begun_is_finished_first() {
        let begun = |status: &str| json!({ "currentVolumeAttributesClassName": "gold", "modifyVolumeStatus": attempt("silver", status) });
        assert_eq!(next_of(Some("bronze"), begun("InProgress"), false), modify("silver"));
        assert_eq!(next_of(Some("bronze"), begun("InProgress"), true), modify("bronze"));
        assert_eq!(next_of(Some("bronze"), begun("Pending"), false), modify("bronze"));
        assert_eq!(next_of(Some("bronze"), begun("Infeasible"), false), modify("bronze"));
        assert_eq!(next_of(Some("gold"), begun("Infeasible"), false), modify("gold"), "the way back");
    }

    #[test]
    fn what_has_not_begun_can_be_withdrawn() {
        let mut status = failed("silver", true, "InvalidArgument", "no")["status"].clone();
        assert_eq!(next_of(None, status.clone(), false), Next::Withdraw);
        assert_eq!(next_of(Some(""), status.clone(), false), Next::Withdraw);
        status["conditions"] = json!([present(FAILED, "InvalidArgument", "no")]);
        assert_eq!(next_of(None, status, false), Next::Nothing, "it was said");
    }

    #[test]
    fn nothing_is_left_of_an_attempt_that_has_succeeded() {
        let patch = done("gold");
        assert!(patch["status"]["modifyVolumeStatus"].is_null());
        let removed = patch["status"]["conditions"].as_array().unwrap();
        assert!(removed.len() == 2 && removed.iter().all(|condition| condition["$patch"] == "delete"));
    }

    #[test]
    fn whoever_waits_is_told_once() {
        let claim = |status: Value| serde_json::from_value(json!({ "status": status })).unwrap();
        assert!(is_waiting(&claim(pending("gold")["status"].clone()), "gold"));
        assert!(!is_waiting(&claim(pending("silver")["status"].clone()), "gold"));
        assert!(!is_waiting(&claim(begun("gold")["status"].clone()), "gold"));
    }
}
