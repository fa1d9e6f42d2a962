//! What agents know beyond the objects in the API server: their metrics, their findings and their probe, read through the API server's
//! proxy to their pods.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bulkhead_model::exported::{Exported, ExportedPage, ExportedSnapshot, SnapshotPage};
use bulkhead_model::exposition::{Sample, samples};
use bulkhead_model::findings::Findings;
use bulkhead_model::reading::{Ceiling, Reading, Unended};
use bulkhead_model::volumes::{ConditionKind, InodeCount};
use futures::{StreamExt, stream};
use http::StatusCode;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};
use k8s_openapi::serde::de::DeserializeOwned;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use tokio::time::{Instant, timeout, timeout_at};

use crate::cluster::{Cluster, Failure};
use crate::proxy::{self, Unread};

/// The label of the agents' and helpers' pods, and of what else belongs to a release.
pub const PODS: &str = "app.kubernetes.io/name=bulkhead";

/// The name of the port at which they serve metrics and probes.
const PORT: &str = "metrics";

/// What the agents call the part that tells backup programs what has changed.
const CHANGED_BLOCKS: &str = "changed-blocks";

/// How many agents are queried at the same time.
pub const SIDE_BY_SIDE: usize = 16;

/// The longest answer that is read. A genuine one is a tenth of this size.
const LONGEST: usize = 1 << 20;

/// The most that is read of an agent's list: 250,000 volumes, which takes an agent eight minutes.
const CEILING: Ceiling = Ceiling { pages: 1000, bytes: 64 << 20, time: Duration::from_secs(600) };

/// The most that is read of the lists of all agents, in bytes.
const TOGETHER: usize = 512 << 20;

/// How long all agents together may take.
const IN_ALL: Duration = Duration::from_secs(1800);

/// An agent's pod.
#[derive(Clone)]
pub struct AgentPod {
    pub name: String,
    pub is_ready: bool,
    /// Each container that does not run, or has been started again since it last ended, with its last words.
    pub ends: Vec<(String, String)>,
    namespace: String,
    port: Option<i32>,
}

/// What an agent reports about itself.
#[derive(Default)]
pub struct Agent {
    pub release: String,
    pub pools: BTreeMap<String, Pool>,
    /// What namespaces have, by pool and namespace; empty where that is not limited.
    pub holdings: BTreeMap<(String, String), Holding>,
    /// Whether backup programs are told what has changed; `None` where nobody wants that.
    pub serves_changed_blocks: Option<bool>,
}

/// What a namespace has of a pool, as far as its agent says.
#[derive(Clone, Copy, Default)]
pub struct Holding {
    pub promised: Option<u64>,
    /// With its snapshots.
    pub volumes: Option<u64>,
    /// How much of its share that is.
    pub ratio: Option<f64>,
}

/// A pool as its agent reports it. Figures are missing while the pool is not served.
#[derive(Default)]
pub struct Pool {
    pub size: Option<u64>,
    pub available: Option<u64>,
    pub largest_volume: Option<u64>,
    pub promised: Option<u64>,
    pub used: Option<u64>,
    pub volumes: Option<u64>,
    pub emptying: Option<u64>,
    pub abnormal: Option<u64>,
    /// How many volumes with a filesystem in an image it may have; missing if it is not configured for any.
    pub filesystem_limit: Option<u64>,
    pub filesystems: Option<u64>,
    /// The inodes of its filesystem, and those of them that are free; missing if its agent does not say.
    pub inodes: Option<u64>,
    pub free_inodes: Option<u64>,
    /// Whether it takes no new volumes, as an operator wants it.
    pub is_cordoned: bool,
    pub conditions: Vec<&'static ConditionKind>,
}

/// The agents' pods, each with its node. Pods in other namespaces are not agents, whatever their labels.
pub async fn pods(cluster: &Cluster) -> Result<Vec<(String, AgentPod)>, Failure> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let of_node = |pod: Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let is_ready = conditions.iter().any(|found| found.type_ == "Ready" && found.status == "True");
        let spec = pod.spec.as_ref()?;
        let mut ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
        let port = ports.find(|port| port.name.as_deref() == Some(PORT)).map(|port| port.container_port);
        let namespace = pod.namespace().unwrap_or_default();
        let ends = pod.status.iter().flat_map(ends).collect();
        Some((spec.node_name.clone()?, AgentPod { name: pod.name_any(), is_ready, ends, namespace, port }))
    };
    cluster.list("listing the agents' pods", pods, ListParams::default().labels(PODS), of_node).await
}

/// The containers that have ended, each with the words that the kubelet has kept of its log, or why it does not start.
fn ends(status: &PodStatus) -> impl Iterator<Item = (String, String)> {
    let end = |container: &ContainerStatus| {
        let state = |state: &Option<ContainerState>| state.clone().unwrap_or_default();
        let ended = state(&container.state).terminated.or_else(|| state(&container.last_state).terminated);
        let waits = state(&container.state).waiting;
        let words = match (ended, waits) {
            (Some(ended), _) => ended.message.or(ended.reason),
            (None, Some(waits)) => waits.message.or(waits.reason),
            (None, None) => None,
        };
        let words = words?;
        Some((container.name.clone(), words.trim().lines().next_back().unwrap_or("without a word").to_owned()))
    };
    status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten()).filter_map(end)
}

/// Queries the agents on these nodes; where one cannot be queried, the result says why.
pub async fn read_all<'n>(
    cluster: &Cluster,
    pods: impl Iterator<Item = (&'n String, &'n AgentPod)>,
) -> BTreeMap<String, Result<Agent, String>> {
    let ask = |(node, pod): (&'n String, &'n AgentPod)| async move {
        (node.clone(), pod.metrics(&cluster.client).await.map_err(|failure| failure.to_string()))
    };
    stream::iter(pods).map(ask).buffer_unordered(SIDE_BY_SIDE).collect().await
}

/// Returns what the agents on `nodes` have found about volumes; where that is unknown, the result says why. Without the
/// right to list the agents' pods nothing is known of any.
pub async fn findings(cluster: &Cluster, nodes: BTreeSet<String>) -> BTreeMap<String, Result<Findings, String>> {
    of_each(cluster, nodes, |pod| async move { pod.findings(cluster).await }).await
}

/// The snapshots on `nodes`, likewise.
pub async fn snapshots(
    cluster: &Cluster,
    nodes: BTreeSet<String>,
) -> BTreeMap<String, Result<Vec<ExportedSnapshot>, String>> {
    of_each(cluster, nodes, |pod| async move { pod.snapshots(cluster).await }).await
}

async fn of_each<T, F: Future<Output = Result<T, Unread>>>(
    cluster: &Cluster,
    nodes: BTreeSet<String>,
    ask: impl Fn(AgentPod) -> F,
) -> BTreeMap<String, Result<T, String>> {
    let pods = match pods(cluster).await {
        Ok(pods) => pods.into_iter().collect::<BTreeMap<_, _>>(),
        Err(failure) => return nodes.into_iter().map(|node| (node, Err(failure.to_string()))).collect(),
    };
    let (pods, ask, end) = (&pods, &ask, Instant::now() + IN_ALL);
    let ask = |node: String| async move {
        let found = match pods.get(&node) {
            Some(pod) => {
                let answer = in_time(cluster, end, &pod.name, ask(pod.clone())).await;
                answer.map_err(|failure| failure.to_string())
            }
            None => Err("no agent's pod is there: see `bulkheadctl doctor` on the node".to_owned()),
        };
        (node, found)
    };
    stream::iter(nodes).map(ask).buffer_unordered(SIDE_BY_SIDE).collect().await
}

/// Asks the agents on the nodes of `pods` for all their volumes, with whose they are.
pub async fn exported(
    cluster: &Cluster,
    pods: impl IntoIterator<Item = (String, AgentPod)>,
) -> BTreeMap<String, Result<Vec<Exported>, Unread>> {
    let end = Instant::now() + IN_ALL;
    let ask = |(node, pod): (String, AgentPod)| async move {
        (node, in_time(cluster, end, &pod.name, pod.exported(cluster)).await)
    };
    stream::iter(pods).map(ask).buffer_unordered(SIDE_BY_SIDE).collect().await
}

async fn in_time<T>(
    cluster: &Cluster,
    end: Instant,
    pod: &str,
    answer: impl Future<Output = Result<T, Unread>>,
) -> Result<T, Unread> {
    timeout_at(end, answer).await.unwrap_or_else(|_| Err(cluster.unended(pod, Unended::Time(IN_ALL))))
}

impl AgentPod {
    /// The parts that are not ready, each with its reason.
    pub async fn missing_parts(&self, client: &Client) -> Result<Vec<String>, Unread> {
        let (status, report) = self.get(client, "readyz").await?;
        let parts: Vec<_> = report.lines().filter_map(|line| line.strip_prefix("[-]")).map(str::to_owned).collect();
        // An agent that is not ready answers with the same status as a proxy that cannot reach it.
        if status == StatusCode::OK || !parts.is_empty() { Ok(parts) } else { Err(Unread::Status(status)) }
    }

    /// Why it tells backup programs nothing, in its own words.
    pub async fn without_changed_blocks(&self, client: &Client) -> Result<String, Unread> {
        let (_, report) = self.get(client, "readyz").await?;
        let begin = format!("[!]{CHANGED_BLOCKS} not ready: ");
        let why = report.lines().find_map(|line| line.strip_prefix(&begin));
        Ok(why.unwrap_or("it has been so until now: look again").to_owned())
    }

    async fn metrics(&self, client: &Client) -> Result<Agent, Unread> {
        self.exposition(client).await.map(|text| Agent::of(&text))
    }

    /// Whether it serves metrics. The helpers' pods have the same label, and do not.
    pub fn has_port(&self) -> bool {
        self.port.is_some()
    }

    /// Its metrics, as they are.
    pub async fn exposition(&self, client: &Client) -> Result<String, Unread> {
        let (status, text) = self.get(client, "metrics").await?;
        if status == StatusCode::OK { Ok(text) } else { Err(Unread::Status(status)) }
    }

    async fn findings(&self, cluster: &Cluster) -> Result<Findings, Unread> {
        let (status, text) = self.get(&cluster.client, "volumes").await?;
        if status != StatusCode::OK {
            return Err(Unread::Status(status));
        }
        self.note_read(cluster, text.len())?;
        serde_json::from_str(&text).map_err(|error| Unread::Answer(error.into()))
    }

    /// All its volumes, with whose they are.
    async fn exported(&self, cluster: &Cluster) -> Result<Vec<Exported>, Unread> {
        let unfold = |ExportedPage { volumes, next }| (volumes, next);
        self.pages(cluster, "volumes/owners", unfold).await?.ok_or(Unread::NotShared)
    }

    /// All its snapshots. An agent of a release that takes none has none.
    async fn snapshots(&self, cluster: &Cluster) -> Result<Vec<ExportedSnapshot>, Unread> {
        let unfold = |SnapshotPage { snapshots, next }| (snapshots, next);
        Ok(self.pages(cluster, "snapshots", unfold).await?.unwrap_or_default())
    }

    /// Returns what is on all pages of `list`; `None` if the agent does not serve that.
    async fn pages<P: DeserializeOwned, T>(
        &self,
        cluster: &Cluster,
        list: &str,
        unfold: impl Fn(P) -> (Vec<T>, Option<String>),
    ) -> Result<Option<Vec<T>>, Unread> {
        let (mut all, mut token, mut reading) = (Vec::new(), String::new(), Reading::begin(CEILING));
        loop {
            let path = format!("{list}?after={token}");
            let unended = |why| cluster.unended(&self.name, why);
            let answer = timeout(reading.time_left(), self.get(&cluster.client, &path)).await;
            let (status, text) = answer.map_err(|_| unended(reading.late()))??;
            match status {
                StatusCode::OK => {}
                StatusCode::NOT_FOUND => return Ok(None),
                _ => return Err(Unread::Status(status)),
            }
            let page = serde_json::from_str(&text).map_err(|error| Unread::Answer(error.into()))?;
            let (entries, next) = unfold(page);
            all.extend(entries);
            let next = next.unwrap_or_default();
            reading.page(text.len(), &next).map_err(unended)?;
            self.note_read(cluster, text.len())?;
            match next {
                next if next.is_empty() => return Ok(Some(all)),
                // Each page is later than the one before.
                next if next <= token => return Err(unended(Unended::Circle)),
                next => token = next,
            }
        }
    }

    fn note_read(&self, cluster: &Cluster, bytes: usize) -> Result<(), Unread> {
        let read = cluster.read.get().saturating_add(bytes);
        cluster.read.set(read);
        if read > TOGETHER { Err(cluster.unended(&self.name, Unended::Bytes(TOGETHER))) } else { Ok(()) }
    }

    async fn get(&self, client: &Client, path: &str) -> Result<(StatusCode, String), Unread> {
        let Self { namespace, name, .. } = self;
        let port = self.port.ok_or_else(|| Unread::NoPort { pod: name.clone(), port: PORT })?;
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/{path}");
        proxy::get(client, &path, LONGEST, || format!("pods/proxy in namespace {namespace}")).await
    }
}

impl Agent {
    /// What an agent with these metrics reports.
    pub fn of(metrics: &str) -> Self {
        let mut agent = Self::default();
        for sample in samples(metrics) {
            if sample.name == "bulkhead_build_info" {
                agent.release = sample.label("version").unwrap_or_default().to_owned();
            }
            if sample.name == "bulkhead_ready" && sample.label("part") == Some(CHANGED_BLOCKS) {
                agent.serves_changed_blocks = Some(sample.value != 0.0);
            }
            if let Some((pool, namespace)) = sample.label("pool").zip(sample.label("namespace")) {
                let of = (pool.to_owned(), namespace.to_owned());
                agent.holdings.entry(of).or_default().note(&sample);
            } else if let Some(pool) = sample.label("pool") {
                agent.pools.entry(pool.to_owned()).or_default().note(&sample);
            }
        }
        agent
    }
}

impl Holding {
    fn note(&mut self, sample: &Sample<'_>) {
        match sample.name {
            "bulkhead_namespace_promised_bytes" => self.promised = Some(sample.value as u64),
            "bulkhead_namespace_volumes" => self.volumes = Some(sample.value as u64),
            "bulkhead_namespace_share_used_ratio" => self.ratio = Some(sample.value),
            _ => {}
        }
    }
}

impl Pool {
    /// The inodes of its filesystem, if its agent says how many there are.
    pub fn inode_count(&self) -> Option<InodeCount> {
        let (total, free) = self.inodes.zip(self.free_inodes)?;
        Some(InodeCount { total, free })
    }

    fn note(&mut self, sample: &Sample<'_>) {
        let figure = match sample.name {
            "bulkhead_pool_size_bytes" => &mut self.size,
            "bulkhead_pool_available_bytes" => &mut self.available,
            "bulkhead_pool_largest_volume_bytes" => &mut self.largest_volume,
            "bulkhead_pool_promised_bytes" => &mut self.promised,
            "bulkhead_pool_used_bytes" => &mut self.used,
            "bulkhead_pool_volumes" => &mut self.volumes,
            "bulkhead_pool_emptying_volumes" => &mut self.emptying,
            "bulkhead_pool_abnormal_volumes" => &mut self.abnormal,
            "bulkhead_pool_filesystem_limit" => &mut self.filesystem_limit,
            "bulkhead_pool_filesystem_volumes" => &mut self.filesystems,
            "bulkhead_pool_inodes" => &mut self.inodes,
            "bulkhead_pool_free_inodes" => &mut self.free_inodes,
            "bulkhead_pool_cordoned" => {
                self.is_cordoned = sample.value != 0.0;
                return;
            }
            "bulkhead_pool_condition" => {
                let kind = sample.label("condition").map(ConditionKind::named);
                self.conditions.extend(kind.filter(|_| sample.value != 0.0));
                return;
            }
            _ => return,
        };
        *figure = Some(sample.value as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_metrics_tell_of_its_pools() {
        let agent = Agent::of(
            "bulkhead_build_info{version=\"0.1.0\"} 1\n\
             bulkhead_pool_size_bytes{pool=\"fast\"} 1073741824\n\
             bulkhead_pool_volumes{pool=\"fast\"} 3\n\
             bulkhead_pool_filesystem_limit{pool=\"fast\"} 300\n\
             bulkhead_pool_filesystem_volumes{pool=\"fast\"} 2\n\
             bulkhead_pool_inodes{pool=\"fast\"} 65536\n\
             bulkhead_pool_free_inodes{pool=\"fast\"} 65000\n\
             bulkhead_pool_condition{pool=\"fast\",condition=\"shut_down\"} 1\n\
             bulkhead_pool_condition{pool=\"fast\",condition=\"errors\"} 0\n\
             bulkhead_pool_condition{pool=\"slow\",condition=\"of a later release\"} 1\n\
             bulkhead_pool_cordoned{pool=\"slow\"} 1\n\
             bulkhead_ready{part=\"helper\"} 1\n\
             bulkhead_ready{part=\"changed-blocks\"} 0\n\
             bulkhead_namespace_promised_bytes{pool=\"fast\",namespace=\"shop\"} 4096\n\
             bulkhead_namespace_share_used_ratio{pool=\"fast\",namespace=\"shop\"} 0.5\n",
        );
        assert_eq!((agent.release.as_str(), agent.serves_changed_blocks), ("0.1.0", Some(false)));
        let fast = &agent.pools["fast"];
        assert_eq!((fast.size, fast.volumes, fast.used), (Some(1 << 30), Some(3), None));
        assert_eq!((fast.filesystem_limit, fast.filesystems), (Some(300), Some(2)));
        assert_eq!(fast.inode_count(), Some(InodeCount { total: 65_536, free: 65_000 }));
        assert!(agent.pools["slow"].is_cordoned && !fast.is_cordoned);
        assert_eq!(fast.conditions, [ConditionKind::named("shut_down")]);
        assert_eq!(agent.pools["slow"].inode_count(), None, "an agent of an earlier release does not say");
        let shop = agent.holdings[&("fast".to_owned(), "shop".to_owned())];
        assert_eq!((agent.holdings.len(), shop.promised, shop.volumes, shop.ratio), (1, Some(4096), None, Some(0.5)));
        assert_eq!(agent.pools["slow"].conditions, [ConditionKind::named("other")]);
    }
}
