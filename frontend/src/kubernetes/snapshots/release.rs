//! The end of a snapshot: it is deleted, unless it is to be kept, and then its object may go.

use bulkhead_model::objects::names::is_uid;
use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use kube::ResourceExt;
use tracing::info;

use super::attempt::report;
use super::{status, write};
use crate::call_id;
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::unless_gone;
use crate::kubernetes::context::Context;
use crate::volumes::existing;

/// Deletes the snapshot called `handle`, if one is to be deleted, and lets `content` go.
///
/// # Errors
/// When it cannot be done now; an event says why.
pub async fn release(context: &Context, content: &VolumeSnapshotContent, handle: Option<&str>) -> Result<(), Failure> {
    let mut last = content.clone();
    if let Some(handle) = handle {
        if let Err(failure) = delete(context, content, handle).await {
            return Err(report(context, content, Reason::SnapshotDeleteError, failure));
        }
        // Others may hold the object for a while.
        if content.said_handle().is_some() {
            last = match write::status(context, content, status::deleted()).await {
                Err(failure) if failure.is_not_found() => return Ok(()),
                patched => patched?,
            };
        }
    }
    unless_gone(write::object(context, &last, status::let_go(&last)).await)
}

async fn delete(context: &Context, content: &VolumeSnapshotContent, handle: &str) -> Result<(), Failure> {
    if let Some(other) = other_that_needs(context, content, handle) {
        return Err(Failure::NotYet(format!(
            "VolumeSnapshotContent {other} names the same snapshot, {handle}: it will be deleted once no other object needs it; to keep it for {other}, set deletionPolicy of this object to Retain"
        )));
    }
    // An invalid id names no snapshot.
    let Ok(snapshot) = existing(handle) else { return Ok(()) };
    context.volumes.delete_snapshot(snapshot.clone()).await?;
    context.ledger.forget(&snapshot);
    context.capacity_changed.notify_one();
    info!(object = %content.name_any(), snapshot = handle, call = %call_id::current(), "snapshot deleted");
    Ok(())
}

/// Another object that names the same snapshot, and is not about to go with it.
fn other_that_needs(context: &Context, content: &VolumeSnapshotContent, handle: &str) -> Option<String> {
    let needs = |other: &VolumeSnapshotContent| {
        let is_going = other.is_being_deleted() && other.deletes_snapshot();
        other.uid() != content.uid() && !is_going && other.handle().as_deref() == Some(handle)
    };
    // It is named, or called after the uid of its VolumeSnapshot.
    let uid = handle.strip_prefix("snapshot-").filter(|uid| is_uid(uid));
    let other = match uid {
        Some(uid) => context.stores.contents.mentioning(uid).find(needs),
        None => context.stores.contents.all().find(needs),
    };
    other.map(|other| other.name_any())
}
