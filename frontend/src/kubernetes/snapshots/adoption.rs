//! Which node handles a VolumeSnapshotContent, where no snapshot controller says so: the one that has its volume.

use bulkhead_model::objects::snapshot_content::{Source, VolumeSnapshotContent};
use bulkhead_model::volumes::Fault;
use bulkhead_protocol::ErrorKind;
use kube::ResourceExt;
use tracing::info;

use super::{status, write};
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::volumes::existing;

/// Takes `content`, which no node has, if its volume or snapshot is on this one. Returns whether it is.
///
/// # Errors
/// A conflict when it has changed since it was read.
pub async fn adopt(context: &Context, content: &VolumeSnapshotContent) -> Result<bool, Failure> {
    if !is_here(context, content).await? {
        return Ok(false);
    }
    label(context, content).await?;
    info!(object = %content.name_any(), "this node handles the snapshot");
    Ok(true)
}

/// Gives `content` this node's labels.
///
/// # Errors
/// A conflict when it has changed since it was read.
pub async fn label(context: &Context, content: &VolumeSnapshotContent) -> Result<(), Failure> {
    write::object(context, content, status::adopted(&context.agent.place)).await.map(drop)
}

/// A volume is where its PersistentVolume is: one that was left behind on another node may have the same id. A snapshot
/// that somebody has named may have no other object.
async fn is_here(context: &Context, content: &VolumeSnapshotContent) -> Result<bool, Failure> {
    match content.source() {
        None => Ok(false),
        Some(Source::Volume(volume)) => Ok(context.volumes_named().any(|(own, _)| own.as_str() == volume)),
        Some(Source::Snapshot(handle)) => {
            let Ok(snapshot) = existing(handle) else { return Ok(false) };
            match context.volumes.snapshot(&snapshot).await {
                Ok(_) => Ok(true),
                Err(fault) if is_missing(&fault) => Ok(false),
                Err(fault) => Err(fault.into()),
            }
        }
    }
}

/// Returns whether there is no such snapshot here, or there can be none: a helper of an earlier release knows of none.
fn is_missing(fault: &Fault) -> bool {
    fault.is(ErrorKind::NotFound) || fault.is(ErrorKind::Unsupported)
}
