//! The node's Lease: written anew every minute while the agent works, so that everybody can see whether it does, wherever
//! it runs; and what of it does not, which for an agent on a host nobody else could say. It also holds what was reported
//! about pools, so that the next agent can say that it is over. Whoever writes it says who it is: two agents of one node
//! notice each other.

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
use crate::readiness::{LONGEST_REASON, Part, Readiness};
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
/// is more. The pools that are cordoned are known from then on, too.
pub async fn reported_before(context: &Context, record: &Record) -> Reported {
    let lease = request("reading the agent's Lease", api(context).get_opt(&context.agent.node.name)).await;
    let lease = lease.unwrap_or_else(|failure| {
        warn!("what an earlier agent has reported is not known: {failure}");
        None
    });
    context.follow_cordon(lease.as_ref());
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
    let (mut told, holder) = (false, holder(&context.agent.node.name, Timestamp::now()));
    // The Lease's version since this agent has written it. It takes over at once what an earlier one has left.
    let mut version = None;
    note_other(readiness, None);
    loop {
        let missing = missing(context, readiness).await;
        let lease = describe(context, record, capacity.owner(), &missing, &holder);
        let written = renew(context, lease, version.take(), readiness).await;
        let pause = match &written {
            Ok(_) => PERIOD,
            Err(failure) => failure.retry_after().unwrap_or(RETRY),
        };
        if let (Err(failure), false) = (&written, told) {
            warn!("the agent's Lease is not written, so the node will look as if no agent worked there: {failure}");
        }
        told = written.is_err();
        // It is written at once when something has changed, unless the server asks for rest.
        match written {
            Ok(written) => {
                context.follow_cordon(Some(&written));
                version = written.metadata.resource_version;
                drop(timeout(pause + jitter(PERIOD / 6), changed(context, record, readiness, &missing)).await);
            }
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

/// Writes the Lease, and returns what it is then. Whoever has written it since `version` is looked at.
async fn renew(
    context: &Context,
    mut lease: Lease,
    version: Option<String>,
    readiness: &Readiness,
) -> Result<Lease, Failure> {
    if version.is_some() {
        lease.metadata.resource_version = version;
        match write(context, &lease).await {
            Err(failure) if failure.is_conflict() => {}
            Ok(written) => {
                note_other(readiness, None);
                return Ok(written);
            }
            failed => return failed,
        }
        let found = request("reading the agent's Lease", api(context).get_opt(&context.agent.node.name)).await?;
        note_other(readiness, found.as_ref().and_then(|found| other(found, &lease)));
        lease.metadata.resource_version = None;
    }
    write(context, &lease).await
}

async fn write(context: &Context, lease: &Lease) -> Result<Lease, Failure> {
    let (leases, parameters) = (api(context), PatchParams::apply(context.agent.driver.as_str()).force());
    let patch = Patch::Apply(lease);
    let written = leases.patch(&context.agent.node.name, &parameters, &patch);
    request("writing the agent's Lease", written).await
}

/// What an agent is called that began to work at this moment.
fn holder(node: &str, begun: Timestamp) -> String {
    format!("{node}_{begun}")
}

/// Who else than the agent of `own` keeps the Lease that was found.
fn other<'f>(found: &'f Lease, own: &Lease) -> Option<&'f str> {
    let (found, own) = (found.spec.as_ref()?, own.spec.as_ref()?);
    let (renewed, now) = (&found.renew_time.as_ref()?.0, &own.renew_time.as_ref()?.0);
    let is_alive = now.duration_since(*renewed).unsigned_abs() < OVERDUE;
    found.holder_identity.as_deref().filter(|_| is_alive && found.holder_identity != own.holder_identity)
}

/// Says whether another agent works on this node.
fn note_other(readiness: &Readiness, other: Option<&str>) {
    match other {
        Some(other) => readiness.not_ready(
            Part::Alone,
            format!("another agent, {other}, works on this node too: run one on a node, as a pod or as a service of the host"),
        ),
        None if readiness.is_waiting(Part::Alone) => readiness.ready(Part::Alone),
        None => {}
    }
}

fn describe(context: &Context, record: &Record, uid: Option<String>, missing: &str, holder: &str) -> Lease {
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
            holder_identity: Some(holder.to_owned()),
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
    use k8s_openapi::jiff::SignedDuration;

    use super::*;

    #[test]
    fn the_next_agent_knows_what_was_reported() {
        let reported: Reported = [("fast".to_owned(), ["errors", "apart/kubelet"].map(str::to_owned).into())].into();
        let record = Record::default();
        record.set(reported.clone());
        assert_eq!(lease::reported(Some(&record.text())), reported);
    }

    #[test]
    fn only_another_agent_that_is_alive_is_another() {
        let now = Timestamp::now();
        let lease = |holder: &str, seconds: i64| {
            let renew_time = Some(MicroTime(now.checked_sub(SignedDuration::from_secs(seconds)).unwrap()));
            let spec = LeaseSpec { holder_identity: Some(holder.to_owned()), renew_time, ..LeaseSpec::default() };
            Lease { spec: Some(spec), ..Lease::default() }
        };
        let own = lease(&holder("a", now), 0);
        assert_eq!(other(&lease("a_2026-11-29T10:00:00Z", 30), &own), Some("a_2026-11-29T10:00:00Z"));
        assert_eq!(other(&own, &own), None, "somebody else has changed something else");
        assert_eq!(other(&lease("a_2026-11-29T10:00:00Z", 600), &own), None, "it has ended");
        assert_eq!(other(&Lease::default(), &own), None, "it was not written by an agent");
    }
}
