//! What every controller of an agent works with.

use std::collections::HashSet;
use std::sync::Arc;

use bulkhead_model::objects::content::Content;
use bulkhead_model::objects::group_content::VolumeGroupSnapshotContent;
use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use bulkhead_model::objects::{claim, persistent_volume};
use bulkhead_model::volumes::Place;
use bulkhead_protocol::{DriverName, VolumeId};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client, ResourceExt};
use tokio::sync::Notify;

use super::api::events::Events;
use super::api::failure::Failure;
use super::api::first_lists::FirstLists;
use super::api::node_identity::NodeIdentity;
use super::api::pace::Pace;
use super::cordon::Cordon;
use super::identity::ClusterIdentity;
use super::intervals::Intervals;
use super::known::Known;
use super::ledger::Ledger;
use super::memory::Memory;
use crate::server::Shutdown;
use crate::volumes::{Guard, InFlight, Volumes};

/// The base of all controllers. It knows none of them.
pub struct Context {
    /// The client for the API server.
    pub client: Client,
    /// How fast it sends.
    pub pace: Pace,
    /// Who the agent is.
    pub agent: AgentIdentity,
    /// The node's volumes.
    pub volumes: Volumes,
    /// The volumes that no PersistentVolume names yet, or any more.
    pub unnamed: Unnamed,
    /// What namespaces have of the node.
    pub ledger: Ledger,
    /// The watched objects.
    pub stores: Stores,
    /// Where events are published.
    pub events: Events,
    /// What is remembered about each object.
    pub memory: Arc<Memory>,
    /// What is done by the clock.
    pub intervals: Intervals,
    /// Notified when the node's capacity may have changed.
    pub capacity_changed: Notify,
    /// The pools that take no new volumes.
    pub cordon: Cordon,
    cluster: ClusterIdentity,
}

/// Who an agent is, and where.
pub struct AgentIdentity {
    /// The driver that it serves.
    pub driver: DriverName,
    /// Its node.
    pub node: NodeIdentity,
    /// That node, as a place for volumes.
    pub place: Place,
    /// The namespace of the objects that belong to the agent itself.
    pub namespace: String,
}

/// Keeps those who make volumes and those who delete orphans apart.
#[derive(Default)]
pub struct Unnamed {
    /// The volumes that are being made, until the API server has their PersistentVolumes, or that are being judged as
    /// orphans: never both.
    busy: InFlight,
    suspicion: Notify,
}

impl Unnamed {
    /// Takes a volume to make it or to judge it, for as long as the value lives; `None` while somebody else has it.
    pub fn try_enter(&self, volume: &VolumeId) -> Option<Guard> {
        self.busy.try_enter(volume)
    }

    /// Reports that a volume may have been left without a PersistentVolume.
    pub fn suspect(&self) {
        self.suspicion.notify_one();
    }

    /// Waits until one may have been.
    pub async fn suspected(&self) {
        self.suspicion.notified().await;
    }
}

/// The objects that the agent watches.
pub struct Stores {
    /// All storage classes.
    pub classes: Known<StorageClass>,
    /// The claims that concern this node, and those that no node has yet.
    pub claims: Known<PersistentVolumeClaim>,
    /// The PersistentVolumes on this node.
    pub persistent_volumes: Known<PersistentVolume>,
    /// The objects of snapshots on this node, and those that no node has yet. The cluster may not know the kind.
    pub contents: Known<VolumeSnapshotContent>,
    /// Likewise those of groups of snapshots.
    pub groups: Known<VolumeGroupSnapshotContent>,
    /// Which of them have been listed.
    pub lists: FirstLists,
    /// When they are not watched any more.
    pub end: Shutdown,
}

impl Stores {
    /// Waits until PersistentVolumes and classes have been listed once: before that, an unknown one must not be
    /// mistaken for a missing one. Returns whether they have; if not, the agent is stopping.
    pub async fn are_complete(&self) -> bool {
        tokio::select! {
            biased;
            () = self.end.begun() => false,
            () = self.lists.are_complete(&["persistentvolumes", "storageclasses"]) => true,
        }
    }
}

impl Context {
    /// For this agent, with these views of the API server.
    pub fn new(
        client: Client,
        pace: Pace,
        agent: AgentIdentity,
        (volumes, ledger): (Volumes, Ledger),
        stores: Stores,
        memory: Arc<Memory>,
        intervals: Intervals,
    ) -> Self {
        Self {
            events: Events::new(client.clone(), &agent.driver, &agent.node.name),
            client,
            pace,
            agent,
            volumes,
            unnamed: Unnamed::default(),
            ledger,
            stores,
            memory,
            intervals,
            capacity_changed: Notify::new(),
            cordon: Cordon::default(),
            cluster: ClusterIdentity::default(),
        }
    }

    /// Learns from the agent's `lease`, if there is one, which pools take no new volumes.
    pub fn follow_cordon(&self, lease: Option<&Lease>) {
        if self.cordon.follow(lease, &self.agent.driver) {
            self.capacity_changed.notify_one();
        }
    }

    /// The API's claims in the namespace of `claim`.
    pub fn claims_beside(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default())
    }

    /// Returns what tells this cluster from any other: the uid of its namespace kube-system. `None` while the agent may
    /// not read it: the rules of an earlier release do not grant that.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn cluster(&self) -> Result<Option<&str>, Failure> {
        self.cluster.uid(&self.client).await
    }

    /// The volumes of this node that watched PersistentVolumes name, each with its object.
    pub fn volumes_named(&self) -> impl Iterator<Item = (VolumeId, PersistentVolume)> + '_ {
        self.stores.persistent_volumes.all().filter_map(|object| {
            Some((persistent_volume::own_volume(&object, &self.agent.driver, &self.agent.place)?, object))
        })
    }

    /// The ids that watched objects name, for whatever purpose.
    pub fn ids_named(&self) -> HashSet<String> {
        let objects = self.stores.persistent_volumes.all();
        let handles = objects.filter_map(|object| persistent_volume::volume_handle(&object).map(str::to_owned));
        handles.chain(self.stores.claims.all().map(|claim| claim::volume_name(&claim))).collect()
    }

    /// The API's PersistentVolumes.
    pub fn persistent_volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    /// Forgets what is remembered about objects that are gone, or no longer concern this node.
    pub fn forget_unknown_objects(&self) {
        let mut existing: HashSet<String> = self.stores.claims.all().filter_map(|claim| claim.uid()).collect();
        existing.extend(self.stores.persistent_volumes.all().filter_map(|object| object.uid()));
        existing.extend(self.stores.contents.all().map(|content| content.object_uid().to_owned()));
        existing.extend(self.stores.groups.all().map(|content| content.object_uid().to_owned()));
        self.memory.forget_all_but(&existing);
    }
}
