//! The volume that a claim requests. Nothing here does any I/O.

use bulkhead_model::objects::{claim, storage_class};
use bulkhead_model::volumes::{Mode, SizeRange};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use k8s_openapi::api::storage::v1::StorageClass;

use crate::kubernetes::api::failure::Failure;
use crate::volumes::NewVolume;

/// How many access modes a claim may list. There are four, but the API server lets them be repeated.
const MOST_ACCESS_MODES: usize = 16;

/// The volume that `claim` of `class` requests, whatever it is to begin as a copy of.
///
/// # Errors
/// When the request cannot be satisfied by any volume; the message is for the claim's owner.
pub fn requested_volume(claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<NewVolume, Failure> {
    let Some(spec) = &claim.spec else { return Err(refused("the claim has no spec")) };
    check_features(spec)?;
    check_access_modes(spec.access_modes.as_deref().unwrap_or_default())?;
    let mode = claim::mode(claim);
    if mode == Mode::Directory {
        storage_class::check_mount_options(class)?;
    }
    let Some(bytes) = claim::requested_bytes(claim) else {
        return Err(refused("claim.spec.resources.requests.storage is missing or not a valid size"));
    };
    let range = SizeRange::new(i64::try_from(bytes).unwrap_or(i64::MAX), 0)?;
    let parameters = storage_class::parameters(class)?;
    Ok(NewVolume { name: claim::volume_name(claim), mode, range, parameters, source: None })
}

/// Refuses what would affect the volume with other drivers but has no effect here.
fn check_features(spec: &PersistentVolumeClaimSpec) -> Result<(), Failure> {
    if spec.selector.is_some() {
        return Err(refused(
            "claim.spec.selector is not supported: a volume is made for each claim, not selected; remove it",
        ));
    }
    Ok(())
}

fn check_access_modes(modes: &[String]) -> Result<(), Failure> {
    match modes.iter().find(|mode| !matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod" | "ReadOnlyMany")) {
        _ if modes.is_empty() => Err(refused("claim.spec.accessModes is empty")),
        _ if modes.len() > MOST_ACCESS_MODES => {
            Err(refused("claim.spec.accessModes repeats the same modes too often: list each of them once"))
        }
        Some(mode) => Err(Failure::Refused(format!(
            "access mode {mode} is not supported: the volume is on one node; use ReadWriteOnce, ReadWriteOncePod or ReadOnlyMany"
        ))),
        None => Ok(()),
    }
}

fn refused(message: &str) -> Failure {
    Failure::Refused(message.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kubernetes::claims::fixtures::{claim, class};

    fn refusal(claim_changes: Value, class_changes: Value) -> String {
        requested_volume(&claim(claim_changes), &class(class_changes)).unwrap_err().to_string()
    }

    #[test]
    fn a_request() {
        let new = requested_volume(&claim(json!({})), &class(json!({ "parameters": { "pool": "fast" } }))).unwrap();
        assert_eq!((new.name.as_str(), new.mode), ("pvc-1", Mode::Directory));
        assert_eq!(new.range.choose(new.parameters.minimum_bytes(new.mode)).unwrap().get(), 1 << 30);
        let block = requested_volume(&claim(json!({ "spec": { "volumeMode": "Block" } })), &class(json!({}))).unwrap();
        assert_eq!(block.mode, Mode::Block);
    }

    #[test]
    fn refusals() {
        let modes = |modes: Value| json!({ "spec": { "accessModes": modes } });
        assert!(refusal(modes(json!(["ReadWriteOnce", "ReadWriteMany"])), json!({})).contains("ReadWriteMany"));
        assert!(refusal(modes(json!([])), json!({})).contains("accessModes"));
        let repeated = vec!["ReadWriteOnce"; MOST_ACCESS_MODES + 1];
        assert!(refusal(modes(json!(repeated)), json!({})).contains("accessModes"));
        requested_volume(&claim(modes(json!(["ReadOnlyMany", "ReadWriteOnce"]))), &class(json!({}))).unwrap();
        assert!(refusal(json!({ "spec": { "selector": {} } }), json!({})).contains("selector"));
        let nothing = json!({ "spec": { "resources": { "requests": { "storage": "much" } } } });
        assert!(refusal(nothing, json!({})).contains("requests.storage"));
    }

    #[test]
    fn an_invalid_class_is_named() {
        let unknown = refusal(json!({}), json!({ "parameters": { "colour": "red" } }));
        assert!(unknown.contains("storage class local") && unknown.contains("colour"), "{unknown}");
        let secret = json!({ "parameters": { "csi.storage.k8s.io/provisioner-secret-name": "s" } });
        assert!(refusal(json!({}), secret).contains("secret"));
        let options = json!({ "mountOptions": ["noatime", "discard"] });
        assert!(refusal(json!({}), options.clone()).contains("storage class local"));
        requested_volume(&claim(json!({ "spec": { "volumeMode": "Block" } })), &class(options)).unwrap();
    }
}
