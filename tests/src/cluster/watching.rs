//! Creating claims, pods and volumes, and waiting for what happens to them.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, from_value};

use super::fixture::{Cluster, PATIENCE};

impl Cluster {
    /// The claims of the test's namespace.
    pub fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.access.client(), &self.namespace)
    }

    /// The pods of the test's namespace.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.access.client(), &self.namespace)
    }

    /// The cluster's volumes.
    pub fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.access.client())
    }

    /// Creates a claim and returns its uid.
    pub fn create_claim(&self, claim: &Value) -> Result<String> {
        let claim = from_value(claim.clone())?;
        let made = self.access.run(self.claims().create(&PostParams::default(), &claim))?;
        made.metadata.uid.context("a claim without a uid")
    }

    /// Creates a pod.
    pub fn create_pod(&self, pod: &Value) -> Result<()> {
        self.access.run(self.pods().create(&PostParams::default(), &from_value(pod.clone())?))?;
        Ok(())
    }

    /// Creates a volume.
    pub fn create_volume(&self, volume: &Value) -> Result<()> {
        self.access.run(self.volumes().create(&PostParams::default(), &from_value(volume.clone())?))?;
        Ok(())
    }

    /// Deletes a pod immediately: there is no kubelet to wait for.
    pub fn delete_pod(&self, name: &str) -> Result<()> {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.access.run(self.pods().delete(name, &now))?;
        Ok(())
    }

    /// Deletes a claim.
    pub fn delete_claim(&self, name: &str) -> Result<()> {
        self.access.run(self.claims().delete(name, &DeleteParams::default()))?;
        Ok(())
    }

    /// Merges `patch` into a claim.
    pub fn patch_claim(&self, name: &str, patch: &Value) -> Result<()> {
        self.access.run(self.claims().patch(name, &PatchParams::default(), &Patch::Merge(patch)))?;
        Ok(())
    }

    /// Merges `patch` into a volume.
    pub fn patch_volume(&self, name: &str, patch: &Value) -> Result<()> {
        self.access.run(self.volumes().patch(name, &PatchParams::default(), &Patch::Merge(patch)))?;
        Ok(())
    }

    /// Waits until a claim is bound, and returns its volume.
    pub fn bound(&self, name: &str) -> Result<PersistentVolume> {
        let result = self.bound_within(name, PATIENCE);
        result.with_context(|| format!("events: {:?}", self.notes(name).unwrap_or_default()))
    }

    /// Waits until a claim is bound, but no longer than `limit`, and returns its volume.
    pub fn bound_within(&self, name: &str, limit: Duration) -> Result<PersistentVolume> {
        let claim = self.access.wait_for(&self.claims(), name, limit, "to be bound", |claim| {
            let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
            ensure!(phase == Some("Bound"), "its phase is {phase:?}, annotations {:?}", claim.metadata.annotations);
            Ok(())
        })?;
        let volume = claim.spec.and_then(|spec| spec.volume_name).context("a bound claim without a volume")?;
        Ok(self.access.run(self.volumes().get(&volume))?)
    }

    /// Waits until a volume's object is gone.
    pub fn volume_gone(&self, name: &str) -> Result<()> {
        self.access.wait_until_gone(&self.volumes(), name, PATIENCE)
    }

    /// Waits until a volume has this phase.
    pub fn volume_phase(&self, name: &str, wanted: &str) -> Result<PersistentVolume> {
        self.access.wait_for(&self.volumes(), name, PATIENCE, &format!("to be {wanted}"), |volume| {
            let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
            ensure!(phase == Some(wanted), "its phase is {phase:?}");
            Ok(())
        })
    }

    /// The events about an object of the test's namespace, or about a volume.
    pub fn events(&self, object: &str) -> Result<Vec<Event>> {
        // Other tests have claims with the same name. Events about volumes, which have no namespace, are in `default`.
        let regarding = |event: &Event| {
            let regarding = event.regarding.as_ref();
            let namespace = regarding.and_then(|object| object.namespace.as_deref());
            regarding.and_then(|object| object.name.as_deref()) == Some(object)
                && namespace.is_none_or(|namespace| namespace == self.namespace)
        };
        let mut found = Vec::new();
        for namespace in [self.namespace.as_str(), "default"] {
            let events: Api<Event> = Api::namespaced(self.access.client(), namespace);
            found.extend(self.access.run(events.list(&ListParams::default()))?.items);
        }
        Ok(found.into_iter().filter(regarding).collect())
    }

    /// `reason: note` of every event about an object.
    pub fn notes(&self, object: &str) -> Result<Vec<String>> {
        let text = |event: &Event| {
            format!("{}: {}", event.reason.as_deref().unwrap_or("?"), event.note.as_deref().unwrap_or("?"))
        };
        Ok(self.events(object)?.iter().map(text).collect())
    }

    /// Waits for an event about an object with this reason and a note that contains `part`.
    pub fn event(&self, object: &str, reason: &str, part: &str) -> Result<Event> {
        self.access.wait(PATIENCE, &format!("an event {reason} about {object} that says {part:?}"), || {
            let found = self.events(object)?.into_iter().find(|event| {
                let note = event.note.as_deref().unwrap_or_default().to_lowercase();
                event.reason.as_deref() == Some(reason) && note.contains(&part.to_lowercase())
            });
            match found {
                Some(event) => Ok(event),
                None => bail!("there are: {:?}", self.notes(object)?),
            }
        })
    }

    /// Checks that a claim gets no volume during this time. There is nothing to wait for here, so each test uses the
    /// shortest time that still proves it.
    pub fn stays_pending(&self, name: &str, time: Duration) -> Result<()> {
        std::thread::sleep(time);
        let claim = self.access.run(self.claims().get(name))?;
        let volume = claim.spec.and_then(|spec| spec.volume_name);
        ensure!(volume.is_none(), "{name} got the volume {volume:?}");
        Ok(())
    }
}
