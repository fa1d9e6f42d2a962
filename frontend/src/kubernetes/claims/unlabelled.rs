//! Looking for claims without the policy's label: those that predate the policy, or that it has missed. The watch by
//! label does not report them.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use bulkhead_model::objects::claim;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use super::scope::{Scope, without_contents};
use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::pages::list_metadata;
use crate::kubernetes::api::request::{if_unchanged, request};

/// How often to look. All claims of other drivers lack the label too, and the more of them there are, the less often it
/// looks.
const PERIOD: Duration = Duration::from_secs(1800);

/// Another [`PERIOD`] is added for every this many claims without the label.
const MANY: u32 = 5000;

/// How soon to look again after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(7);

/// When to look.
#[derive(Default)]
pub struct Schedule {
    /// The next time; `None` until the watch has started.
    due: Option<Instant>,
    /// Whether the last look found nothing that the watch does not report.
    was_empty: bool,
}

impl Schedule {
    /// The watch has started with a new list, which replaces everything reported before, and lacks every claim without
    /// the label.
    pub fn watch_restarted(&mut self) {
        if !self.was_empty {
            self.due = Some(Instant::now());
        }
    }

    /// Plans the next look after this one.
    pub fn plan(&mut self, found: &Found) {
        self.due = Some(Instant::now() + found.pause + jitter(found.pause));
        self.was_empty = found.free.is_empty();
    }

    /// Waits until it is time to look.
    pub async fn is_due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => pending().await,
        }
    }
}

/// What was found.
pub struct Found {
    /// The claims that no node has yet.
    pub free: Vec<PersistentVolumeClaim>,
    /// How long until the next look.
    pause: Duration,
}

/// Finds the claims in `scope` without the label. Those of this node get it, and the watch reports them from then on.
/// Those that no node has yet are returned: when a node takes one, that write triggers the policy.
pub async fn find(client: &Client, scope: &Scope) -> Found {
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let labels = format!("!{}", scope.place.key());
    let mut partials = pin!(list_metadata("listing claims without a label", claims, Some(&labels)));
    let (mut free, mut seen, mut has_failed) = (Vec::new(), 0_u32, false);
    loop {
        let partial = match partials.try_next().await {
            Ok(Some(partial)) => partial,
            Ok(None) if has_failed => return Found { free, pause: AFTER_FAILURE },
            Ok(None) => return Found { free, pause: PERIOD * (1 + seen / MANY) },
            Err(failure) => {
                warn!("{failure}");
                return Found { free, pause: AFTER_FAILURE };
            }
        };
        seen = seen.saturating_add(1);
        let claim = without_contents(partial);
        if !scope.includes(&claim) {
            continue;
        }
        if claim::selected_node(&claim).is_some() {
            // One that cannot be labelled must not hide the others.
            if let Err(failure) = label(client, scope, &claim).await {
                warn!(claim = %claim.name_any(), namespace = claim.namespace(), "{failure}");
                has_failed = true;
            }
        } else if !claim::is_bound(&claim) {
            free.push(claim);
        }
    }
}

async fn label(client: &Client, scope: &Scope, claim: &PersistentVolumeClaim) -> Result<(), Failure> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &claim.namespace().unwrap_or_default());
    let labels = json!({ "metadata": { "labels": { scope.place.key(): scope.place.value() } } });
    let patch = Patch::Merge(if_unchanged(claim, labels));
    let (name, parameters) = (claim.name_any(), PatchParams::default());
    match request("labelling a claim", claims.patch_metadata(&name, &parameters, &patch)).await {
        Ok(_) => Ok(()),
        // Whatever has changed it since has triggered the policy.
        Err(failure) if failure.is_conflict() || failure.is_not_found() => Ok(()),
        Err(failure) => Err(failure),
    }
}
