//! What the pods of the agents and helpers say: their metrics and their logs.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt, stream};
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use tokio::time::{Instant, timeout_at};

use super::archive::{Archive, Content};
use super::progress;
use crate::agents;
use crate::cluster::{Cluster, Failure};
use crate::proxy;

/// How many pods are asked at the same time: what they say is kept until it is written.
const SIDE_BY_SIDE: usize = 4;

/// The most that is read of a log: its last lines, and of those the first mebibyte.
const LINES: usize = 4_000;
const LOG: usize = 1 << 20;
/// What stands at the end of one that has more.
const CUT: &str = "\n(kubectl bulkhead bundle has cut it here: with a shorter --since, it has what comes next)\n";

/// How long all of them together may take.
const IN_ALL: Duration = Duration::from_secs(1800);

/// What one source of a pod gave.
struct Said {
    path: String,
    source: String,
    found: Result<Content, String>,
}

/// Adds what all pods of the release say. Returns the releases of the agents, by node.
pub async fn add(
    cluster: &Cluster,
    archive: &mut Archive,
    since: Option<u64>,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut releases = BTreeMap::new();
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let pods =
        match cluster.list("listing the agents' pods", api, ListParams::default().labels(agents::PODS), Some).await {
            Ok(pods) => pods,
            Err(failure) => {
                archive.add("nodes", "the agents' pods", Err(failure.to_string()))?;
                return Ok(releases);
            }
        };
    let agents = agents::pods(cluster).await.unwrap_or_default();
    let by_pod: BTreeMap<_, _> = agents.into_iter().map(|(node, agent)| (agent.name.clone(), (node, agent))).collect();
    let (end, all) = (Instant::now() + IN_ALL, pods.len());
    let by_pod = &by_pod;
    let ask = |pod: Pod| async move {
        let mut said = logs(cluster, &pod, since, end).await;
        let mut release = None;
        if let Some((node, agent)) = by_pod.get(&pod.name_any()).filter(|(_, agent)| agent.has_port()) {
            let answer = timeout_at(end, agent.exposition(&cluster.client)).await;
            let found = match answer {
                Ok(Ok(text)) => {
                    release = Some((node.clone(), agents::Agent::of(&text).release));
                    Ok(Content::Text(text))
                }
                Ok(Err(why)) => Err(why.to_string()),
                Err(_) => Err("no time was left".to_owned()),
            };
            said.push(Said { path: path(&pod, "metrics.txt"), source: format!("pod {}", agent.name), found });
        }
        (said, release)
    };
    let mut answers = std::pin::pin!(stream::iter(pods).map(ask).buffer_unordered(SIDE_BY_SIDE));
    let mut done = 0;
    while let Some((said, release)) = answers.next().await {
        done += 1;
        progress(&format!("{done} of {all} pods"));
        releases.extend(release);
        for Said { path, source, found } in said {
            archive.add(&path, &source, found)?;
        }
    }
    Ok(releases)
}

/// Where in the archive something of a pod is.
fn path(pod: &Pod, what: &str) -> String {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("no-node");
    format!("nodes/{node}/{}/{what}", pod.name_any())
}

/// The logs of a pod's containers, and of those that ran in their places before.
async fn logs(cluster: &Cluster, pod: &Pod, since: Option<u64>, end: Instant) -> Vec<Said> {
    let status = pod.status.as_ref();
    let ran = status.iter().flat_map(|status| {
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
    });
    let mut said = Vec::new();
    for container in ran {
        let name = &container.name;
        let was_there = container.last_state.as_ref().is_some_and(|state| state.terminated.is_some());
        for is_previous in [false, true].into_iter().filter(|&is_previous| !is_previous || was_there) {
            let found = match timeout_at(end, log(cluster, pod, name, is_previous, since)).await {
                Ok(found) => found.map(Content::Text),
                Err(_) => Err("no time was left".to_owned()),
            };
            let suffix = if is_previous { ".previous" } else { "" };
            let path = path(pod, &format!("{name}{suffix}.log"));
            said.push(Said { path, source: format!("log of pod {}, container {name}", pod.name_any()), found });
        }
    }
    if said.is_empty() {
        let found = Err("no container of it has ever run, as far as the API server knows".to_owned());
        said.push(Said { path: path(pod, "logs"), source: format!("pod {}", pod.name_any()), found });
    }
    said
}

async fn log(
    cluster: &Cluster,
    pod: &Pod,
    container: &str,
    is_previous: bool,
    since: Option<u64>,
) -> Result<String, String> {
    let (namespace, name) = (&cluster.namespace, pod.name_any());
    let since = since.map(|since| format!("&sinceSeconds={since}")).unwrap_or_default();
    let path = format!(
        "/api/v1/namespaces/{namespace}/pods/{name}/log?container={container}&previous={is_previous}&timestamps=true&tailLines={LINES}&limitBytes={LOG}{since}"
    );
    let right = || format!("pods/log in namespace {namespace}");
    // A server that goes beyond the limit that it was given is no server of Kubernetes.
    match proxy::get(&cluster.client, &path, 2 * LOG, right).await {
        Ok((StatusCode::OK, text)) if text.len() >= LOG => Ok(text + CUT),
        Ok((StatusCode::OK, text)) => Ok(text),
        Ok((status, text)) => Err(format!("{status}: {}", text.chars().take(1000).collect::<String>())),
        Err(why) => Err(why.to_string()),
    }
}
