//! Making volumes for claims.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use kube::api::PostParams;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use tracing::{info, warn};

use super::node_selection::select;
use super::request::{Want, order, want};
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::{Failure, ask};
use crate::kubernetes::context::Context;
use crate::kubernetes::objects::claim;
use crate::kubernetes::objects::persistent_volume::{describe, own};
use crate::volumes::Provisioned;

/// Does what `claim`, which is not bound, wants of this node.
///
/// # Errors
/// When it cannot be done now; the claim's owner has been told where that helps.
pub async fn serve(context: &Context, claim: &PersistentVolumeClaim) -> Result<Action, Failure> {
    let known = ObjectRef::new(&claim::volume_name(claim));
    if claim::provisioner(claim) != Some(context.driver.as_str()) || context.objects.get(&known).is_some() {
        return Ok(Action::await_change());
    }
    let Some(name) = claim::class(claim) else { return Ok(Action::await_change()) };
    let Some(class) = context.classes.get(&ObjectRef::new(name)) else {
        // Every node sees a claim that has none; only the selected one is to tell.
        if claim::selected_node(claim) != Some(&context.node.name) {
            return Ok(Action::await_change());
        }
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
            Err(failure) if failure.is_of_this_node() => {
                let failure = told(context, claim, failure);
                give_back(context, claim, &class).await?;
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
    match fate(context, claim).await? {
        Fate::Wanted => {}
        Fate::Elsewhere => {
            context.unsettled.notify_one();
            return Ok(());
        }
        // Nobody will ever claim it: the object is there only so that the volume leaves in the ordinary way.
        Fate::Gone => {
            if let Some(spec) = &mut object.spec {
                spec.persistent_volume_reclaim_policy = Some("Delete".to_owned());
            }
        }
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

/// What became of a claim while its volume was made.
enum Fate {
    /// It waits for its volume.
    Wanted,
    /// It is gone, or about to go.
    Gone,
    /// It waits for one on another node.
    Elsewhere,
}

/// The watch knows of claims that are as they were; of all others the API server is asked, since a watch may lack what
/// is there.
async fn fate(context: &Context, claim: &PersistentVolumeClaim) -> Result<Fate, Failure> {
    let is_same = |now: &PersistentVolumeClaim| now.metadata.uid == claim.metadata.uid;
    let is_going = |now: &PersistentVolumeClaim| now.metadata.deletion_timestamp.is_some();
    let is_here = |now: &PersistentVolumeClaim| claim::selected_node(now) == Some(&context.node.name);
    let watched = context.claims.get(&ObjectRef::from_obj(claim));
    if watched.is_some_and(|now| is_same(&now) && is_here(&now) && !is_going(&now)) {
        return Ok(Fate::Wanted);
    }
    let claims = context.claims_beside(claim);
    Ok(match ask("reading a claim", claims.get_opt(&claim.name_any())).await? {
        Some(now) if is_same(&now) && !is_going(&now) => {
            if is_here(&now) {
                Fate::Wanted
            } else {
                Fate::Elsewhere
            }
        }
        _ => Fate::Gone,
    })
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
        if own(&there, &context.driver, &context.place).is_some() {
            return Ok(());
        }
        context.unsettled.notify_one();
        return Err(Failure::Refused(format!(
            "PersistentVolume {} of this claim is on another node: the volume that was made here goes",
            object.name_any()
        )));
    }
    Err(Failure::Refused(format!(
        "PersistentVolume {} exists and is for something else: delete it, if nobody uses it",
        object.name_any()
    )))
}

/// Lets the scheduler choose another node. What this node has room for is published first: the scheduler would choose
/// it again at once.
async fn give_back(context: &Context, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<(), Failure> {
    context.publisher.disprove(context, class, claim::requested(claim).unwrap_or_default()).await?;
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
