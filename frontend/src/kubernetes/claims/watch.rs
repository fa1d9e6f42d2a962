//! Watching the claims that concern this node, and no others.
//!
//! An admission policy copies the selected node into a label, so that the API server sends an agent only its own
//! claims. Without that policy the agent watches the metadata of all claims and drops what is foreign as it comes.

use std::future::pending;
use std::time::Duration;

use futures::channel::mpsc::{self, Sender};
use futures::{SinkExt, Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use crate::kubernetes::api::backoff::{Interruptions, random};
use crate::kubernetes::api::failure::{Failure, ask};
use crate::kubernetes::api::watch::config;
use crate::kubernetes::objects::claim;
use crate::kubernetes::objects::names::{BOUND, CLAIM_POLICY};
use crate::volumes::Place;

/// How often the agent looks whether the policy is there.
const RECONSIDERED: Duration = Duration::from_secs(300);

/// How old the policy's binding must be: every API server has it in force by then, so that no claim lacks the label.
const SETTLED: Duration = Duration::from_secs(10);

/// How often claims without the label are looked for: those from before the policy, or that it has missed. All others'
/// lack it too, so the more of them there are the rarer it is.
const NET: Duration = Duration::from_secs(1800);

/// How many claims without the label make it so much rarer.
const MANY: u32 = 5000;

/// How soon they are looked for again when that has failed.
const RETRIED: Duration = Duration::from_secs(30);

/// How many claims the API server sends at a time.
const PAGE: u32 = 500;

/// How claims are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// By the label that the policy sets.
    Labelled,
    /// All of them, without their contents.
    Everything,
}

/// Which claims concern an agent.
#[derive(Clone)]
pub struct Concern {
    pub client: Client,
    pub driver: String,
    pub node: String,
    pub place: Place,
}

/// Claims that concern this node: those with it selected, and those of its driver with none. Where they come without
/// contents, `spec` is none.
pub fn watch(concern: Concern) -> impl Stream<Item = Result<Event<PersistentVolumeClaim>, watcher::Error>> + Send {
    let (sender, receiver) = mpsc::channel(0);
    tokio::spawn(feed(concern, sender));
    receiver
}

async fn feed(concern: Concern, mut sender: Sender<Result<Event<PersistentVolumeClaim>, watcher::Error>>) {
    let mut mode = None;
    while !sender.is_closed() {
        let (found, lasts) = concern.mode(mode).await;
        if mode != Some(found) {
            match found {
                Mode::Labelled => info!("watching claims by label"),
                Mode::Everything => warn!(
                    "admission policy {CLAIM_POLICY} is not bound yet: watching the metadata of all claims, which costs the more the larger the cluster is; apply the policies"
                ),
            }
        }
        mode = Some(found);
        let mut events = concern.events(found);
        let mut reconsider = Box::pin(sleep_until(Instant::now() + lasts + random(lasts)));
        let mut net = Net::default();
        loop {
            tokio::select! {
                event = events.next() => {
                    let Some(event) = event else { break };
                    if matches!(event, Ok(Event::InitDone)) {
                        net.tear();
                    }
                    if sender.send(event).await.is_err() {
                        return;
                    }
                }
                () = &mut reconsider => {
                    let (now, lasts) = concern.mode(mode).await;
                    if now != found {
                        break;
                    }
                    reconsider = Box::pin(sleep_until(Instant::now() + lasts + random(lasts)));
                }
                () = net.is_due(), if found == Mode::Labelled => {
                    let missed = concern.label_the_missed().await;
                    net.cast(&missed);
                    for claim in missed.free {
                        if sender.send(Ok(Event::Apply(claim))).await.is_err() {
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// When claims without a label are looked for.
#[derive(Default)]
struct Net {
    /// The next look; none as long as the watch has not begun.
    due: Option<Instant>,
    /// Whether the last look has found nothing that the watch would not tell by itself.
    was_empty: bool,
}

impl Net {
    /// A list of the watch replaces all that was told before it, and no claim without a label is in it.
    fn tear(&mut self) {
        if !self.was_empty {
            self.due = Some(Instant::now());
        }
    }

    /// The claims without a label were looked for.
    fn cast(&mut self, missed: &Missed) {
        self.due = Some(Instant::now() + missed.pause + random(missed.pause));
        self.was_empty = missed.free.is_empty();
    }

    async fn is_due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => pending().await,
        }
    }
}

/// What a look at the claims without a label has found.
struct Missed {
    /// Those that no node has yet.
    free: Vec<PersistentVolumeClaim>,
    /// How long until the next look.
    pause: Duration,
}

impl Concern {
    /// How claims can be watched now, and how soon to look again; as `before` when that cannot be told.
    async fn mode(&self, before: Option<Mode>) -> (Mode, Duration) {
        // The kind is younger than the oldest API that is supported, so it is asked for by its name.
        let kind = ApiResource::erase::<ValidatingAdmissionPolicyBinding>(&());
        let kind = ApiResource {
            kind: "MutatingAdmissionPolicyBinding".to_owned(),
            plural: "mutatingadmissionpolicybindings".to_owned(),
            ..kind
        };
        let bindings: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind);
        match ask("looking for the claims' policy", bindings.get_metadata_opt(CLAIM_POLICY)).await {
            // A longer name is no label: the policy leaves it out.
            Ok(Some(binding)) if self.place.value() == self.node => {
                let age = binding.metadata.creation_timestamp.map(|made| Timestamp::now().duration_since(made.0));
                match age.and_then(|age| SETTLED.checked_sub(Duration::try_from(age).unwrap_or_default())) {
                    Some(left) if !left.is_zero() => (Mode::Everything, left),
                    _ => (Mode::Labelled, RECONSIDERED),
                }
            }
            Ok(_) => (Mode::Everything, RECONSIDERED),
            Err(error) => {
                warn!("{error}");
                (before.unwrap_or(Mode::Everything), RECONSIDERED)
            }
        }
    }

    fn events(
        &self,
        mode: Mode,
    ) -> std::pin::Pin<Box<dyn Stream<Item = Result<Event<PersistentVolumeClaim>, watcher::Error>> + Send>> {
        let claims: Api<PersistentVolumeClaim> = Api::all(self.client.clone());
        match mode {
            Mode::Labelled => {
                // Those for any node have an empty value.
                let labels = format!("{} in (,{})", self.place.key(), self.place.value());
                watcher(claims, config().labels(&labels)).backoff(Interruptions::default()).boxed()
            }
            Mode::Everything => {
                let partial: Api<PartialObjectMeta<PersistentVolumeClaim>> = Api::all(self.client.clone());
                let concern = self.clone();
                watcher(partial, config().page_size(PAGE))
                    .backoff(Interruptions::default())
                    .try_filter_map(move |event| futures::future::ready(Ok(concern.sift(event))))
                    .boxed()
            }
        }
    }

    /// What remains of an event when foreign claims are left out.
    fn sift(&self, event: Event<PartialObjectMeta<PersistentVolumeClaim>>) -> Option<Event<PersistentVolumeClaim>> {
        let bare = |partial: PartialObjectMeta<PersistentVolumeClaim>| PersistentVolumeClaim {
            metadata: partial.metadata,
            ..PersistentVolumeClaim::default()
        };
        match event {
            Event::Init => Some(Event::Init),
            Event::InitDone => Some(Event::InitDone),
            Event::InitApply(partial) => Some(bare(partial)).filter(|claim| self.includes(claim)).map(Event::InitApply),
            Event::Apply(partial) => {
                let claim = bare(partial);
                // It may have been ours until now.
                let ours_ever = claim::provisioner(&claim) == Some(&self.driver);
                if self.includes(&claim) {
                    Some(Event::Apply(claim))
                } else {
                    ours_ever.then_some(Event::Delete(claim))
                }
            }
            Event::Delete(partial) => Some(Event::Delete(bare(partial))),
        }
    }

    fn includes(&self, claim: &PersistentVolumeClaim) -> bool {
        claim::provisioner(claim) == Some(&self.driver)
            && claim::selected_node(claim).is_none_or(|node| node == self.node)
    }

    /// Sets the label of this node's claims that lack it, and tells those that no node has yet: whoever takes one
    /// brings the policy into play.
    async fn label_the_missed(&self) -> Missed {
        let claims: Api<PersistentVolumeClaim> = Api::all(self.client.clone());
        let mut page = ListParams::default().labels(&format!("!{}", self.place.key())).limit(PAGE);
        let (mut free, mut seen, mut failed) = (Vec::new(), 0_u32, false);
        loop {
            let found = match ask("listing claims without a label", claims.list_metadata(&page)).await {
                Ok(found) => found,
                Err(failure) => {
                    warn!("{failure}");
                    return Missed { free, pause: RETRIED };
                }
            };
            for partial in found.items {
                seen = seen.saturating_add(1);
                let claim = PersistentVolumeClaim { metadata: partial.metadata, ..PersistentVolumeClaim::default() };
                if !self.includes(&claim) {
                    continue;
                }
                if claim::selected_node(&claim).is_some() {
                    // One that cannot be labelled hides no other.
                    if let Err(failure) = self.label(&claim).await {
                        warn!(claim = %claim.name_any(), namespace = claim.namespace(), "{failure}");
                        failed = true;
                    }
                } else if !claim.annotations().contains_key(BOUND) {
                    free.push(claim);
                }
            }
            match found.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None if failed => return Missed { free, pause: RETRIED },
                None => return Missed { free, pause: NET * (1 + seen / MANY) },
            }
        }
    }

    async fn label(&self, claim: &PersistentVolumeClaim) -> Result<(), Failure> {
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
        let patch = json!({ "metadata": {
            "resourceVersion": claim.resource_version(), "labels": { self.place.key(): self.place.value() } } });
        let (name, parameters) = (claim.name_any(), PatchParams::default());
        match ask("labelling a claim", claims.patch_metadata(&name, &parameters, &Patch::Merge(patch))).await {
            Ok(_) => Ok(()),
            // Whoever has changed it since has brought the policy into play.
            Err(failure) if failure.is_conflict() || failure.is_not_found() => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}
