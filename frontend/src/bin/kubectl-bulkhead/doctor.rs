//! `doctor`: checks what the cluster's volumes depend on.

use bulkhead_frontend::kubernetes::{names, policies_in_force};
use bulkhead_frontend::report::{Report, Table};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::cluster::{Cluster, Failure, failed};
use crate::lost::Lost;
use crate::nodes::{self, Member};

/// The name of the agents' service account.
const ACCOUNT: &str = "bulkhead-agent";

/// The namespace of the agents where no DaemonSet tells another.
const NAMESPACE: &str = "bulkhead-system";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Ok,
    Note,
    Failed,
}

struct Check(Outcome, String, String);

/// All checks, and whether none failed.
pub async fn run(cluster: &Cluster) -> Result<(Report, bool), Failure> {
    let mut checks = vec![driver(cluster).await?];
    let agents = daemon_set(cluster).await?;
    let namespace = agents.as_ref().and_then(ResourceExt::namespace).unwrap_or_else(|| NAMESPACE.to_owned());
    checks.push(policies(cluster, &namespace).await);
    checks.push(agents.as_ref().map_or_else(without_daemon_set, rollout));
    let members = nodes::members(cluster).await?;
    if members.is_empty() {
        let message = "none has the driver: is an agent running on a node with a pool?".to_owned();
        checks.push(Check(Outcome::Failed, "nodes".to_owned(), message));
    }
    checks.extend(members.iter().map(|(name, member)| node(name, member)));
    let lost = Lost::find(cluster).await?;
    if !lost.claims.is_empty() {
        let message = format!(
            "{} claims wait for nodes that do not exist: `kubectl bulkhead orphans` lists them, and release-node gives them back",
            lost.claims.len()
        );
        checks.push(Check(Outcome::Failed, "claims".to_owned(), message));
    }
    let healthy = checks.iter().all(|check| check.0 != Outcome::Failed);
    let rows = checks.iter().map(|Check(outcome, name, message)| [word(*outcome), name.clone(), message.clone()]);
    let table = Table::rows(rows);
    let json = checks.iter().map(|Check(outcome, name, message)| {
        json!({ "name": name, "outcome": word(*outcome).to_lowercase(), "message": message })
    });
    let json = json!({ "healthy": healthy, "checks": json.collect::<Vec<_>>() });
    Ok((Report::new(json, table), healthy))
}

fn word(outcome: Outcome) -> String {
    match outcome {
        Outcome::Ok => "ok",
        Outcome::Note => "note",
        Outcome::Failed => "FAILED",
    }
    .to_owned()
}

async fn driver(cluster: &Cluster) -> Result<Check, Failure> {
    let drivers: Api<CSIDriver> = Api::all(cluster.client.clone());
    let found = drivers.get_opt(&cluster.driver).await.map_err(failed("looking for the CSIDriver object"))?;
    let name = format!("CSIDriver {}", cluster.driver);
    Ok(match found {
        None => Check(Outcome::Failed, name, "is missing: apply deploy/kubernetes/base".to_owned()),
        Some(driver) if driver.spec.attach_required != Some(false) || driver.spec.storage_capacity != Some(true) => {
            let message = "has other settings than this release's: apply deploy/kubernetes/base".to_owned();
            Check(Outcome::Failed, name, message)
        }
        Some(_) => Check(Outcome::Ok, name, "is as it should be".to_owned()),
    })
}

async fn policies(cluster: &Cluster, namespace: &str) -> Check {
    let account = format!("system:serviceaccount:{namespace}:{ACCOUNT}");
    match policies_in_force(&cluster.client, &account).await {
        Ok(()) => {
            let message = format!("all {} are in force for {account}", names::AGENT_POLICIES.len());
            Check(Outcome::Ok, "policies".to_owned(), message)
        }
        Err(flaw) => Check(Outcome::Failed, "policies".to_owned(), flaw),
    }
}

async fn daemon_set(cluster: &Cluster) -> Result<Option<DaemonSet>, Failure> {
    let sets: Api<DaemonSet> = Api::all(cluster.client.clone());
    let parameters = ListParams::default().labels("app.kubernetes.io/name=bulkhead");
    Ok(sets.list(&parameters).await.map_err(failed("listing DaemonSets"))?.items.into_iter().next())
}

fn without_daemon_set() -> Check {
    let message = "there is no DaemonSet: right if the agents are services of the hosts".to_owned();
    Check(Outcome::Note, "agents".to_owned(), message)
}

fn rollout(set: &DaemonSet) -> Check {
    let status = set.status.clone().unwrap_or_default();
    let (ready, wanted) = (status.number_ready, status.desired_number_scheduled);
    let message = format!("{ready} of {wanted} are ready");
    if ready == wanted {
        Check(Outcome::Ok, "agents".to_owned(), message)
    } else {
        let namespace = set.namespace().unwrap_or_default();
        let look = format!("{message}; look at `kubectl --namespace {namespace} describe pods`");
        Check(Outcome::Failed, "agents".to_owned(), look)
    }
}

fn node(name: &str, member: &Member) -> Check {
    let outcome = if nodes::state(member) == "ready" { Outcome::Ok } else { Outcome::Failed };
    let message = match nodes::state(member) {
        "lost" => format!(
            "does not exist, but {} volumes are on it; if it is gone for good: `kubectl bulkhead release-node {name}`",
            member.volumes
        ),
        "not-registered" => "the kubelet has not registered the driver: is the agent running, and ready?".to_owned(),
        "not-ready" => "the agent's pod is not ready: look at its log, and run `bulkheadctl doctor` there".to_owned(),
        "no-capacity" => "publishes no capacity, so that no pod is scheduled there: look at the agent's log".to_owned(),
        _ => format!("{} volumes", member.volumes),
    };
    Check(outcome, format!("node {name}"), message)
}
