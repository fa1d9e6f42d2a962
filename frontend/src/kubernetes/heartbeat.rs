//! The node's Lease: written anew every minute while the agent works, so that everybody can see whether it does, wherever
//! it runs; and what of it does not, which for an agent on a host nobody else could say. It also holds what was reported
//! about pools, so that the next agent can say that it is over.

use std::collections::{BTreeMap, HashSet};
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bulkhead_model::objects::lease::{self, OVERDUE, PERIOD, Reported};
use bulkhead_model::objects::names::{self, DRIVER_LABEL, MANAGED_BY, MANAGED_BY_LABEL};
use bulkhead_model::volumes::Identity;
use futures::TryStreamExt;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams};
use kube::{Api, ResourceExt};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::api::backoff::jitter;
use super::api::failure::Failure;
use super::api::node_identity::owner;
use super::api::pages::list;
use super::api::request::request;
use super::capacity::reporter::CapacityReporter;
use super::context::Context;
use crate::readiness::{LONGEST_REASON, Readiness};
use crate::volumes::Health;

/// How long it is not written again, whatever changes, and how often it is looked whether something does.
const FLOOR: Duration = Duration::from_secs(10);

/// How many Leases are looked at to find an agent that works.
const FEW: u32 = 8;

/// How soon it is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// What is reported now, to be kept for the next agent.
#[derive(Debug, Default)]
pub struct Record {
    reported: Mutex<Reported>,
    changed: Notify,
}

impl Record {
    /// Sets what is reported.
    pub fn set(&self, reported: Reported) {
        let mut known = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != reported {
            *known = reported;
            self.changed.notify_one();
        }
    }

    fn text(&self) -> String {
        let known = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        serde_json::to_string(&*known).unwrap_or_default()
    }
}

/// Returns what is wrong with pools, in words.
pub fn words(health: &Health) -> Reported {
    let words = |conditions: &BTreeMap<Identity, _>| conditions.keys().map(Identity::word).collect();
    health.pools.iter().map(|(pool, conditions)| (pool.to_string(), words(conditions))).collect()
}

/// Returns what an earlier agent of this node has reported, as far as the API server says. It is the record until there
/// is more.
pub async fn reported_before(context: &Context, record: &Record) -> Reported {
    let lease = request("reading the agent's Lease", api(context).get_opt(&context.agent.node.name)).await;
    let lease = lease.unwrap_or_else(|failure| {
        warn!("what an earlier agent has reported is not known: {failure}");
        None
    });
    let annotation = names::reported_conditions(&context.agent.driver);
    let reported = lease.map(|lease| lease::reported(lease.annotations().get(&annotation))).unwrap_or_default();
    record.set(reported.clone());
    reported
}

/// Returns the nodes whose agents do not work, as their Leases say, by what they are called in the topology.
///
/// # Errors
/// When they cannot be listed.
pub async fn silent(context: &Context) -> Result<HashSet<String>, Failure> {
    let labels = format!("{MANAGED_BY_LABEL}={MANAGED_BY},{DRIVER_LABEL}={}", context.agent.driver);
    let mut leases = pin!(list("listing the agents' Leases", api(context), Some(&labels)));
    // By this node's clock: by the newest Lease, a single wrong one would silence all others.
    let overdue = Timestamp::now().checked_sub(OVERDUE).unwrap_or(Timestamp::MIN);
    let mut silent = HashSet::new();
    while let Some(mut lease) = leases.try_next().await? {
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
        if renewed.is_some_and(|renewed| renewed.0 < overdue) {
            silent.extend(lease.labels_mut().remove(context.agent.place.key()));
        }
    }
    Ok(silent)
}

/// Returns the first node whose agent works, as a few Leases say: one that may do something for all. `None` if none of them
/// does.
///
/// # Errors
/// When they cannot be listed.
pub async fn first(context: &Context) -> Result<Option<String>, Failure> {
    let labels = format!("{MANAGED_BY_LABEL}={MANAGED_BY},{DRIVER_LABEL}={}", context.agent.driver);
    let parameters = ListParams::default().labels(&labels).limit(FEW);
    let leases = request("listing the agents' Leases", api(context).list(&parameters)).await?;
    let overdue = Timestamp::now().checked_sub(OVERDUE).unwrap_or(Timestamp::MIN);
    let works = |lease: &Lease| {
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
        renewed.is_some_and(|renewed| renewed.0 >= overdue)
    };
    Ok(leases.items.into_iter().find(works).map(|lease| lease.name_any()))
}

/// Writes the Lease for as long as it is polled.
pub async fn run(context: &Context, record: &Record, capacity: &CapacityReporter, readiness: &Readiness) {
    let mut told = false;
    loop {
        let missing = missing(context, readiness).await;
        let written = write(context, record, capacity.owner(), &missing).await;
        let pause = match &written {
            Ok(()) => PERIOD,
            Err(failure) => failure.retry_after().unwrap_or(RETRY),
        };
        if let (Err(failure), false) = (&written, told) {
            warn!("the agent's Lease is not written, so the node will look as if no agent worked there: {failure}");
        }
        told = written.is_err();
        // It is written at once when something has changed, unless the server asks for rest.
        match written {
            Ok(()) => drop(timeout(pause + jitter(PERIOD / 6), changed(context, record, readiness, &missing)).await),
            Err(_) => sleep(pause + jitter(RETRY)).await,
        }
    }
}

/// Waits until something else is to be written.
async fn changed(context: &Context, record: &Record, readiness: &Readiness, known: &str) {
    loop {
        sleep(FLOOR).await;
        let is_reported = timeout(Duration::ZERO, record.changed.notified()).await.is_ok();
        if is_reported || missing(context, readiness).await != known {
            return;
        }
    }
}

/// Returns what does not work, in one line; empty if everything does.
async fn missing(context: &Context, readiness: &Readiness) -> String {
    readiness.look_at_helper(context.volumes.probe()).await;
    let mut missing = readiness.missing().join("; ");
    missing.truncate(missing.floor_char_boundary(LONGEST_REASON));
    missing
}

async fn write(context: &Context, record: &Record, uid: Option<String>, missing: &str) -> Result<(), Failure> {
    let patch = Patch::Apply(describe(context, record, uid, missing));
    let (leases, parameters) = (api(context), PatchParams::apply(context.agent.driver.as_str()).force());
    request("writing the agent's Lease", leases.patch(&context.agent.node.name, &parameters, &patch)).await.map(drop)
}

fn describe(context: &Context, record: &Record, uid: Option<String>, missing: &str) -> Lease {
    let labels = [(DRIVER_LABEL, context.agent.driver.as_str()), (MANAGED_BY_LABEL, MANAGED_BY)];
    let mut labels: BTreeMap<_, _> = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    labels.extend(context.agent.place.segments());
    let mut annotations = BTreeMap::from([(names::reported_conditions(&context.agent.driver), record.text())]);
    if !missing.is_empty() {
        annotations.insert(names::not_ready(&context.agent.driver), missing.to_owned());
    }
    Lease {
        metadata: ObjectMeta {
            name: Some(context.agent.node.name.clone()),
            namespace: Some(context.agent.namespace.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: uid.map(|uid| vec![owner(&context.agent.node.name, &uid)]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(context.agent.node.name.clone()),
            lease_duration_seconds: i32::try_from(OVERDUE.as_secs()).ok(),
            renew_time: Some(MicroTime(Timestamp::now())),
            ..LeaseSpec::default()
        }),
    }
}

fn api(context: &Context) -> Api<Lease> {
    Api::namespaced(context.client.clone(), &context.agent.namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_agent_knows_what_was_reported() {
        let reported: Reported = [("fast".to_owned(), ["errors", "apart/kubelet"].map(str::to_owned).into())].into();
        let record = Record::default();
        record.set(reported.clone());
        assert_eq!(lease::reported(Some(&record.text())), reported);
    }
}
