//! The controller of PersistentVolumes: deletes volumes that were released, and keeps those that are to be kept.

use std::sync::Arc;

use bulkhead_model::objects::names::FINALIZER;
use bulkhead_model::objects::{claim, persistent_volume};
use bulkhead_model::owner::OBJECT_UID;
use bulkhead_model::volumes::{Fault, Outlook};
use bulkhead_protocol::VolumeId;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use super::names::Names;
use super::owners::Noted;
use super::{bound_claims, owners};
use crate::call_id;
use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::{if_unchanged, request, unless_gone};
use crate::kubernetes::context::{AgentIdentity, Context};
use crate::kubernetes::memory::Memory;
use crate::kubernetes::reconcile::{Action, Controller};

/// How old an object may be that is new.
const NEW: SignedDuration = SignedDuration::from_mins(10);

/// The controller.
pub struct Reclaimer {
    context: Arc<Context>,
    names: Names,
}

impl Controller for Reclaimer {
    type Object = PersistentVolume;

    fn memory(&self) -> &Memory {
        &self.context.memory
    }

    fn namespace(object: &PersistentVolume) -> String {
        persistent_volume::claim_reference(object).and_then(|claim| claim.namespace).unwrap_or_default()
    }

    async fn reconcile(&self, object: Arc<PersistentVolume>) -> Result<Action, Failure> {
        let Some(object) = self.current(object).await? else { return Ok(Action::await_change()) };
        self.serve(&object).await
    }
}

impl Reclaimer {
    /// For the PersistentVolumes of `context`'s node.
    pub fn new(context: Arc<Context>) -> Self {
        Self { context, names: Names::default() }
    }

    /// The object as it is now. A volume that was due for deletion a while ago may by now be one to keep, and the watch
    /// may not have reported that yet.
    async fn current(&self, object: Arc<PersistentVolume>) -> Result<Option<Arc<PersistentVolume>>, Failure> {
        if !self.context.memory.has_failed(persistent_volume::uid(&object)) {
            return Ok(Some(object));
        }
        let objects = self.context.persistent_volumes();
        let now = request("reading a PersistentVolume", objects.get_opt(&object.name_any())).await?;
        Ok(now.filter(|now| now.uid() == object.uid()).map(Arc::new))
    }

    async fn serve(&self, object: &PersistentVolume) -> Result<Action, Failure> {
        let AgentIdentity { driver, place, .. } = &self.context.agent;
        let Some(volume) = persistent_volume::own_volume(object, driver, place) else {
            return Ok(Action::await_change());
        };
        match self.settle(object, &volume).await {
            Err(Failure::Volume(fault)) if self.context.volumes.is_of_absent_pool(&fault) => {
                Ok(self.await_pool(object, &fault))
            }
            Ok(()) if persistent_volume::phase(object) == "Bound" => {
                bound_claims::have_watched(&self.context, object).await
            }
            settled => settled.map(|()| Action::await_change()),
        }
    }

    async fn settle(&self, object: &PersistentVolume, volume: &VolumeId) -> Result<(), Failure> {
        let has_finalizer = persistent_volume::has_finalizer(object);
        let is_being_deleted = persistent_volume::is_being_deleted(object);
        match (persistent_volume::is_deleted_when_released(object), persistent_volume::phase(object)) {
            // A user who deletes the object and removes our finalizer wants the volume to stay.
            (true, "Released") if has_finalizer || !is_being_deleted => {
                // Without a claim's uid it is not reserved any more: its phase is about to change.
                let Some(claim) = persistent_volume::claim_reference(object) else { return Ok(()) };
                self.refuse_if_claimed(object, &claim).await?;
                self.refuse_if_named(object, volume).await?;
                self.reclaim(object, volume).await?;
                if !is_being_deleted {
                    self.delete(object).await?;
                }
                if has_finalizer {
                    self.remove_finalizer(object).await?;
                }
                self.context.memory.finish(persistent_volume::uid(object));
                info!(object = %object.name_any(), %volume, call = %call_id::current(), "deleted");
                Ok(())
            }
            (true, "Bound") if !is_being_deleted => {
                if is_new(object) {
                    self.renew_note(object, volume).await;
                }
                if has_finalizer { Ok(()) } else { self.add_finalizer(object).await }
            }
            (false, _) if has_finalizer => {
                // From here on the object may go at once, and only the note then says that the volume is kept.
                match owners::note(&self.context, volume, object).await {
                    Ok(()) => {}
                    Err(Failure::Volume(fault)) if fault.outlook() == Outlook::Open => return Err(fault.into()),
                    Err(failure) => warn!(
                        object = %object.name_any(),
                        %volume,
                        "that the volume is kept has not been noted: {failure}"
                    ),
                }
                self.remove_finalizer(object).await
            }
            // It was never in use, or it is unknown whether it was. The volume stays; if it was never published, it is
            // deleted as an orphan.
            (true, "Available" | "Pending" | "Failed") if has_finalizer && is_being_deleted => {
                self.let_go(object).await
            }
            _ => Ok(()),
        }
    }

    /// Notes on the volume that `object` has taken the place of a former object, if it has: once it is released, what is noted
    /// of that one would keep the volume from being deleted. If this fails, it is noted with the others.
    async fn renew_note(&self, object: &PersistentVolume, volume: &VolumeId) {
        let uid = persistent_volume::uid(object);
        let Ok(Noted::Says(keys)) = owners::noted(&self.context, volume).await else { return };
        if keys.get(OBJECT_UID).is_none_or(|noted| noted == uid) {
            return;
        }
        if let Err(failure) = owners::note(&self.context, volume, object).await {
            debug!(object = %object.name_any(), %volume, "whose the volume is is noted later: {failure}");
        }
    }

    /// Fails if the claim that `object` was bound to still exists: whatever the object's phase says, its pods may need
    /// the volume.
    async fn refuse_if_claimed(
        &self,
        object: &PersistentVolume,
        claim: &ObjectRef<PersistentVolumeClaim>,
    ) -> Result<(), Failure> {
        let namespace = claim.namespace.as_deref().unwrap_or_default();
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.context.client.clone(), namespace);
        let now = request("reading a claim", claims.get_opt(&claim.name)).await?;
        let name = object.name_any();
        // Two nodes may have made one for the same claim, which has only one of them.
        let is_its_claim = |now: PersistentVolumeClaim| {
            now.metadata.uid == claim.extra.uid && claim::persistent_volume(&now).is_none_or(|of| of == name)
        };
        if !now.is_some_and(is_its_claim) {
            return Ok(());
        }
        let refusal = format!(
            "the volume is released, but its claim {namespace}/{} still exists: it will be deleted once the claim is gone",
            claim.name
        );
        Err(self.refuse(object, refusal))
    }

    /// Fails if another object names the same volume: it is in use there, or to be kept.
    async fn refuse_if_named(&self, object: &PersistentVolume, volume: &VolumeId) -> Result<(), Failure> {
        let Some(other) = self.names.other_than(&self.context, object, volume.as_str()).await? else { return Ok(()) };
        let refusal = format!(
            "PersistentVolume {other} names the same volume, {volume}: it will be deleted once no other object needs it; to keep it for {other}, set persistentVolumeReclaimPolicy of this object to Retain, and delete it"
        );
        Err(self.refuse(object, refusal))
    }

    /// Fails if a note on the volume says that it is another's, or kept: whoever has the agent's token can make an object
    /// for it.
    async fn refuse_if_noted(&self, object: &PersistentVolume, volume: &VolumeId) -> Result<(), Failure> {
        let objection = match owners::noted(&self.context, volume).await? {
            Noted::Nothing => None,
            Noted::Says(keys) => {
                owners::objection(&self.context, object, &keys).await?.map(|why| format!("says that it {why}"))
            }
            Noted::Unreadable(why) => Some(format!("may say that it is another's, but cannot be read ({why})")),
        };
        let Some(objection) = objection else { return Ok(()) };
        let refusal = format!(
            "a note on volume {volume} {objection}: it is not deleted for this object, which whoever has the agent's token may have made; set persistentVolumeReclaimPolicy of this object to Retain, and delete it; if nobody needs the volume, run `bulkheadctl volume delete {volume}` on its node"
        );
        Err(self.refuse(object, refusal))
    }

    fn refuse(&self, object: &PersistentVolume, refusal: String) -> Failure {
        warn!(object = %object.name_any(), "{refusal}");
        self.context.events.publish(object, Reason::VolumeFailedDelete, refusal.clone());
        Failure::NotYet(refusal)
    }

    /// Says that the volume is deleted later: it may be in a pool that this node may lack, and be there one day.
    fn await_pool(&self, object: &PersistentVolume, fault: &Fault) -> Action {
        let uid = persistent_volume::uid(object);
        if self.context.memory.with(uid, |entry| !std::mem::replace(&mut entry.waiting_reported, true)) {
            let note = format!(
                "the released volume may be in a pool that is absent, and is deleted once the pool is there: {fault}; if it never will be, take the pool out of the helper's configuration"
            );
            info!(object = %object.name_any(), "{note}");
            self.context.events.publish(object, Reason::VolumeDeleteWaiting, note);
        }
        let pause = self.context.intervals.absent_pool;
        Action::requeue(pause + jitter(pause / 4))
    }

    async fn reclaim(&self, object: &PersistentVolume, volume: &VolumeId) -> Result<(), Failure> {
        let deleted = async {
            self.refuse_if_noted(object, volume).await?;
            Ok(self.context.volumes.reclaim(volume.clone()).await?)
        };
        let deleted = deleted.await;
        match &deleted {
            Ok(()) => {
                self.context.ledger.forget(volume);
                self.context.capacity_changed.notify_one();
            }
            Err(Failure::Volume(fault)) if !self.context.volumes.is_of_absent_pool(fault) => {
                warn!(object = %object.name_any(), "cannot delete the released volume yet: {fault}");
                self.context.events.publish(object, Reason::VolumeFailedDelete, fault.to_string());
            }
            Err(_) => {}
        }
        deleted
    }

    async fn delete(&self, object: &PersistentVolume) -> Result<(), Failure> {
        // Another object of the same name is not ours.
        let same = Preconditions { uid: object.uid(), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
        let objects = self.context.persistent_volumes();
        unless_gone(request("deleting a PersistentVolume", objects.delete(&object.name_any(), &parameters)).await)
    }

    async fn add_finalizer(&self, object: &PersistentVolume) -> Result<(), Failure> {
        self.patch(object, json!({ "metadata": { "finalizers": [FINALIZER] } })).await
    }

    /// Removes our finalizer. Others may be added and removed in the meantime.
    async fn remove_finalizer(&self, object: &PersistentVolume) -> Result<(), Failure> {
        self.patch(object, json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": [FINALIZER] } })).await
    }

    /// Removes our finalizer, unless the object has changed since it was read: it may be in use by now.
    async fn let_go(&self, object: &PersistentVolume) -> Result<(), Failure> {
        let patch = json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": [FINALIZER] } });
        self.patch(object, if_unchanged(object, patch)).await?;
        warn!(object = %object.name_any(), "deleted before it was bound, or after it failed: its volume is kept");
        Ok(())
    }

    async fn patch(&self, object: &PersistentVolume, patch: Value) -> Result<(), Failure> {
        let (objects, name) = (self.context.persistent_volumes(), object.name_any());
        let (parameters, patch) = (PatchParams::default(), Patch::Strategic(patch));
        let patched = objects.patch_metadata(&name, &parameters, &patch);
        unless_gone(request("changing a PersistentVolume's finalizers", patched).await)
    }
}

fn is_new(object: &PersistentVolume) -> bool {
    object.creation_timestamp().is_some_and(|made| Timestamp::now().duration_since(made.0) < NEW)
}
