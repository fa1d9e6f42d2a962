//! The end of a snapshot or a group: it is deleted, unless it is to be kept, and then its object may go.

use kube::ResourceExt;
use tracing::info;

use super::attempt::report;
use super::kind::Kind;
use super::{status, write};
use crate::call_id;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::unless_gone;
use crate::kubernetes::context::Context;

/// Deletes what is called `handle`, if something is to be deleted, and lets `content` go.
///
/// # Errors
/// When it cannot be done now; an event says why.
pub async fn release<K: Kind>(context: &Context, content: &K, handle: Option<&str>) -> Result<(), Failure> {
    let mut last = content.clone();
    if let Some(handle) = handle {
        if let Err(failure) = content.delete(context, handle).await {
            return Err(report(context, content, K::REASONS.delete_failed, failure));
        }
        context.capacity_changed.notify_one();
        info!(object = %content.name_any(), handle, call = %call_id::current(), "{} deleted", K::CALLED);
        // Others may hold the object for a while.
        if content.said().handle.is_some() {
            last = match write::status(context, content, K::status_when_deleted()).await {
                Err(failure) if failure.is_not_found() => return Ok(()),
                patched => patched?,
            };
        }
    }
    unless_gone(write::object(context, &last, status::let_go(&last)).await)
}
