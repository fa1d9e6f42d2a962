//! Changes to a VolumeSnapshotContent, each made only if it has not changed since it was read.

use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::Value;

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::{if_unchanged, request};
use crate::kubernetes::context::Context;

/// Patches the object itself, and returns it as it is then.
///
/// # Errors
/// A conflict when it has changed.
pub async fn object(
    context: &Context,
    content: &VolumeSnapshotContent,
    patch: Value,
) -> Result<VolumeSnapshotContent, Failure> {
    let patch = Patch::Merge(if_unchanged(content, patch));
    let (contents, name, parameters) = (contents(context), content.name_any(), PatchParams::default());
    noted(context, request("changing a VolumeSnapshotContent", contents.patch(&name, &parameters, &patch)).await?)
}

/// Patches its status, and returns it as it is then.
///
/// # Errors
/// A conflict when it has changed.
pub async fn status(
    context: &Context,
    content: &VolumeSnapshotContent,
    patch: Value,
) -> Result<VolumeSnapshotContent, Failure> {
    let patch = Patch::Merge(if_unchanged(content, patch));
    let (contents, name, parameters) = (contents(context), content.name_any(), PatchParams::default());
    let patched = contents.patch_status(&name, &parameters, &patch);
    noted(context, request("writing a VolumeSnapshotContent's status", patched).await?)
}

fn contents(context: &Context) -> Api<VolumeSnapshotContent> {
    Api::all(context.client.clone())
}

fn noted(context: &Context, patched: VolumeSnapshotContent) -> Result<VolumeSnapshotContent, Failure> {
    context.memory.note_written(patched.uid(), patched.metadata.resource_version.as_deref());
    Ok(patched)
}
