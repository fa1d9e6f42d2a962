//! Orphaned volumes: made for a claim, and then forgotten because the agent died or the API server failed at the wrong
//! time.
//!
//! A volume is deleted only when it is certain that nobody wants it: the claim that it was made for is gone, no
//! PersistentVolume names it (not even one for a node that is gone: it may have been renamed), and it has never been
//! published, so that nothing was ever written to it. The privileged helper judges the last of these.

use std::collections::HashSet;
use std::pin::pin;
use std::time::Duration;

use bulkhead_model::objects::names::is_uid;
use bulkhead_model::objects::{claim, persistent_volume};
use bulkhead_model::owner;
use bulkhead_protocol::{ErrorKind, VolumeId};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSINode;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use tokio::time::sleep;
use tracing::{info, warn};

use super::owners::{Noted, noted};
use crate::call_id::{current, numbered};
use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::pages::{list, list_metadata};
use crate::kubernetes::api::request::request;
use crate::kubernetes::context::Context;
use crate::volumes::Guard;

/// How long after a failure the comparison is tried again.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// How long to let work in progress finish before a requested comparison.
const SETTLING: Duration = Duration::from_secs(5);

/// Looks for orphaned volumes for as long as it is polled.
pub async fn run(context: &Context) {
    // Volumes that are kept, and were reported to the operator. Looking for their owners again would be pointless.
    let mut kept = HashSet::new();
    loop {
        sleep(SETTLING).await;
        context.forget_unknown_objects();
        let pause = match collect(context, &mut kept).await {
            Ok(()) => context.intervals.orphans,
            Err(failure) => {
                warn!("looking for orphaned volumes failed: {failure}");
                failure.retry_after().unwrap_or(AFTER_FAILURE)
            }
        };
        tokio::select! {
            () = sleep(pause + jitter(pause / 2)) => {}
            () = context.unnamed.suspected() => {}
        }
    }
}

async fn collect(context: &Context, kept: &mut HashSet<VolumeId>) -> Result<(), Failure> {
    for suspect in orphans(context, kept).await? {
        numbered(judge(context, kept, suspect)).await?;
    }
    Ok(())
}

/// Deletes a volume unless something says that it has to stay.
async fn judge(context: &Context, kept: &mut HashSet<VolumeId>, suspect: Suspect) -> Result<(), Failure> {
    let Suspect { volume, claim, _judging } = suspect;
    if is_wanted_now(context, &volume, claim.as_ref()).await? {
        return Ok(());
    }
    if let Some(why) = is_of_another_cluster(context, &volume).await? {
        warn!(%volume, "orphaned volume kept: {why}; bring it back with `kubectl bulkhead adopt`, or delete it by hand");
        kept.insert(volume);
        return Ok(());
    }
    let call = current();
    match context.volumes.discard(volume.clone()).await {
        Ok(()) => {
            info!(%volume, %call, "orphaned volume deleted: it was never used, and its claim is gone");
            context.ledger.forget(&volume);
            context.capacity_changed.notify_one();
        }
        Err(fault) if fault.is(ErrorKind::Refused) => {
            warn!(%volume, %call, "orphaned volume kept, though neither a claim nor a PersistentVolume knows it, since it may hold data: {fault}");
            kept.insert(volume);
        }
        Err(fault) => warn!(%volume, %call, "orphaned volume not deleted: {fault}"),
    }
    Ok(())
}

/// A volume that may be an orphan. While this exists, the agent makes no PersistentVolume for the volume, so that
/// whatever is listed from then on stays true as far as this agent's writes are concerned.
struct Suspect {
    volume: VolumeId,
    /// Its claim, if that exists but waits for another node.
    claim: Option<ObjectRef<PersistentVolumeClaim>>,
    _judging: Guard,
}

/// The volumes that no object in the API refers to, except those in `kept`.
///
/// First the volumes are listed, then claims, then PersistentVolumes: whatever is made in the meantime is made in this
/// order.
async fn orphans(context: &Context, kept: &HashSet<VolumeId>) -> Result<Vec<Suspect>, Failure> {
    let mut volumes = unwatched(context).await?;
    volumes.retain(|volume| !kept.contains(volume));
    if volumes.is_empty() {
        return Ok(Vec::new());
    }
    // Volumes that are being made right now become known a little later, without any request to the API server.
    sleep(SETTLING).await;
    let still_unwatched = unwatched(context).await?;
    volumes.retain(|volume| still_unwatched.contains(volume));
    let judged = |volume: VolumeId| {
        let judging = context.unnamed.try_enter(&volume)?;
        Some(Suspect { volume, claim: None, _judging: judging })
    };
    let mut suspects: Vec<_> = volumes.into_iter().filter_map(judged).collect();
    if !suspects.is_empty() {
        remove_claimed(context, &mut suspects).await?;
    }
    if !suspects.is_empty() {
        remove_named(context, &mut suspects).await?;
    }
    Ok(suspects)
}

/// Returns whether an object in the API needs `volume` at this moment: the lists may be minutes old, and others write
/// as well.
async fn is_wanted_now(
    context: &Context,
    volume: &VolumeId,
    claim: Option<&ObjectRef<PersistentVolumeClaim>>,
) -> Result<bool, Failure> {
    let mut names_of_objects =
        vec![volume.to_string(), persistent_volume::name_of(volume.as_str(), &context.agent.place)];
    // A claim that was gone when claims were listed never comes back: a new one would have another uid.
    if let Some(claim) = claim {
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(context.client.clone(), claim.namespace.as_deref().unwrap_or_default());
        let now = request("reading a claim", claims.get_opt(&claim.name)).await?;
        if let Some(now) = now.filter(|now| claim_uid(volume) == Some(claim::uid(now))) {
            if is_for_this_node(context, &now) {
                return Ok(true);
            }
            // That of a node which is gone is named after it.
            names_of_objects.extend(claim::persistent_volume(&now).map(str::to_owned));
        }
    }
    let objects = context.persistent_volumes();
    for name in names_of_objects {
        let now = request("reading a PersistentVolume", objects.get_opt(&name)).await?;
        if let Some(object) = now
            && (names(context, &object, volume) || is_left_behind(context, &object, volume).await?)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether `object` is bound to a claim and says that its volume is on a node that is gone: the node was
/// renamed, or its disk has moved here. On a node that exists it is another volume, made after the claim was given to
/// that node.
async fn is_left_behind(context: &Context, object: &PersistentVolume, volume: &VolumeId) -> Result<bool, Failure> {
    if !persistent_volume::is_of_driver(object, &context.agent.driver) || persistent_volume::phase(object) != "Bound" {
        return Ok(false);
    }
    let nodes: Api<CSINode> = Api::all(context.client.clone());
    for node in persistent_volume::nodes(object, &context.agent.place) {
        // It exists exactly as long as the Node object does.
        if request("reading a CSINode", nodes.get_opt(node)).await?.is_some() {
            return is_recorded(context, object, volume).await;
        }
    }
    info!(%volume, "volume kept: its PersistentVolume says that it is on a node that is gone");
    Ok(true)
}

/// Returns whether a note on the volume says that it belongs to `object`. A volume that was left behind when its claim
/// was given to another node has no note: it never had an object.
async fn is_recorded(context: &Context, object: &PersistentVolume, volume: &VolumeId) -> Result<bool, Failure> {
    let is_recorded = noted(context, volume).await?.get(owner::OBJECT) == Some(&object.name_any());
    if is_recorded {
        info!(%volume, "volume kept: a note on it says that it belongs to a PersistentVolume that is on another node");
    }
    Ok(is_recorded)
}

/// Returns why `volume` may belong to a cluster that this one has taken the place of: there its claim may have existed.
async fn is_of_another_cluster(context: &Context, volume: &VolumeId) -> Result<Option<String>, Failure> {
    let recorded = noted(context, volume).await?;
    if let Noted::Unreadable(why) = &recorded {
        return Ok(Some(format!("the note on it cannot be read ({why})")));
    }
    let Some(cluster) = context.cluster().await? else { return Ok(None) };
    let other = recorded.get(owner::CLUSTER).filter(|recorded| *recorded != cluster);
    Ok(other
        .map(|other| format!("a note on it says that it belongs to the cluster {other}, and this one is {cluster}")))
}

/// Volumes that were made for claims, but belong to no claim and no PersistentVolume that the agent watches.
async fn unwatched(context: &Context) -> Result<Vec<VolumeId>, Failure> {
    let watched = context.ids_named();
    let volumes = context.volumes.list_all().await?.into_iter().map(|listed| listed.volume);
    Ok(volumes.filter(|volume| claim_uid(volume).is_some() && !watched.contains(volume.as_str())).collect())
}

/// The volumes that no PersistentVolume names or is about to name. Unlike the search above, this one judges nothing: it
/// is for people.
pub async fn unnamed(context: &Context) -> Result<Vec<VolumeId>, Failure> {
    // In this order: whatever is made in the meantime gets its volume first.
    let volumes = context.volumes.list_all().await?;
    let claimed: HashSet<String> = context.stores.claims.all().map(|claim| claim::volume_name(&claim)).collect();
    let mut volumes: HashSet<VolumeId> = volumes
        .into_iter()
        .map(|listed| listed.volume)
        .filter(|volume| !claimed.contains(volume.as_str()) && context.unnamed.try_enter(volume).is_some())
        .collect();
    let mut objects = pin!(list("listing all PersistentVolumes", context.persistent_volumes(), None));
    while let Some(object) = objects.try_next().await? {
        volumes.retain(|volume| !names(context, &object, volume));
    }
    let mut volumes: Vec<_> = volumes.into_iter().collect();
    volumes.sort();
    Ok(volumes)
}

/// The PersistentVolume that names `volume`, as the API server has it now.
pub async fn named_by(context: &Context, volume: &VolumeId) -> Result<Option<PersistentVolume>, Failure> {
    let mut objects = pin!(list("listing all PersistentVolumes", context.persistent_volumes(), None));
    while let Some(object) = objects.try_next().await? {
        if names(context, &object, volume) {
            return Ok(Some(object));
        }
    }
    Ok(None)
}

/// Removes the volumes whose claims exist.
async fn remove_claimed(context: &Context, suspects: &mut Vec<Suspect>) -> Result<(), Failure> {
    let claims: Api<PersistentVolumeClaim> = Api::all(context.client.clone());
    let mut claims = pin!(list_metadata("listing all claims", claims, None));
    while let Some(partial) = claims.try_next().await? {
        let claim = PersistentVolumeClaim { metadata: partial.metadata, ..PersistentVolumeClaim::default() };
        let is_of_claim = |suspect: &Suspect| claim_uid(&suspect.volume) == Some(claim::uid(&claim));
        if is_for_this_node(context, &claim) {
            suspects.retain(|suspect| !is_of_claim(suspect));
        } else if let Some(suspect) = suspects.iter_mut().find(|suspect| is_of_claim(suspect)) {
            suspect.claim = Some(ObjectRef::from_obj(&claim));
        }
    }
    Ok(())
}

/// Removes the volumes that a PersistentVolume names.
async fn remove_named(context: &Context, suspects: &mut Vec<Suspect>) -> Result<(), Failure> {
    let mut objects = pin!(list("listing all PersistentVolumes", context.persistent_volumes(), None));
    while let Some(object) = objects.try_next().await? {
        suspects.retain(|suspect| !names(context, &object, &suspect.volume));
    }
    Ok(())
}

/// Returns whether `claim` may need a volume on this node. One that waits for another node has no use for it.
fn is_for_this_node(context: &Context, claim: &PersistentVolumeClaim) -> bool {
    claim::selected_node(claim).is_none_or(|node| node == context.agent.node.name)
}

/// Returns whether `object` is for `volume` of this node. One that is bound to another node is another volume, whatever
/// its name.
fn names(context: &Context, object: &PersistentVolume, volume: &VolumeId) -> bool {
    persistent_volume::named_volume(object, &context.agent.driver, &context.agent.place) == Some(volume.as_str())
}

/// The uid of the claim that the volume with that id was made for, if it was made for one.
fn claim_uid(volume: &VolumeId) -> Option<&str> {
    volume.as_str().strip_prefix("pvc-").filter(|uid| is_uid(uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_volumes_made_for_claims() {
        let uid = |id: &str| claim_uid(&id.parse().unwrap()).map(str::to_owned);
        let own = "0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a111";
        assert_eq!(uid(&format!("pvc-{own}")).as_deref(), Some(own));
        for foreign in ["pvc-1", "data", "pvc-0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a11g", "v-0d6f2a56"] {
            assert_eq!(uid(foreign), None, "{foreign}");
        }
    }
}
