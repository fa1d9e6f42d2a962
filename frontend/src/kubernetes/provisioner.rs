//! Making volumes for claims.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use kube::api::PostParams;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use tracing::{info, warn};

use super::claim;
use super::context::Context;
use super::events::Reason;
use super::failure::{Failure, ask};
use super::order::{Want, order, want};
use super::selection::select;
use super::volume::describe;
use crate::volumes::Provisioned;

/// Does what `claim`, which is not bound, wants of this node.
///
/// # Errors
/// When it cannot be done now; the claim's owner has been told where that helps.
pub(super) async fn serve(context: &Context, claim: &PersistentVolumeClaim) -> Result<Action, Failure> {
    let known = ObjectRef::new(&claim::volume_name(claim));
    if claim::provisioner(claim) != Some(context.driver.as_str()) || context.objects.get(&known).is_some() {
        return Ok(Action::await_change());
    }
    let Some(name) = claim::class(claim) else { return Ok(Action::await_change()) };
    let Some(class) = context.classes.get(&ObjectRef::new(name)) else {
        return Err(told(context, claim, Failure::Refused(format!("storage class {name} does not exist"))));
    };
    if class.provisioner != context.driver.as_str() {
        return Ok(Action::await_change());
    }
    match want(claim, &class, &context.node.name, &context.place) {
        Want::Nothing => Ok(Action::await_change()),
        Want::AnyNode => context.contest.enter(context, claim, &class).await,
        Want::Populator => {
            let note = "the claim names a data source of another kind: a populator for it has to make the volume";
            context.events.tell(claim, Reason::Provisioning, note);
            Ok(Action::await_change())
        }
        Want::Volume => match provision(context, claim, &class).await {
            Ok(()) => Ok(Action::await_change()),
            Err(failure) if failure.is_no_space() => {
                let failure = told(context, claim, failure);
                give_back(context, claim).await?;
                info!(claim = %claim.name_any(), "given back to the scheduler: {failure}");
                Ok(Action::await_change())
            }
            Err(failure) => Err(told(context, claim, failure)),
        },
    }
}

async fn provision(context: &Context, claim: &PersistentVolumeClaim, class: &Arc<StorageClass>) -> Result<(), Failure> {
    let new = order(claim, class)?;
    let provisioned = context.volumes.provision(new).await?;
    context.publisher.nudge();
    let mut object = describe(&context.driver, &context.place, claim, class, &provisioned);
    if !is_still_wanted(context, claim)
        && let Some(spec) = &mut object.spec
    {
        // Nobody will ever claim it: the object is there only so that the volume leaves in the ordinary way.
        spec.persistent_volume_reclaim_policy = Some("Delete".to_owned());
    }
    match ask("creating a PersistentVolume", context.all_objects().create(&PostParams::default(), &object)).await {
        Ok(_) => {}
        // An earlier answer was lost, or the watch is late.
        Err(failure) if failure.is_already_exists() => verify(context, &object).await?,
        Err(failure) => {
            context.unsettled.notify_one();
            return Err(failure);
        }
    }
    let Provisioned { volume, size } = provisioned;
    info!(claim = %claim.name_any(), namespace = claim.namespace(), %volume, %size, "provisioned");
    context.events.tell(
        claim,
        Reason::ProvisioningSucceeded,
        format!("volume {volume} of {size} bytes is provisioned"),
    );
    Ok(())
}

/// Whether the watch still knows the claim.
fn is_still_wanted(context: &Context, claim: &PersistentVolumeClaim) -> bool {
    context.claims.get(&ObjectRef::from_obj(claim)).is_some_and(|now| now.metadata.uid == claim.metadata.uid)
}

/// Makes sure that the object that is there already is for this very volume.
async fn verify(context: &Context, object: &PersistentVolume) -> Result<(), Failure> {
    let there = ask("reading a PersistentVolume", context.all_objects().get(&object.name_any())).await?;
    let key = |object: &PersistentVolume| {
        let spec = object.spec.as_ref()?;
        let csi = spec.csi.as_ref()?;
        Some((csi.driver.clone(), csi.volume_handle.clone(), spec.claim_ref.as_ref()?.uid.clone()))
    };
    if key(&there) == key(object) {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "PersistentVolume {} exists and is for something else: delete it, if nobody uses it",
        object.name_any()
    )))
}

/// Lets the scheduler choose another node. What this node has room for is published first: the scheduler would choose
/// it again at once.
async fn give_back(context: &Context, claim: &PersistentVolumeClaim) -> Result<(), Failure> {
    context.publisher.publish_now(context).await?;
    select(context, claim, None).await
}

/// Tells the claim's owner of what concerns volumes; the API server's own troubles are the operator's.
fn told(context: &Context, claim: &PersistentVolumeClaim, failure: Failure) -> Failure {
    if matches!(failure, Failure::Refused(_) | Failure::Volume(_)) {
        warn!(claim = %claim.name_any(), namespace = claim.namespace(), "not provisioned: {failure}");
        context.events.tell(claim, Reason::ProvisioningFailed, failure.to_string());
    }
    failure
}
