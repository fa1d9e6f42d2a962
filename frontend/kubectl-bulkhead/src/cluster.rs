//! The cluster, as far as it concerns the driver.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::io;
use std::pin::pin;

use bulkhead_api::pages::{self, CEILING};
use bulkhead_api::projection::Projection;
use bulkhead_console::manual::ManualError;
use bulkhead_console::prompt::NotConfirmed;
use bulkhead_model::api_error::error_text;
use bulkhead_model::objects::lease::{self, Reported};
use bulkhead_model::objects::names;
use bulkhead_model::quantity::parse;
use bulkhead_model::reading::Unended;
use bulkhead_model::volumes::Place;
use futures::TryStreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::api::ListParams;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::options::Options;
use crate::proxy::Unread;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("cannot start the runtime: {0}")]
    Runtime(io::Error),
    #[error("the kubeconfig cannot be used: {0}; does `kubectl version` work?")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    #[error("cannot create a client from the kubeconfig: {}", error_text(.0))]
    Client(kube::Error),
    #[error("{operation} failed at {server}: {}", error_text(error))]
    Api { operation: String, server: String, error: Box<kube::Error> },
    #[error(
        "{operation} failed at {server}: {why}; nothing is concluded from a part of it: see who has made so many objects, or such large ones"
    )]
    Unended { operation: String, server: String, why: Unended },
    #[error("node {0} still exists: if it is gone for good, run `kubectl delete node {0}` first")]
    Exists(String),
    #[error(
        "volumes or snapshots of node {node} are on another node: {advice}; repeat this with --abandon-moved to give them up nevertheless"
    )]
    Moved { node: String, advice: String },
    #[error(transparent)]
    NotConfirmed(#[from] NotConfirmed),
    #[error(transparent)]
    Manual(#[from] ManualError),
    #[error("cannot read {0}: {1}; `bulkheadctl volume export` writes such a file")]
    Exported(String, String),
    #[error(
        "{file} {why}: volumes may have been deleted since; run `bulkheadctl volume export` on the node again, or repeat this with --allow-old"
    )]
    Old { file: String, why: String },
    #[error("--driver {0} is no name of a CSI driver")]
    Driver(String),
    #[error("{0} is no claim: it is called NAMESPACE/NAME")]
    ClaimName(String),
    #[error("{0} is no pool: it is called NODE/POOL, as `kubectl bulkhead pools` lists them")]
    PoolName(String),
    #[error("node {node} has no pool {pool}: it has {pools}")]
    NoPool { node: String, pool: String, pools: String },
    #[error(
        "no agent of node {0} has ever worked for this driver, as far as its Lease says: `kubectl bulkhead nodes` lists the nodes"
    )]
    NoAgent(String),
    #[error("cannot listen on port {0} of 127.0.0.1: {1}; --port names another")]
    Listen(u16, io::Error),
    #[error("cannot write {0}: {1}; --file names another")]
    Bundle(String, io::Error),
    #[error("interrupted: {0} is removed again")]
    Interrupted(String),
    #[error("the system has no random numbers: {0}")]
    Random(String),
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    /// Returns what went wrong in one word, for scripts: the API server's own reason if it gave one.
    pub fn code(&self) -> String {
        match self {
            Self::Api { error, .. } => match error.as_ref() {
                kube::Error::Api(status) if !status.reason.is_empty() => status.reason.clone(),
                _ => "Unreachable".to_owned(),
            },
            Self::Unended { .. } => "Unended".to_owned(),
            Self::Kubeconfig(_) | Self::Client(_) => "Kubeconfig".to_owned(),
            Self::Exists(_) => "NodeExists".to_owned(),
            Self::Moved { .. } => "Moved".to_owned(),
            Self::Exported(..) | Self::ClaimName(_) | Self::PoolName(_) | Self::Driver(_) => "Invalid".to_owned(),
            Self::NoPool { .. } | Self::NoAgent(_) => "NotFound".to_owned(),
            Self::Old { .. } => "Old".to_owned(),
            Self::NotConfirmed(_) => "NotConfirmed".to_owned(),
            Self::Interrupted(_) => "Interrupted".to_owned(),
            Self::Runtime(_)
            | Self::Manual(_)
            | Self::Listen(..)
            | Self::Bundle(..)
            | Self::Random(_)
            | Self::Output(_) => "Failed".to_owned(),
        }
    }

    /// Returns whether the user may not do it.
    pub fn is_forbidden(&self) -> bool {
        self.status() == Some(403)
    }

    /// Returns whether the cluster does not know it.
    pub fn is_unknown(&self) -> bool {
        self.status() == Some(404)
    }

    fn status(&self) -> Option<u16> {
        match self {
            Self::Api { error, .. } => match error.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Why a list was not read to its end.
enum Stopped {
    Api(Box<kube::Error>),
    Unended(Unended),
}

/// The name of the agents' service account, and of the object that grants it its rights.
pub const ACCOUNT: &str = "bulkhead-agent";

/// The namespace of the agents unless the cluster names another.
const NAMESPACE: &str = "bulkhead-system";

/// The API server, and the driver in question.
pub struct Cluster {
    pub client: Client,
    /// The API server's address.
    server: String,
    pub driver: String,
    /// The namespace of the agents.
    pub namespace: String,
    /// How much of agents' lists has been read, in bytes.
    pub read: Cell<usize>,
    /// The agents' pods of which a list was not read to its end.
    pub unended: RefCell<BTreeMap<String, Unended>>,
}

/// What the agent of a node last said.
pub struct Heartbeat {
    /// When.
    pub at: Timestamp,
    /// What of it did not work then.
    pub not_ready: Option<String>,
    /// The conditions of its pools.
    pub reported: Reported,
}

/// What volumes need of a node.
#[derive(Clone, Default)]
pub struct KnownNode {
    /// Whether it has the label that volumes and their pods are placed by.
    pub is_labelled: bool,
    /// Whether its kubelet reports.
    pub is_served: bool,
    /// The release of its kernel; empty if no kubelet has ever reported it.
    pub kernel: String,
}

/// A volume, by its PersistentVolume.
#[derive(Clone, Debug, Default)]
pub struct Volume {
    pub name: String,
    pub uid: String,
    /// The volume's id on its node.
    pub handle: String,
    /// Empty if the object names none.
    pub node: String,
    /// Namespace, name and uid.
    pub claim: Option<(String, String, String)>,
    pub class: String,
    pub bytes: u64,
    pub mode: String,
    pub phase: String,
    pub policy: String,
}

impl Cluster {
    /// Connects as kubectl would.
    pub async fn connect(options: &Options) -> Result<Self, Failure> {
        let choice = KubeConfigOptions { context: options.context.clone(), ..KubeConfigOptions::default() };
        let mut config = match &options.kubeconfig {
            Some(path) => Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &choice).await?,
            None => Config::from_kubeconfig(&choice).await?,
        };
        // An agent that is not ready says why with status 503, which is no reason to retry.
        config.default_retry = false;
        if options.user.is_some() {
            config.auth_info.impersonate.clone_from(&options.user);
            config.auth_info.impersonate_groups = (!options.groups.is_empty()).then(|| options.groups.clone());
        }
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let client = ClientBuilder::try_from(config).map_err(Failure::Client)?.with_layer(&Projection).build();
        let mut cluster = Self {
            client,
            server,
            driver: options.driver.clone(),
            namespace: NAMESPACE.to_owned(),
            read: Cell::default(),
            unended: RefCell::default(),
        };
        if let Some(namespace) = cluster.namespace_of_account().await? {
            cluster.namespace = namespace;
        }
        Ok(cluster)
    }

    /// What is said of a list of the agent in `pod` that was not read to its end. The run does not count as a success.
    pub fn unended(&self, pod: &str, why: Unended) -> Unread {
        self.unended.borrow_mut().insert(pod.to_owned(), why);
        Unread::Unended(why)
    }

    /// Adds the requested operation, and whom it was requested from, to an error.
    pub fn failed(&self, operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Failure {
        let (operation, server) = (operation.into(), self.server.clone());
        move |error| Failure::Api { operation, server, error: Box::new(error) }
    }

    /// Reads the objects at `api` that `parameters` ask for, and returns what `keep` makes of them.
    pub async fn list<K, T>(
        &self,
        operation: &str,
        api: Api<K>,
        parameters: ListParams,
        mut keep: impl FnMut(K) -> Option<T>,
    ) -> Result<Vec<T>, Failure>
    where
        K: Clone + DeserializeOwned + Debug + Resource + Send + Sync + 'static,
    {
        let unended = |why| Failure::Unended { operation: operation.to_owned(), server: self.server.clone(), why };
        let (mut kept, late) = (Vec::new(), Unended::Time(CEILING.time));
        let fetch = |parameters: ListParams, left| {
            let page = timeout(left, pages::page(api.clone(), parameters));
            async move { page.await.map_err(|_| Stopped::Unended(late))?.map_err(|error| Stopped::Api(Box::new(error))) }
        };
        let mut objects = pin!(pages::paged(parameters, CEILING, Stopped::Unended, fetch));
        loop {
            match objects.try_next().await {
                Ok(Some(object)) => kept.extend(keep(object)),
                Ok(None) => return Ok(kept),
                Err(Stopped::Unended(why)) => return Err(unended(why)),
                Err(Stopped::Api(error)) => return Err(self.failed(operation)(*error)),
            }
        }
    }

    /// The namespace of the account that has the agents' rights. Only an administrator can set that, whereas many
    /// others may label a DaemonSet or a pod.
    async fn namespace_of_account(&self) -> Result<Option<String>, Failure> {
        let bindings: Api<ClusterRoleBinding> = Api::all(self.client.clone());
        let binding = match bindings.get_opt(ACCOUNT).await {
            // For a user who may not read it, assume the default installation.
            Err(kube::Error::Api(status)) if status.code == 403 => None,
            found => found.map_err(self.failed("looking for the agents' ClusterRoleBinding"))?,
        };
        let mut subjects = binding.and_then(|binding| binding.subjects).unwrap_or_default().into_iter();
        let account = subjects.find(|subject| subject.kind == "ServiceAccount" && subject.name == ACCOUNT);
        Ok(account.and_then(|account| account.namespace))
    }

    /// A node as a place of the driver's volumes.
    pub fn place(&self, node: &str) -> Result<Place, Failure> {
        let driver = self.driver.parse().map_err(|_| Failure::Driver(self.driver.clone()))?;
        Ok(Place::new(&driver, node))
    }

    /// The key of the label on objects that belong to a node, and of the node's topology segment.
    pub fn node_key(&self) -> String {
        format!("{}/node", self.driver)
    }

    /// The names of all nodes.
    pub async fn nodes(&self) -> Result<BTreeSet<String>, Failure> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let names = self.list("listing nodes", nodes, ListParams::default(), |node| node.metadata.name).await?;
        Ok(names.into_iter().collect())
    }

    /// The cluster's nodes, each with what volumes need of it.
    pub async fn known_nodes(&self) -> Result<BTreeMap<String, KnownNode>, Failure> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let key = self.node_key();
        let known = |node: Node| {
            let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
            // A node that no kubelet has ever reported for has no such condition.
            let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
            let is_served = ready.is_none_or(|ready| ready.status != "Unknown");
            let kernel =
                node.status.as_ref().and_then(|status| Some(status.node_info.as_ref()?.kernel_version.clone()));
            let is_labelled = node.labels().contains_key(&key);
            Some((node.name_any(), KnownNode { is_labelled, is_served, kernel: kernel.unwrap_or_default() }))
        };
        Ok(self.list("listing nodes", nodes, ListParams::default(), known).await?.into_iter().collect())
    }

    /// Returns what the agent of each node last said. Nothing is known of any for a user who may not read it.
    pub async fn heartbeats(&self) -> Result<BTreeMap<String, Heartbeat>, Failure> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let parameters = ListParams::default().labels(&format!("{}={}", names::DRIVER_LABEL, self.driver));
        let (missing, conditions) = (names::not_ready(&self.driver), names::reported_conditions(&self.driver));
        let heartbeat = |lease: Lease| {
            let not_ready = lease.annotations().get(&missing).cloned();
            let reported = lease::reported(lease.annotations().get(&conditions));
            Some((lease.name_any(), Heartbeat { at: lease.spec?.renew_time?.0, not_ready, reported }))
        };
        match self.list("listing the agents' Leases", leases, parameters, heartbeat).await {
            Err(failure) if failure.is_forbidden() => Ok(BTreeMap::new()),
            found => Ok(found?.into_iter().collect()),
        }
    }

    /// The driver's volumes, by node and name.
    pub async fn volumes(&self) -> Result<Vec<Volume>, Failure> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let own = |object: PersistentVolume| self.volume(&object);
        let mut own = self.list("listing PersistentVolumes", volumes, ListParams::default(), own).await?;
        own.sort_by(|one, other| (&one.node, &one.name).cmp(&(&other.node, &other.name)));
        Ok(own)
    }

    /// The volume of a PersistentVolume, if it is the driver's.
    pub fn volume(&self, object: &PersistentVolume) -> Option<Volume> {
        let spec = object.spec.as_ref()?;
        let csi = spec.csi.as_ref().filter(|csi| csi.driver == self.driver)?;
        let key = self.node_key();
        let terms = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
        let mut expressions = terms
            .iter()
            .flat_map(|terms| &terms.node_selector_terms)
            .flat_map(|term| term.match_expressions.iter().flatten());
        let wanted = expressions.find(|wanted| wanted.key == key && wanted.operator == "In");
        let node = wanted.and_then(|wanted| wanted.values.as_ref()?.first().cloned()).unwrap_or_default();
        let claim = spec.claim_ref.as_ref().map(|claim| {
            let text = |value: &Option<String>| value.clone().unwrap_or_default();
            (text(&claim.namespace), text(&claim.name), text(&claim.uid))
        });
        let capacity = spec.capacity.as_ref().and_then(|capacity| parse(&capacity.get("storage")?.0));
        let phase = object.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
        Some(Volume {
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            handle: csi.volume_handle.clone(),
            node,
            claim,
            class: spec.storage_class_name.clone().unwrap_or_default(),
            bytes: capacity.unwrap_or_default(),
            mode: spec.volume_mode.clone().unwrap_or_default(),
            // `Terminating` is not a phase, but it is what a person wants to know.
            phase: if object.metadata.deletion_timestamp.is_some() { "Terminating".to_owned() } else { phase },
            policy: spec.persistent_volume_reclaim_policy.clone().unwrap_or_default(),
        })
    }

    /// The capacity that the driver's agents publish, with the node of each object.
    pub async fn capacities(&self) -> Result<Vec<(String, CSIStorageCapacity)>, Failure> {
        let mut own = self.all_capacities().await?;
        own.retain(|(_, capacity)| capacity.namespace().as_deref() == Some(&self.namespace));
        Ok(own)
    }

    /// All capacities, those that nobody maintains included: agents write in their own namespace, so objects in any
    /// other are from a former installation, and the scheduler believes them nevertheless.
    pub async fn all_capacities(&self) -> Result<Vec<(String, CSIStorageCapacity)>, Failure> {
        let capacities: Api<CSIStorageCapacity> = Api::all(self.client.clone());
        let parameters = ListParams::default().labels(&format!("{}={}", names::DRIVER_LABEL, self.driver));
        let key = self.node_key();
        let node = |capacity: &CSIStorageCapacity| {
            let topology = capacity.node_topology.as_ref()?.match_labels.as_ref()?;
            topology.get(&key).cloned()
        };
        let placed = |capacity| Some((node(&capacity).unwrap_or_default(), capacity));
        let mut own = self.list("listing CSIStorageCapacity objects", capacities, parameters, placed).await?;
        own.sort_by(|one, other| (&one.0, &one.1.storage_class_name).cmp(&(&other.0, &other.1.storage_class_name)));
        Ok(own)
    }

    /// The claims that have no volume, whosever they are: whose provisioner a claim is for is known only once a node
    /// has been selected for it.
    pub async fn unbound_claims(&self) -> Result<Vec<PersistentVolumeClaim>, Failure> {
        let claims: Api<PersistentVolumeClaim> = Api::all(self.client.clone());
        let unbound = |claim: PersistentVolumeClaim| {
            let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
            volume.unwrap_or_default().is_empty().then_some(claim)
        };
        self.list("listing claims", claims, ListParams::default(), unbound).await
    }

    /// Those among unbound claims that wait for the driver, each with the node that was selected for it.
    pub fn waiting(&self, unbound: Vec<PersistentVolumeClaim>) -> Vec<(String, PersistentVolumeClaim)> {
        let waiting = unbound.into_iter().filter_map(|claim| {
            let annotation = |name: &str| claim.annotations().get(name).cloned();
            let provisioner = annotation(names::PROVISIONER).or_else(|| annotation(names::PROVISIONER_BETA))?;
            let node = annotation(names::SELECTED_NODE)?;
            (provisioner == self.driver).then_some((node, claim))
        });
        waiting.collect()
    }
}

impl Volume {
    /// `NAMESPACE/NAME` of its claim.
    pub fn claim_name(&self) -> String {
        self.claim.as_ref().map(|(namespace, name, _)| format!("{namespace}/{name}")).unwrap_or_default()
    }

    /// The volume as JSON.
    pub fn json(&self) -> Value {
        json!({
            "name": self.name, "node": self.node, "claim": self.claim.as_ref().map(|_| self.claim_name()),
            "storageClass": self.class, "bytes": self.bytes, "mode": self.mode, "phase": self.phase,
            "reclaimPolicy": self.policy,
        })
    }
}
