//! `doctor`: checks what the cluster's volumes depend on.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_console::checks;
use bulkhead_console::report::Report;
use bulkhead_model::check::Check;
use bulkhead_model::findings::Findings;
use bulkhead_model::objects::names;
use bulkhead_model::policies::{by_name, judge};
use bulkhead_model::quantity::{Quantity, count};
use bulkhead_model::reading::Unended;
use bulkhead_model::volumes::{Identity, InodeCount, Severity};
use bulkhead_protocol::kernel::{SHARED_BLOCKS, changes_shared_blocks};
use futures::{StreamExt, stream};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::CSIDriver;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::agents::{self, Agent, AgentPod, Pool};
use crate::classes::{self, Pools};
use crate::cluster::{ACCOUNT, Cluster, Failure};
use crate::decoys;
use crate::lost::{Lost, full_name};
use crate::moved::{self, Moved, Search};
use crate::nodes::{self, Member};
use crate::pods;
use crate::pools::CORDONED;
use crate::proxy::Unread;
use crate::rollout;
use crate::snapshots;
use crate::split;
use crate::uncontrolled;
use crate::unheld::{self, Sources};

/// All checks, and whether none failed.
pub async fn run(cluster: &Cluster) -> Result<(Report, bool), Failure> {
    let mut checks = vec![driver(cluster).await?];
    let sets = rollout::daemon_sets(cluster).await?;
    checks.push(policies(cluster).await);
    checks.extend(rollout::checks(&cluster.namespace, &sets));
    let members = nodes::members(cluster).await?;
    if members.is_empty() {
        let message = "none has the driver: is an agent running on a node with a pool?";
        checks.push(Check::failed("nodes", message));
    }
    let exist = members.iter().filter(|(_, member)| member.exists).map(|(node, _)| node.clone()).collect();
    let findings = agents::findings(cluster, exist).await;
    let search = moved::find(cluster, &findings).await?;
    let nodes = stream::iter(&members).map(|(name, member)| node(cluster, name, member, &search));
    checks.extend(nodes.buffered(agents::SIDE_BY_SIDE).collect::<Vec<_>>().await);
    checks.extend(members.iter().filter_map(|(name, member)| kernel(name, &member.known.kernel)));
    let pods = members.iter().filter_map(|(node, member)| Some((node, member.pod.as_ref()?)));
    // An agent that runs as a service of the host has no pod to ask.
    let mut pools = members.values().all(|member| member.pod.is_some()).then(Pools::new);
    for (node, read) in agents::read_all(cluster, pods).await {
        match read {
            Ok(agent) => {
                checks.extend(agent.pools.iter().map(|(name, found)| pool(&node, name, found)));
                let pod = members.get(&node).and_then(|member| member.pod.as_ref());
                checks.extend(changed_blocks(cluster, &node, &agent, pod).await);
                if let Some(known) = &mut pools {
                    for (name, pool) in agent.pools {
                        *known.entry(name).or_default() |= pool.filesystem_limit.is_some_and(|limit| limit > 0);
                    }
                }
            }
            Err(why) => {
                checks.push(Check::note(format!("pools on {node}"), format!("unknown: {why}")));
                pools = None;
            }
        }
    }
    checks.extend(members.iter().filter(|(_, member)| member.pod.is_none()).flat_map(on_host));
    let classes = classes::flaws(cluster, pools.as_ref()).await?;
    checks.extend(classes.into_iter().map(|(class, flaw)| match flaw {
        None => Check::ok(format!("class {class}"), "volumes of it can be made"),
        Some(flaw) => Check::failed(format!("class {class}"), format!("no volume of it can be made: {flaw}")),
    }));
    for (node, findings) in &findings {
        checks.extend(findings.iter().flat_map(|findings| volumes(node, findings)));
    }
    // What a node that is lost had is told with that node.
    let is_told = |moved: &&Moved| members.get(&moved.from).is_none_or(|member| !member.exists);
    let told = |moved: &Moved| Check::failed(format!("volumes on {}", moved.to), moved.advice(&cluster.driver));
    checks.extend(search.moved.iter().filter(|moved| !is_told(moved)).map(told));
    checks.extend(stale_capacities(cluster).await?);
    let claims = cluster.unbound_claims().await?;
    let volumes = cluster.volumes().await?;
    checks.extend(decoys::find(&cluster.driver, &claims, &volumes));
    let unbound = claims.clone();
    let claims = cluster.waiting(claims);
    if let Some(pods) = pods::by_claim(cluster, None).await? {
        checks.extend(split::find(&pods, &volumes, &claims));
    }
    checks.extend(waiting(&claims, &members));
    let snapshots = snapshots::all(cluster).await?;
    let sources = Sources {
        volumes: &volumes,
        snapshots: snapshots.as_deref(),
        nodes: members.iter().filter(|(_, member)| member.exists).map(|(node, _)| node.as_str()).collect(),
    };
    checks.extend(unheld::find(&cluster.driver, &unbound, &sources));
    let snapshots = snapshots.unwrap_or_default();
    checks.extend(uncontrolled::find(cluster, &volumes).await?);
    checks.extend(snapshots::unowned(&snapshots));
    checks.extend(snapshots::unowned(&snapshots::groups(cluster).await?.unwrap_or_default()));
    let exists = |node: &str| members.get(node).is_some_and(|member| member.exists);
    checks.extend(snapshots::on_lost_nodes(&snapshots, exists, |node| search.from(node).next().is_some()));
    let lost = Lost::find(cluster).await?;
    if !lost.claims.is_empty() {
        let message = format!(
            "waiting for nodes that do not exist: {}; `kubectl bulkhead orphans` lists them, and release-node gives them back",
            count(lost.claims.len() as u64, "claim")
        );
        checks.push(Check::failed("claims", message));
    }
    let unended = cluster.unended.borrow();
    let told =
        |(pod, why): (&String, &Unended)| Check::failed(format!("agent {pod}"), Unread::Unended(*why).to_string());
    checks.extend(unended.iter().map(told));
    Ok(checks::report(&checks))
}

async fn driver(cluster: &Cluster) -> Result<Check, Failure> {
    let drivers: Api<CSIDriver> = Api::all(cluster.client.clone());
    let found = drivers.get_opt(&cluster.driver).await.map_err(cluster.failed("looking for the CSIDriver object"))?;
    let name = format!("CSIDriver {}", cluster.driver);
    Ok(match found {
        None => Check::failed(name, "is missing: apply deploy/kubernetes/base"),
        Some(driver) if driver.spec.attach_required != Some(false) || driver.spec.storage_capacity != Some(true) => {
            let message = "its settings differ from this release's: apply deploy/kubernetes/base";
            Check::failed(name, message)
        }
        Some(_) => Check::ok(name, "is as it should be"),
    })
}

async fn policies(cluster: &Cluster) -> Check {
    let account = format!("system:serviceaccount:{}:{ACCOUNT}", cluster.namespace);
    match policies_in_force(cluster, &account).await {
        Ok(()) => {
            let message = format!("all {} are in force for {account}", names::AGENT_POLICIES.len());
            Check::ok("policies", message)
        }
        Err(flaw) => Check::failed("policies", flaw),
    }
}

/// Checks that they are in force for the user called `account`; otherwise the error says what is wrong.
async fn policies_in_force(cluster: &Cluster, account: &str) -> Result<(), String> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.client.clone());
    let parameters = ListParams::default().match_any().labels(&names::confines_agents(&cluster.driver));
    let operation = "looking for the agents' admission policies";
    let policies = cluster.list(operation, policies, parameters.clone(), Some).await;
    let bindings = cluster.list(operation, bindings, parameters, Some).await;
    let (policies, bindings) = (policies.map_err(|it| it.to_string())?, bindings.map_err(|it| it.to_string())?);
    judge(account, &cluster.driver, &by_name(policies), &by_name(bindings))
}

async fn node(cluster: &Cluster, node: &str, member: &Member, search: &Search) -> Check {
    let name = format!("node {node}");
    match nodes::state(member) {
        "ready" => Check::ok(name, count(member.volumes as u64, "volume")),
        "lost" => {
            let known = count(member.volumes as u64, "volume");
            let moved: Vec<_> = search.from(node).map(|moved| moved.advice(&cluster.driver)).collect();
            // What was found comes back first: giving the node up would give that up, too.
            let advice = match moved.is_empty() {
                true => format!("if it is gone for good: `kubectl bulkhead release-node {node}`"),
                false => moved.join("; "),
            };
            Check::failed(name, format!("does not exist, but the cluster knows {known} there; {advice}"))
        }
        "gone" => {
            let message =
                "does not exist any more, and left no volume: the cluster removes its pod and its capacity by itself";
            Check::note(name, message)
        }
        "no-kubelet" => {
            let message = "its kubelet does not report any more, so no pod is started there: is the node up, and its kubelet running?";
            Check::failed(name, message)
        }
        "silent" => {
            let minutes = member.silent.map(|silent| silent.as_mins()).unwrap_or_default().unsigned_abs();
            let message = format!(
                "its agent has not said for {} that it works (Lease {node} in namespace {}): is it running, and does it reach the API server? See its log, or `systemctl status bulkhead-frontend` on the node",
                count(minutes, "minute"),
                cluster.namespace
            );
            Check::failed(name, message)
        }
        "not-registered" => {
            Check::failed(name, "the kubelet has not registered the driver: is the agent running, and ready?")
        }
        "not-labelled" => {
            let key = cluster.node_key();
            let message = format!(
                "lacks the label {key}, so no pod with a volume is scheduled there: restart its kubelet, or `kubectl label node {node} {key}={node}`"
            );
            Check::failed(name, message)
        }
        "not-ready" => Check::failed(name, not_ready(cluster, member).await),
        _ => Check::failed(name, "publishes no capacity, so no pod is scheduled there: see the agent's log"),
    }
}

/// Returns what is to be known of a node's kernel, by its release.
fn kernel(node: &str, release: &str) -> Option<Check> {
    let message = format!("Linux {release}: where a pool is on XFS, {SHARED_BLOCKS}");
    changes_shared_blocks(release).then(|| Check::note(format!("kernel of {node}"), message))
}

/// Returns why an agent is not ready, in its own words.
async fn not_ready(cluster: &Cluster, member: &Member) -> String {
    let Some(pod) = &member.pod else {
        let why = member.not_ready.as_deref().unwrap_or_default();
        return format!(
            "the agent is not ready: {why}; on the node, see `systemctl status bulkhead-privhelper bulkhead-frontend` and their logs"
        );
    };
    let told = match pod.missing_parts(&cluster.client).await {
        Ok(parts) if parts.is_empty() => "the agent is ready, but its pod is not yet: wait a moment".to_owned(),
        Ok(parts) => format!("the agent is not ready: {}", parts.join("; ")),
        Err(why) => format!("the agent's pod {} is not ready: look at its log; {why}", pod.name),
    };
    let ends = pod.ends.iter().map(|(container, words)| format!("; {container} ended: {words}"));
    std::iter::once(told).chain(ends).collect()
}

/// Returns whether an agent tells backup programs what has changed, if it is to.
async fn changed_blocks(cluster: &Cluster, node: &str, agent: &Agent, pod: Option<&AgentPod>) -> Option<Check> {
    let name = format!("changed blocks on {node}");
    if agent.serves_changed_blocks? {
        return Some(Check::ok(name, "served to backup programs"));
    }
    let why = pod?.without_changed_blocks(&cluster.client).await;
    Some(Check::failed(name, why.unwrap_or_else(|unread| format!("not served: see the agent's log; {unread}"))))
}

/// How long a claim may wait for the agent of its node. The agent takes milliseconds.
const WAITING: SignedDuration = SignedDuration::from_secs(60);

/// The claims that wait too long for a node that exists, of those that wait for one.
fn waiting(claims: &[(String, PersistentVolumeClaim)], members: &BTreeMap<String, Member>) -> Vec<Check> {
    let now = Timestamp::now();
    let mut waiting = BTreeMap::<String, Vec<String>>::new();
    for (node, claim) in claims {
        let made = claim.metadata.creation_timestamp.as_ref();
        let is_late = made.is_some_and(|made| now.duration_since(made.0) > WAITING);
        if is_late && members.get(node).is_none_or(|member| member.exists) {
            waiting.entry(node.clone()).or_default().push(full_name(claim));
        }
    }
    let check = |(node, claims): (String, Vec<String>)| {
        let some = claims.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = if claims.len() > 3 { ", …" } else { "" };
        let message = format!(
            "older than a minute, and without a volume on node {}: {} ({some}{more}): their events say why, or no agent runs there",
            names::shown(&node),
            count(claims.len() as u64, "claim")
        );
        Check::failed("claims", message)
    };
    waiting.into_iter().map(check).collect()
}

/// Capacity objects in other namespaces than the agents'.
async fn stale_capacities(cluster: &Cluster) -> Result<Vec<Check>, Failure> {
    let mut stale = BTreeMap::<String, u64>::new();
    for (_, capacity) in cluster.all_capacities().await? {
        let namespace = capacity.namespace().unwrap_or_default();
        if namespace != cluster.namespace {
            *stale.entry(namespace).or_default() += 1;
        }
    }
    let check = |(namespace, objects): (String, u64)| {
        let message = format!(
            "{} of a former installation in namespace {namespace} mislead the scheduler: `kubectl --namespace {namespace} delete csistoragecapacities --selector {}={}`",
            count(objects, "object"),
            names::DRIVER_LABEL,
            cluster.driver
        );
        Check::failed("capacity", message)
    };
    Ok(stale.into_iter().map(check).collect())
}

/// Returns what the agent on a node has found about single volumes. What its pools report is told with them.
fn volumes(node: &str, findings: &Findings) -> Vec<Check> {
    let name = format!("volumes on {node}");
    let missing = findings.abnormal.iter().filter(|found| found.missing).count() as u64;
    let unserved = findings.abnormal.iter().filter(|found| found.unserved).count() as u64;
    let others = findings.abnormal.iter().filter(|found| !found.missing && !found.unserved).count() as u64;
    let orphans = findings.orphans.len() as u64;
    let mut checks = Vec::new();
    if missing > 0 {
        let message =
            format!("{} missing: `kubectl bulkhead volumes` says which, and what to do", count(missing, "volume"));
        checks.push(Check::failed(name.clone(), message));
    }
    if unserved > 0 {
        let message =
            format!("{} not served: `kubectl bulkhead volumes` says which, and why", count(unserved, "volume"));
        checks.push(Check::failed(name.clone(), message));
    }
    if others > 0 {
        let message = format!("{} abnormal: `kubectl bulkhead volumes` says which, and why", count(others, "volume"));
        checks.push(Check::failed(name.clone(), message));
    }
    if orphans > 0 {
        let message =
            format!("{} that no PersistentVolume names: see `kubectl bulkhead orphans`", count(orphans, "volume"));
        checks.push(Check::note(name, message));
    }
    checks
}

/// The pools of an agent that runs as a service of its host, as it has last reported them. What else it has found can be
/// read only there.
fn on_host((node, member): (&String, &Member)) -> Vec<Check> {
    if !member.exists || !member.registered {
        return Vec::new();
    }
    let kinds = |words: &BTreeSet<String>| words.iter().map(|word| Identity::parse(word).kind()).collect();
    let pools =
        member.reported.iter().map(|(name, words)| (name, Pool { conditions: kinds(words), ..Pool::default() }));
    let mut checks: Vec<Check> = pools.map(|(name, found)| pool(node, name, &found)).collect();
    let message = "unknown: its agent runs as a service of the host; run `bulkheadctl doctor` there";
    checks.push(Check::note(format!("volumes on {node}"), message));
    checks
}

fn pool(node: &str, name: &str, pool: &Pool) -> Check {
    let check = format!("pool {name} on {node}");
    let size = |bytes: Option<u64>| Quantity::from(bytes.unwrap_or_default());
    let room = match pool.size {
        Some(_) => format!("{} of {} available", size(pool.available), size(pool.size)),
        None => "no figures".to_owned(),
    };
    let filesystems = pool.filesystem_limit.map(|limit| {
        let number = count(pool.filesystems.unwrap_or_default(), "volume");
        format!("{number} of at most {limit} with a filesystem in an image")
    });
    let shortage = pool.inode_count().and_then(InodeCount::shortage);
    let facts = std::iter::once(room.as_str())
        .chain(filesystems.as_deref())
        .chain(shortage.as_deref())
        .chain(pool.conditions.iter().map(|kind| kind.meaning))
        .chain(pool.is_cordoned.then_some(CORDONED.1));
    let message = facts.collect::<Vec<_>>().join("; ");
    if pool.conditions.is_empty() && shortage.is_none() && !pool.is_cordoned {
        Check::ok(check, message)
    } else if pool.conditions.iter().all(|kind| kind.severity == Severity::Notice) {
        Check::note(check, message)
    } else {
        Check::failed(check, format!("{message}: see `bulkheadctl pool list` on the node"))
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_model::check::Outcome;

    use super::*;

    #[test]
    fn a_kernel_with_a_flaw_is_noted_and_another_is_not() {
        let note = kernel("n", "6.18.44-talos").expect("a note");
        assert_eq!((note.name.as_str(), note.outcome), ("kernel of n", Outcome::Note));
        assert!(note.message.starts_with("Linux 6.18.44-talos: ") && note.message.contains("CVE-2026-80530"));
        assert!(kernel("n", "6.18.46-talos").is_none() && kernel("n", "").is_none());
    }
}
