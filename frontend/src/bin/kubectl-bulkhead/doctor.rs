//! `doctor`: checks what the cluster's volumes depend on.

use bulkhead_frontend::checks::{self, Check};
use bulkhead_frontend::kubernetes::{names, policies_in_force};
use bulkhead_frontend::quantity::{Quantity, count};
use bulkhead_frontend::report::Report;
use bulkhead_frontend::volumes::Severity;
use futures::{StreamExt, stream};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::agents::{self, AgentPod, Pool};
use crate::cluster::{ACCOUNT, Cluster, Failure};
use crate::lost::Lost;
use crate::nodes::{self, Member};

/// All checks, and whether none failed.
pub async fn run(cluster: &Cluster) -> Result<(Report, bool), Failure> {
    let mut checks = vec![driver(cluster).await?];
    let set = daemon_set(cluster).await?;
    checks.push(policies(cluster).await);
    checks.push(set.as_ref().map_or_else(without_daemon_set, rollout));
    let members = nodes::members(cluster).await?;
    if members.is_empty() {
        let message = "none has the driver: is an agent running on a node with a pool?";
        checks.push(Check::failed("nodes", message));
    }
    let nodes = stream::iter(&members).map(|(name, member)| node(cluster, name, member));
    checks.extend(nodes.buffered(agents::SIDE_BY_SIDE).collect::<Vec<_>>().await);
    let pods = members.iter().filter_map(|(node, member)| Some((node, member.pod.as_ref()?)));
    for (node, read) in agents::read_all(cluster, pods).await {
        match read {
            Ok(agent) => checks.extend(agent.pools.iter().map(|(name, found)| pool(&node, name, found))),
            Err(why) => checks.push(Check::note(format!("pools on {node}"), format!("unknown: {why}"))),
        }
    }
    let lost = Lost::find(cluster).await?;
    if !lost.claims.is_empty() {
        let message = format!(
            "waiting for nodes that do not exist: {}; `kubectl bulkhead orphans` lists them, and release-node gives them back",
            count(lost.claims.len() as u64, "claim")
        );
        checks.push(Check::failed("claims", message));
    }
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
    match policies_in_force(&cluster.client, &account).await {
        Ok(()) => {
            let message = format!("all {} are in force for {account}", names::AGENT_POLICIES.len());
            Check::ok("policies", message)
        }
        Err(flaw) => Check::failed("policies", flaw),
    }
}

async fn daemon_set(cluster: &Cluster) -> Result<Option<DaemonSet>, Failure> {
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let parameters = ListParams::default().labels("app.kubernetes.io/name=bulkhead");
    Ok(sets.list(&parameters).await.map_err(cluster.failed("listing DaemonSets"))?.items.into_iter().next())
}

fn without_daemon_set() -> Check {
    let message = "there is no DaemonSet, which is correct if the agents run as services on the hosts";
    Check::note("agents", message)
}

fn rollout(set: &DaemonSet) -> Check {
    let status = set.status.clone().unwrap_or_default();
    let (ready, wanted) = (status.number_ready, status.desired_number_scheduled);
    let message = format!("{ready} of {wanted} are ready");
    if ready == wanted {
        Check::ok("agents", message)
    } else {
        let namespace = set.namespace().unwrap_or_default();
        let look = format!("{message}; look at `kubectl --namespace {namespace} describe pods`");
        Check::failed("agents", look)
    }
}

async fn node(cluster: &Cluster, node: &str, member: &Member) -> Check {
    let name = format!("node {node}");
    match nodes::state(member) {
        "ready" => Check::ok(name, count(member.volumes as u64, "volume")),
        "lost" => Check::failed(
            name,
            format!(
                "does not exist, but the cluster knows {} there; if it is gone for good: `kubectl bulkhead release-node {node}`",
                count(member.volumes as u64, "volume")
            ),
        ),
        "not-registered" => {
            Check::failed(name, "the kubelet has not registered the driver: is the agent running, and ready?")
        }
        "not-ready" => Check::failed(name, not_ready(cluster, member.pod.as_ref()).await),
        _ => Check::failed(name, "publishes no capacity, so no pod is scheduled there: see the agent's log"),
    }
}

/// Why an agent is not ready, in its own words.
async fn not_ready(cluster: &Cluster, pod: Option<&AgentPod>) -> String {
    let Some(pod) = pod else { return String::new() };
    match pod.missing_parts(&cluster.client).await {
        Ok(parts) if parts.is_empty() => "the agent is ready, but its pod is not yet: wait a moment".to_owned(),
        Ok(parts) => format!("the agent is not ready: {}", parts.join("; ")),
        Err(why) => format!("the agent's pod {} is not ready: look at its log; {why}", pod.name),
    }
}

fn pool(node: &str, name: &str, pool: &Pool) -> Check {
    let check = format!("pool {name} on {node}");
    let size = |bytes: Option<u64>| Quantity::from(bytes.unwrap_or_default());
    let room = match pool.size {
        Some(_) => format!("{} of {} available", size(pool.available), size(pool.size)),
        None => "no figures".to_owned(),
    };
    let facts = std::iter::once(room.as_str()).chain(pool.conditions.iter().map(|kind| kind.meaning));
    let message = facts.collect::<Vec<_>>().join("; ");
    if pool.conditions.is_empty() {
        Check::ok(check, message)
    } else if pool.conditions.iter().all(|kind| kind.severity == Severity::Notice) {
        Check::note(check, message)
    } else {
        Check::failed(check, format!("{message}: see `bulkheadctl pool list` on the node"))
    }
}
