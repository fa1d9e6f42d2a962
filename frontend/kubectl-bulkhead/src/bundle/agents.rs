//! What the pods of the agents and helpers say: their metrics and their logs.

use std::collections::BTreeMap;

use futures::{StreamExt, stream};
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::archive::{Archive, Content};
use super::progress;
use super::time::Time;
use crate::agents;
use crate::cluster::{Cluster, Failure};
use crate::proxy::{self, Unread};

/// How many pods are asked at the same time: what they say is kept until it is written.
const SIDE_BY_SIDE: usize = 4;

/// The most that is read of a log: its last lines, and of those the first mebibyte.
const LINES: usize = 4_000;
const LOG: usize = 1 << 20;
/// What stands at the end of one that has more.
const CUT: &str = "\n(kubectl bulkhead bundle has cut it here: with a shorter --since, it has what comes next)\n";

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
    time: Time,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut releases = BTreeMap::new();
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let listed = cluster.list("listing the agents' pods", api, ListParams::default().labels(agents::PODS), Some);
    // Nothing else is asked for after the pods.
    let listed = time.whole(listed).await.and_then(|listed| listed.map_err(|failure| failure.to_string()));
    let pods = match listed {
        Ok(pods) => pods,
        Err(why) => {
            archive.add("nodes", "the agents' pods", Err(why))?;
            return Ok(releases);
        }
    };
    let agents = time.whole(agents::pods(cluster)).await.ok().and_then(Result::ok).unwrap_or_default();
    let by_pod: BTreeMap<_, _> = agents.into_iter().map(|(node, agent)| (agent.name.clone(), (node, agent))).collect();
    let all = pods.len();
    let by_pod = &by_pod;
    let ask = |pod: Pod| async move {
        let mut said = logs(cluster, &pod, since, time).await;
        let mut release = None;
        if let Some((node, agent)) = by_pod.get(&pod.name_any()).filter(|(_, agent)| agent.has_port()) {
            let answer = time.whole(agent.exposition(&cluster.client)).await;
            let found = answer.and_then(|text| text.map_err(|why| why.to_string())).map(|text| {
                release = Some((node.clone(), agents::Agent::of(&text).release));
                Content::Text(text)
            });
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
async fn logs(cluster: &Cluster, pod: &Pod, since: Option<u64>, time: Time) -> Vec<Said> {
    let status = pod.status.as_ref();
    let ran = status.iter().flat_map(|status| {
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
    });
    let (mut said, mut is_silent) = (Vec::new(), false);
    for container in ran {
        let name = &container.name;
        let was_there = container.last_state.as_ref().is_some_and(|state| state.terminated.is_some());
        for is_previous in [false, true].into_iter().filter(|&is_previous| !is_previous || was_there) {
            let found = if is_silent {
                Err("it was not asked for: its node did not answer when asked for another log".to_owned())
            } else {
                let answer = time.whole(log(cluster, pod, name, is_previous, since)).await;
                is_silent = matches!(answer, Ok(Err(Unread::Late)));
                answer.and_then(|answer| read(answer.map_err(|why| why.to_string())?))
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
) -> Result<(StatusCode, String), Unread> {
    let (namespace, name) = (&cluster.namespace, pod.name_any());
    let since = since.map(|since| format!("&sinceSeconds={since}")).unwrap_or_default();
    let path = format!(
        "/api/v1/namespaces/{namespace}/pods/{name}/log?container={container}&previous={is_previous}&timestamps=true&tailLines={LINES}&limitBytes={LOG}{since}"
    );
    let right = || format!("pods/log in namespace {namespace}");
    // A server that goes beyond the limit that it was given is no server of Kubernetes.
    proxy::get(&cluster.client, &path, 2 * LOG, right).await
}

/// What an answer has of a log. It says in its place, too, where it was cut.
fn read((status, text): (StatusCode, String)) -> Result<Content, String> {
    if status != StatusCode::OK {
        return Err(format!("{status}: {}", text.chars().take(1000).collect::<String>()));
    }
    let has_all_lines = text.lines().count() < LINES;
    Ok(match (text.len() < LOG, has_all_lines) {
        (true, true) => Content::Text(text),
        (true, false) => Content::Part(text, format!("only its last {LINES} lines were asked for")),
        (false, _) => {
            Content::Part(text + CUT, format!("cut: of its last {LINES} lines, only the first {} MiB", LOG >> 20))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_of_which_there_may_be_more_is_not_whole() {
        let said = |text: String| read((StatusCode::OK, text)).unwrap();
        assert!(matches!(said("x\n".repeat(LINES - 1)), Content::Text(_)));
        assert!(
            matches!(said("x\n".repeat(LINES)), Content::Part(text, why) if !text.contains(CUT) && why.contains("last 4000"))
        );
        assert!(
            matches!(said("x".repeat(LOG)), Content::Part(text, why) if text.ends_with(CUT) && why.starts_with("cut: "))
        );
        assert!(
            read((StatusCode::NOT_FOUND, "none".to_owned()))
                .is_err_and(|why| why.contains("404") && why.contains("none"))
        );
    }
}
