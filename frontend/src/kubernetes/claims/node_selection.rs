//! Writing which node a claim's volume is to be on.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::kubernetes::api::failure::{Failure, ask};
use crate::kubernetes::context::Context;
use crate::kubernetes::objects::claim;
use crate::kubernetes::objects::names::SELECTED_NODE;

/// Selects `node` for `claim`, or none, so that the scheduler chooses again.
///
/// # Errors
/// A conflict when somebody has changed the claim since it was read.
pub async fn select(context: &Context, claim: &PersistentVolumeClaim, node: Option<&str>) -> Result<(), Failure> {
    let patch = Patch::Merge(json!({ "metadata": {
        "resourceVersion": claim.resource_version(), "annotations": { SELECTED_NODE: node } } }));
    let (claims, name) = (context.claims_beside(claim), claim.name_any());
    let patched =
        ask("selecting a claim's node", claims.patch_metadata(&name, &PatchParams::default(), &patch)).await?;
    context.written.note(claim::uid(claim), patched.metadata.resource_version.as_deref());
    Ok(())
}
