//! Takes snapshots and groups, and says what is known of those that exist.

use kube::ResourceExt;
use tracing::info;

use super::attempt::{report_in_object, succeeded};
use super::kind::Kind;
use super::{status, write};
use crate::call_id;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;

/// Takes what is to be called `name`, or finds it, and says so.
///
/// # Errors
/// When it cannot be done now; the object says why.
pub async fn take<K: Kind>(context: &Context, content: &K, name: &str) -> Result<(), Failure> {
    let reason = K::REASONS.creation_failed;
    if let Err(failure) = content.check(context).await {
        return Err(report_in_object(context, content, reason, failure).await);
    }
    // Before everything else: whoever wants to delete the object now waits for what becomes of it.
    let begun = match content.is_being_created() {
        true => content.clone(),
        false => write::object(context, content, status::begun::<K>()).await?,
    };
    match content.take(context, name).await {
        Ok(taken) => {
            let ready = write::status(context, &begun, taken).await?;
            succeeded(context, &begun);
            let volumes = content.wanted();
            info!(object = %content.name_any(), name, volumes, call = %call_id::current(), "{} taken", K::CALLED);
            settle(context, &ready).await
        }
        Err(failure) => Err(report_in_object(context, &begun, reason, failure).await),
    }
}

/// Says what is known of what is called `handle`, which somebody says has been taken.
///
/// # Errors
/// When there is none on this node; the object says so.
pub async fn describe<K: Kind>(context: &Context, content: &K, handle: &str) -> Result<(), Failure> {
    match content.find(context, handle).await {
        Ok(found) => {
            write::status(context, content, found).await?;
            succeeded(context, content);
            info!(object = %content.name_any(), handle, "found the {}", K::CALLED);
            Ok(())
        }
        Err(failure) => Err(report_in_object(context, content, K::REASONS.check_failed, failure).await),
    }
}

/// Says that no attempt is in progress any more.
///
/// # Errors
/// When the API server does not accept it.
pub async fn settle<K: Kind>(context: &Context, content: &K) -> Result<(), Failure> {
    write::object(context, content, status::settled::<K>()).await.map(drop)
}
