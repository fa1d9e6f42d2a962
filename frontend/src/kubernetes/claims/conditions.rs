//! The conditions of a claim's status, as parts of a patch.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

/// The condition that is there, with a reason if it is not empty.
pub fn present(kind: &str, reason: &str, message: &str) -> Value {
    let now = Timestamp::now().to_string();
    let reason = Some(reason).filter(|reason| !reason.is_empty());
    json!({ "type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message })
}

/// The condition that is not. They are merged by type, so each one to be removed is named.
pub fn absent(kind: &str) -> Value {
    json!({ "$patch": "delete", "type": kind })
}
