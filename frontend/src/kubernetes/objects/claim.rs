//! What a claim says, wherever it says it.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::names::{CLASS_BETA, PROVISIONER, PROVISIONER_BETA, SELECTED_NODE};
use super::quantity::bytes;

/// Who is to provision the claim, once the control plane has said so.
pub fn provisioner(claim: &PersistentVolumeClaim) -> Option<&str> {
    let annotations = claim.annotations();
    annotations.get(PROVISIONER).or_else(|| annotations.get(PROVISIONER_BETA)).map(String::as_str)
}

/// The node that was selected for it.
pub fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.annotations().get(SELECTED_NODE).map(String::as_str).filter(|node| !node.is_empty())
}

/// Its storage class.
pub fn class(claim: &PersistentVolumeClaim) -> Option<&str> {
    let before_the_field = claim.annotations().get(CLASS_BETA).map(String::as_str);
    let field = || claim.spec.as_ref()?.storage_class_name.as_deref();
    before_the_field.or_else(field).filter(|class| !class.is_empty())
}

/// The volume it is bound to, or is to be bound to.
pub fn volume(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|volume| !volume.is_empty())
}

/// How many bytes it asks for.
pub fn requested(claim: &PersistentVolumeClaim) -> Option<u64> {
    bytes(claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage")?)
}

/// Whether it is for a block device.
pub fn is_block(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block")
}

/// Its uid. The API server gives every object one.
pub fn uid(claim: &PersistentVolumeClaim) -> &str {
    claim.metadata.uid.as_deref().unwrap_or_default()
}

/// The name of the volume that is made for it, in the API and in the pool.
pub fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", uid(claim))
}
