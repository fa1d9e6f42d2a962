//! Changes to an object, each made only if it has not changed since it was read.

use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::Value;

use super::kind::Kind;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::{if_unchanged, request};
use crate::kubernetes::context::Context;

/// Patches the object itself, and returns it as it is then.
///
/// # Errors
/// A conflict when it has changed.
pub async fn object<K: Kind>(context: &Context, content: &K, patch: Value) -> Result<K, Failure> {
    let send = async |contents: Api<K>, name: &str, patch| contents.patch(name, &PatchParams::default(), &patch).await;
    patched(context, content, patch, "changing the object of a snapshot", send).await
}

/// Patches its status, and returns it as it is then.
///
/// # Errors
/// A conflict when it has changed.
pub async fn status<K: Kind>(context: &Context, content: &K, patch: Value) -> Result<K, Failure> {
    let send =
        async |contents: Api<K>, name: &str, patch| contents.patch_status(name, &PatchParams::default(), &patch).await;
    patched(context, content, patch, "writing the status of a snapshot's object", send).await
}

async fn patched<K: Kind>(
    context: &Context,
    content: &K,
    patch: Value,
    operation: &'static str,
    send: impl AsyncFnOnce(Api<K>, &str, Patch<Value>) -> kube::Result<K>,
) -> Result<K, Failure> {
    let patch = Patch::Merge(if_unchanged(content, patch));
    let (contents, name) = (Api::all(context.client.clone()), content.name_any());
    let patched = request(operation, send(contents, &name, patch)).await?;
    context.memory.record_written(patched.object_uid(), patched.meta().resource_version.as_deref());
    Ok(patched)
}
