//! Selecting the node of a claim, as the scheduler does.

use bulkhead_model::objects::claim;
use bulkhead_model::objects::names::SELECTED_NODE;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::{if_unchanged, request};
use crate::kubernetes::context::Context;

/// Selects `node` for `claim`, or no node, so that the scheduler chooses again.
///
/// # Errors
/// A conflict when the claim has changed since it was read.
pub async fn select(context: &Context, claim: &PersistentVolumeClaim, node: Option<&str>) -> Result<(), Failure> {
    let patch = Patch::Merge(if_unchanged(claim, json!({ "metadata": { "annotations": { SELECTED_NODE: node } } })));
    let (claims, name, parameters) = (context.claims_beside(claim), claim.name_any(), PatchParams::default());
    let patched = request("selecting a claim's node", claims.patch_metadata(&name, &parameters, &patch)).await?;
    context.memory.record_written(claim::uid(claim), patched.metadata.resource_version.as_deref());
    Ok(())
}
