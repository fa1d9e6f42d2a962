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
    let send = async |contents: Api<VolumeSnapshotContent>, name: &str, patch| {
        contents.patch(name, &PatchParams::default(), &patch).await
    };
    patched(context, content, patch, "changing a VolumeSnapshotContent", send).await
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
    let send = async |contents: Api<VolumeSnapshotContent>, name: &str, patch| {
        contents.patch_status(name, &PatchParams::default(), &patch).await
    };
    patched(context, content, patch, "writing a VolumeSnapshotContent's status", send).await
}

async fn patched(
    context: &Context,
    content: &VolumeSnapshotContent,
    patch: Value,
    operation: &'static str,
    send: impl AsyncFnOnce(Api<VolumeSnapshotContent>, &str, Patch<Value>) -> kube::Result<VolumeSnapshotContent>,
) -> Result<VolumeSnapshotContent, Failure> {
    let patch = Patch::Merge(if_unchanged(content, patch));
    let (contents, name) = (Api::all(context.client.clone()), content.name_any());
    let patched = request(operation, send(contents, &name, patch)).await?;
    context.memory.record_written(patched.uid(), patched.metadata.resource_version.as_deref());
    Ok(patched)
}
