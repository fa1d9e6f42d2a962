//! A claim that has its volume: which one that is, and what is written about it.

use std::sync::Arc;

use bulkhead_model::objects::{claim, persistent_volume};
use bulkhead_protocol::VolumeId;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use kube::runtime::reflector::ObjectRef;
use serde_json::Value;

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::{if_unchanged, request};
use crate::kubernetes::context::Context;

/// The PersistentVolume of `claim` and the id of its volume, if that is on this node. The watch may not have reported it yet.
pub fn volume_of(context: &Context, claim: &PersistentVolumeClaim) -> Option<(PersistentVolume, VolumeId)> {
    let name = claim::persistent_volume(claim)?;
    let object = context.stores.persistent_volumes.get(&ObjectRef::new(name))?;
    let volume = persistent_volume::own_volume(&object, &context.agent.driver, &context.agent.place)?;
    let is_bound_to_claim = persistent_volume::claim_uid(&object) == Some(claim::uid(claim));
    is_bound_to_claim.then_some((object, volume))
}

/// Patches the claim's status, unless the claim has changed since it was read.
///
/// # Errors
/// A conflict when it has.
pub async fn write_status(
    context: &Context,
    claim: &PersistentVolumeClaim,
    patch: Value,
) -> Result<Arc<PersistentVolumeClaim>, Failure> {
    let patch = Patch::Strategic(if_unchanged(claim, patch));
    let (claims, name, parameters) = (context.claims_beside(claim), claim.name_any(), PatchParams::default());
    let patched = request("writing a claim's status", claims.patch_status(&name, &parameters, &patch)).await?;
    context.memory.record_written(claim::uid(claim), patched.metadata.resource_version.as_deref());
    Ok(Arc::new(patched))
}

/// Patches the PersistentVolume. `operation` names that in the failure.
///
/// # Errors
/// When the API server refuses it.
pub async fn write_volume(
    context: &Context,
    operation: &'static str,
    object: &PersistentVolume,
    patch: Value,
) -> Result<(), Failure> {
    let (objects, name, parameters) = (context.persistent_volumes(), object.name_any(), PatchParams::default());
    request(operation, objects.patch(&name, &parameters, &Patch::Strategic(patch))).await.map(drop)
}
