//! Claims and classes for unit tests.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

/// `base` with `changes` applied, field by field.
pub fn merged(base: Value, changes: Value) -> Value {
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

/// A claim that this node, `here`, has to serve, with `changes` applied.
pub fn claim(changes: Value) -> PersistentVolumeClaim {
    let base = json!({
        "metadata": { "uid": "1", "annotations": { "volume.kubernetes.io/selected-node": "here" } },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    serde_json::from_value(merged(base, changes)).unwrap()
}

/// A class of ours, with `changes` applied.
pub fn class(changes: Value) -> StorageClass {
    let base = json!({
        "metadata": { "name": "local" },
        "provisioner": "bulkhead.csi.local",
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    serde_json::from_value(merged(base, changes)).unwrap()
}
