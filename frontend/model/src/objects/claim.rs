//! Reading a PersistentVolumeClaim: each fact from wherever the claim states it.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::names::{BOUND, CLASS_BETA, PROVISIONER, PROVISIONER_BETA, SELECTED_NODE};
use super::storage;
use crate::volumes::Mode;

/// The provisioner that the control plane has assigned to the claim.
pub fn provisioner(claim: &PersistentVolumeClaim) -> Option<&str> {
    let annotations = claim.annotations();
    annotations.get(PROVISIONER).or_else(|| annotations.get(PROVISIONER_BETA)).map(String::as_str)
}

/// The node that has been selected for it.
pub fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.annotations().get(SELECTED_NODE).map(String::as_str).filter(|node| !node.is_empty())
}

/// The name of its storage class.
pub fn class(claim: &PersistentVolumeClaim) -> Option<&str> {
    let annotation = claim.annotations().get(CLASS_BETA).map(String::as_str);
    let field = || claim.spec.as_ref()?.storage_class_name.as_deref();
    annotation.or_else(field).filter(|class| !class.is_empty())
}

/// The name of the VolumeAttributesClass that says which attributes its volume is to have.
pub fn attributes_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_attributes_class_name.as_deref().filter(|class| !class.is_empty())
}

/// The name of the PersistentVolume that it is bound to, or is about to be bound to.
pub fn persistent_volume(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|volume| !volume.is_empty())
}

/// Returns whether the control plane has bound it for good.
pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.annotations().contains_key(BOUND)
}

/// Returns whether it is being deleted, although it may still be in use.
pub fn is_being_deleted(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.deletion_timestamp.is_some()
}

/// The size that it requests, in bytes.
pub fn requested_bytes(claim: &PersistentVolumeClaim) -> Option<u64> {
    storage::bytes(claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref())
}

/// Returns whether it requests a directory or a device.
pub fn mode(claim: &PersistentVolumeClaim) -> Mode {
    match claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) {
        Some("Block") => Mode::Block,
        _ => Mode::Directory,
    }
}

/// Its uid. The API server gives every object one.
pub fn uid(claim: &PersistentVolumeClaim) -> &str {
    claim.metadata.uid.as_deref().unwrap_or_default()
}

/// The name of the volume that is made for it, as its driver knows it.
pub fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", uid(claim))
}
