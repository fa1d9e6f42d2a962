//! Takes snapshots, and says what is known of those that exist.

use bulkhead_model::objects::names::{is_object_name, shown};
use bulkhead_model::objects::snapshot_class::VolumeSnapshotClass;
use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use bulkhead_protocol::Snapshot;
use kube::{Api, ResourceExt};
use tracing::info;

use super::attempt::{report_in_object, succeeded};
use super::{status, write};
use crate::call_id;
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::request;
use crate::kubernetes::context::Context;
use crate::kubernetes::holdings::{charge_snapshot, note_snapshot, settle_snapshot};
use crate::volumes::existing;

/// Takes the snapshot of `volume` that is called `name`, or finds it, and says so.
///
/// # Errors
/// When it cannot be done now; the object says why.
pub async fn take(context: &Context, content: &VolumeSnapshotContent, volume: &str, name: &str) -> Result<(), Failure> {
    let reason = Reason::SnapshotCreationFailed;
    if let Err(failure) = check_class(context, content).await {
        return Err(report_in_object(context, content, reason, failure).await);
    }
    // Before everything else: whoever wants to delete the object now waits for what becomes of the snapshot.
    let begun = match content.is_being_created() {
        true => content.clone(),
        false => write::object(context, content, status::begun()).await?,
    };
    match snapshot_of(context, content, volume, name).await {
        Ok(snapshot) => finish(context, &begun, &snapshot).await,
        Err(failure) => Err(report_in_object(context, &begun, reason, failure).await),
    }
}

/// Says what is known of the snapshot called `handle`, which somebody says has been taken.
///
/// # Errors
/// When there is none on this node; the object says so.
pub async fn describe(context: &Context, content: &VolumeSnapshotContent, handle: &str) -> Result<(), Failure> {
    let found = async { Ok(context.volumes.snapshot(&existing(handle)?).await?) };
    match found.await {
        Ok(snapshot) => {
            write::status(context, content, status::ready(&snapshot)).await?;
            succeeded(context, content);
            info!(object = %content.name_any(), snapshot = handle, "found the snapshot");
            Ok(())
        }
        Err(failure) => {
            Err(report_in_object(context, content, Reason::SnapshotContentCheckandUpdateFailed, failure).await)
        }
    }
}

/// Says that no attempt is in progress any more.
///
/// # Errors
/// When the API server does not accept it.
pub async fn settle(context: &Context, content: &VolumeSnapshotContent) -> Result<(), Failure> {
    write::object(context, content, status::settled()).await.map(drop)
}

async fn snapshot_of(
    context: &Context,
    content: &VolumeSnapshotContent,
    volume: &str,
    name: &str,
) -> Result<Snapshot, Failure> {
    let volume = existing(volume)?;
    let charged = charge_snapshot(context, content, &volume, name).await?;
    let taken = context.volumes.create_snapshot(volume, name).await;
    let snapshot = settle_snapshot(context, charged, taken).await?;
    note_snapshot(context, content, &snapshot).await;
    context.capacity_changed.notify_one();
    Ok(snapshot)
}

async fn finish(context: &Context, content: &VolumeSnapshotContent, snapshot: &Snapshot) -> Result<(), Failure> {
    let Snapshot { snapshot: id, origin, .. } = snapshot;
    let ready = write::status(context, content, status::ready(snapshot)).await?;
    succeeded(context, content);
    info!(object = %content.name_any(), snapshot = %id, volume = %origin.source, call = %call_id::current(), "snapshot taken");
    settle(context, &ready).await
}

/// Checks that the object's class exists and asks for nothing that would have no effect.
async fn check_class(context: &Context, content: &VolumeSnapshotContent) -> Result<(), Failure> {
    let named = content.spec.volume_snapshot_class_name.as_deref();
    let Some(name) = named.filter(|name| is_object_name(name)) else {
        return Err(Failure::Refused("the content names no volumeSnapshotClassName".to_owned()));
    };
    let classes: Api<VolumeSnapshotClass> = Api::all(context.client.clone());
    let Some(class) = request("reading a VolumeSnapshotClass", classes.get_opt(name)).await? else {
        return Err(Failure::NotYet(format!("snapshot class {name} does not exist")));
    };
    if class.driver != context.agent.driver.as_str() {
        return Err(Failure::Refused(format!("snapshot class {name} is of another driver, {}", shown(&class.driver))));
    }
    class.flaw().map_or(Ok(()), |flaw| Err(Failure::Refused(flaw)))
}
