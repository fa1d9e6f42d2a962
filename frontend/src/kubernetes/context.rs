//! What all controllers of an agent share.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use bulkhead_protocol::DriverName;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::runtime::reflector::Store;
use kube::{Api, Client, ResourceExt};
use tokio::sync::Notify;

use super::api::backoff::Attempts;
use super::api::events::Events;
use super::api::identity::NodeIdentity;
use super::capacity::publisher::Publisher;
use super::claims::immediate_binding::Contest;
use super::claims::resizer::Hopeless;
use crate::volumes::{Place, Volumes};

/// The agent, as its controllers see it.
pub(super) struct Context {
    pub client: Client,
    pub driver: DriverName,
    pub node: NodeIdentity,
    pub place: Place,
    /// The namespace of what belongs to the agent itself.
    pub namespace: String,
    pub volumes: Volumes,
    pub classes: Store<StorageClass>,
    /// The claims that concern this node, or none yet.
    pub claims: Store<PersistentVolumeClaim>,
    /// The PersistentVolumes on this node.
    pub objects: Store<PersistentVolume>,
    pub events: Events,
    pub attempts: Attempts,
    pub contest: Contest,
    pub hopeless: Hopeless,
    pub publisher: Publisher,
    /// What this agent has written, until the watches tell the same.
    pub written: Written,
    /// Rung when a volume may have been left without an object.
    pub unsettled: Notify,
}

impl Context {
    /// Waits until all that is watched was told once: what is not known before that must not be taken for missing.
    /// Whether it ever will be.
    pub(super) async fn is_informed(&self) -> bool {
        self.objects.wait_until_ready().await.is_ok() && self.classes.wait_until_ready().await.is_ok()
    }

    /// Claims in `claim`'s namespace.
    pub(super) fn claims_beside(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default())
    }

    /// Forgets what is remembered of claims and PersistentVolumes that are not there any more.
    pub(super) fn forget_the_gone(&self) {
        let mut living: HashSet<String> = self.claims.state().iter().filter_map(|claim| claim.uid()).collect();
        living.extend(self.objects.state().iter().filter_map(|object| object.uid()));
        self.attempts.keep(&living);
        self.contest.keep(&living);
        self.hopeless.keep(&living);
        self.written.keep(&living);
    }

    /// All PersistentVolumes.
    pub(super) fn all_objects(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }
}

/// The resource versions at which objects were written, by uid: what a watch has told from before is out of date.
///
/// Resource versions of one resource are numbers that grow (Kubernetes 1.35, KEP-5504; in practice always).
#[derive(Debug, Default)]
pub(super) struct Written(Mutex<HashMap<String, u64>>);

impl Written {
    /// The object with that uid was written, and has that version now.
    pub(super) fn note(&self, uid: &str, version: Option<&str>) {
        if let Some(version) = version.and_then(|version| version.parse().ok()) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned(), version);
        }
    }

    /// Nothing is left to do for the object, whatever is told of it until it is gone.
    pub(super) fn finish(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned(), u64::MAX);
    }

    /// Whether that version of the object has been overtaken. One that has not is no longer remembered.
    pub(super) fn overtook(&self, uid: &str, version: Option<&str>) -> bool {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ours) = written.get(uid).copied() else { return false };
        let overtaken = version.and_then(|version| version.parse::<u64>().ok()).is_some_and(|told| told < ours);
        if !overtaken {
            written.remove(uid);
        }
        overtaken
    }

    /// Forgets all but those objects.
    fn keep(&self, living: &HashSet<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| living.contains(uid));
    }

    /// The object is gone.
    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_versions_are_overtaken() {
        let written = Written::default();
        assert!(!written.overtook("a", Some("7")));
        written.note("a", Some("10"));
        assert!(written.overtook("a", Some("9")));
        assert!(!written.overtook("b", Some("9")));
        assert!(!written.overtook("a", Some("10")));
        assert!(!written.overtook("a", Some("9")), "it is not remembered for ever");
        written.finish("a");
        assert!(written.overtook("a", Some("11")) && written.overtook("a", Some("12")));
        written.forget("a");
        assert!(!written.overtook("a", Some("13")));
    }
}
