//! Deleting volumes that were released, and keeping those that are to be kept.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::controller::Action;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::{Failure, ask};
use crate::kubernetes::context::Context;
use crate::kubernetes::objects::names::FINALIZER;
use crate::kubernetes::objects::persistent_volume::{is_deleted_when_released, own, phase};

/// Does what the state of `object` asks for.
///
/// # Errors
/// When it cannot be done now.
pub async fn serve(context: &Context, object: &PersistentVolume) -> Result<Action, Failure> {
    let uid = object.uid().unwrap_or_default();
    if context.written.overtook(&uid, object.metadata.resource_version.as_deref()) {
        return Ok(Action::await_change());
    }
    // A volume that was to be deleted a while ago may be to be kept by now, and its watch may be late.
    let now = if context.attempts.has_failed(&uid) {
        let found = ask("reading a PersistentVolume", context.all_objects().get_opt(&object.name_any())).await?;
        match found.filter(|now| now.uid() == object.uid()) {
            Some(now) => Some(now),
            None => return Ok(Action::await_change()),
        }
    } else {
        None
    };
    let object = now.as_ref().unwrap_or(object);
    let Some(volume) = own(object, &context.driver, &context.place) else { return Ok(Action::await_change()) };
    let held = object.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    let going = object.metadata.deletion_timestamp.is_some();
    match (is_deleted_when_released(object), phase(object)) {
        // An object without our finalizer that is being deleted was taken out of our hands: its volume stays.
        (true, "Released") if held || !going => {
            if let Err(fault) = context.volumes.reclaim(volume.clone()).await {
                warn!(object = %object.name_any(), "not deleted: {fault}");
                context.events.tell(object, Reason::VolumeFailedDelete, fault.to_string());
                return Err(fault.into());
            }
            context.publisher.nudge();
            if !going {
                delete(context, object).await?;
            }
            if held {
                release(context, object).await?;
            }
            context.written.finish(&uid);
            info!(object = %object.name_any(), %volume, "deleted");
        }
        (true, "Bound") if !held && !going => {
            patch(context, object, json!({ "metadata": { "finalizers": [FINALIZER] } })).await?;
        }
        (false, _) if held => release(context, object).await?,
        _ => {}
    }
    Ok(Action::await_change())
}

async fn delete(context: &Context, object: &PersistentVolume) -> Result<(), Failure> {
    // Another object of that name is none of ours.
    let same = Preconditions { uid: object.uid(), resource_version: None };
    let parameters = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
    match ask("deleting a PersistentVolume", context.all_objects().delete(&object.name_any(), &parameters)).await {
        Ok(_) => Ok(()),
        Err(failure) if failure.is_not_found() => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Takes our finalizer off. Others may come and go meanwhile.
async fn release(context: &Context, object: &PersistentVolume) -> Result<(), Failure> {
    patch(context, object, json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": [FINALIZER] } })).await
}

async fn patch(context: &Context, object: &PersistentVolume, patch: Value) -> Result<(), Failure> {
    let (name, parameters) = (object.name_any(), PatchParams::default());
    let (objects, patch) = (context.all_objects(), Patch::Strategic(patch));
    match ask("writing a PersistentVolume's finalizers", objects.patch_metadata(&name, &parameters, &patch)).await {
        Ok(_) => Ok(()),
        Err(failure) if failure.is_not_found() => Ok(()),
        Err(failure) => Err(failure),
    }
}
