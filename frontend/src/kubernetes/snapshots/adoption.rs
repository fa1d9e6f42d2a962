//! Which node handles an object, where no snapshot controller says so: the one that has its volume.

use kube::ResourceExt;
use tracing::info;

use super::kind::Kind;
use super::{status, write};
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;

/// Takes `content`, which no node has, if what it needs is on this one. Returns whether it is.
///
/// # Errors
/// A conflict when it has changed since it was read.
pub async fn adopt<K: Kind>(context: &Context, content: &K) -> Result<bool, Failure> {
    if !content.is_here(context).await? {
        return Ok(false);
    }
    label(context, content).await?;
    info!(object = %content.name_any(), "this node handles the {}", K::CALLED);
    Ok(true)
}

/// Gives `content` this node's labels.
///
/// # Errors
/// A conflict when it has changed since it was read.
pub async fn label<K: Kind>(context: &Context, content: &K) -> Result<(), Failure> {
    write::object(context, content, status::adopted(&context.agent.place)).await.map(drop)
}
