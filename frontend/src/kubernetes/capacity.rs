//! Telling the scheduler how much room there is: one CSIStorageCapacity object for each class of ours.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::Api;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use super::backoff::random;
use super::context::Context;
use super::failure::{Failure, ask};
use super::names::{DRIVER_LABEL, MANAGED_BY, MANAGED_BY_LABEL};
use super::order::parameters;
use super::quantity::quantity;
use crate::volumes::Capacity;

/// How often the room is measured without a reason.
const PERIOD: Duration = Duration::from_secs(60);

/// How often all objects are written whether or not they have changed: somebody else may have changed them.
const REWRITTEN: Duration = Duration::from_secs(900);

/// Changes that follow one another are told together, so often. The first is told at once: somebody may be waiting.
const GATHERED: Duration = Duration::from_secs(1);

/// A part of a filesystem this small comes and goes without a change of volumes.
const DRIFT_SHARE: u64 = 256;

/// When to measure again after something has changed: a deleted volume gives its room back only as it is emptied.
const AFTERWARDS: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
];

/// Publishes this node's room.
#[derive(Default)]
pub(super) struct Publisher {
    changed: Arc<Notify>,
    /// What the objects say, by class. Locked while they are written.
    published: Mutex<Published>,
}

#[derive(Default)]
struct Published {
    rooms: BTreeMap<String, Capacity>,
    /// Whether objects from an earlier run were looked for.
    inherited: bool,
    written: Option<Instant>,
}

impl Publisher {
    /// Something has changed: a volume, or a class.
    pub(super) fn nudge(&self) {
        self.changed.notify_one();
    }

    /// Publishes for as long as it is polled.
    pub(super) async fn run(&self, context: &Context) {
        let mut rewrite = Instant::now() + REWRITTEN + random(REWRITTEN);
        let mut afterwards = AFTERWARDS.iter();
        let mut urgency = Urgency::Changed;
        loop {
            let mut next = Instant::now() + PERIOD + random(PERIOD / 4);
            let outcome = self.pass(context, urgency).await;
            urgency = Urgency::Idle;
            match outcome {
                Ok(Pass::Complete) => {}
                Ok(Pass::Gathering) => {
                    next = Instant::now() + GATHERED;
                    urgency = Urgency::Changed;
                }
                Err(failure) => {
                    warn!("the node's capacity is not published: {failure}");
                    next = Instant::now() + failure.retry_after().unwrap_or(AFTERWARDS[2]) + random(AFTERWARDS[1]);
                }
            }
            if let Some(soon) = afterwards.as_slice().first() {
                next = next.min(Instant::now() + *soon);
            }
            tokio::select! {
                () = self.changed.notified() => {
                    afterwards = AFTERWARDS.iter();
                    urgency = Urgency::Changed;
                }
                () = sleep_until(next) => {
                    if afterwards.next().is_some() {
                        urgency = Urgency::Changed;
                    }
                }
            }
            if Instant::now() > rewrite {
                rewrite = Instant::now() + REWRITTEN + random(REWRITTEN);
                self.published.lock().await.rooms.clear();
            }
        }
    }

    /// Publishes what has changed, and returns when the API server has it.
    ///
    /// # Errors
    /// When it has not.
    pub(super) async fn publish_now(&self, context: &Context) -> Result<(), Failure> {
        self.pass(context, Urgency::AtOnce).await.map(drop)
    }

    async fn pass(&self, context: &Context, urgency: Urgency) -> Result<Pass, Failure> {
        let mut published = self.published.lock().await;
        let objects: Api<CSIStorageCapacity> = Api::namespaced(context.client.clone(), &context.namespace);
        let own = context.classes.state_filter(|class| class.provisioner == context.driver.as_str());
        let mut outcome = Pass::Complete;
        let just_written = published.written.is_some_and(|written| written.elapsed() < GATHERED);
        for class in &own {
            let name = class.name_any();
            let room = room(context, class).await?;
            let before = published.rooms.get(&name).copied();
            if before.is_some_and(|before| before == room || (urgency == Urgency::Idle && is_drift(before, room))) {
                continue;
            }
            if before.is_some() && just_written && urgency != Urgency::AtOnce {
                outcome = Pass::Gathering;
                continue;
            }
            let object = describe(context, &name, room);
            let parameters = PatchParams::apply(context.driver.as_str()).force();
            let object_name = object.name_any();
            ask("writing a CSIStorageCapacity", objects.patch(&object_name, &parameters, &Patch::Apply(&object)))
                .await?;
            debug!(class = %name, available = room.available, largest = room.largest_volume, "capacity published");
            published.rooms.insert(name, room);
            published.written = Some(Instant::now());
        }
        let names: BTreeSet<_> = own.iter().map(|class| class.name_any()).collect();
        if !published.inherited {
            remove_stale(context, &objects, &names).await?;
            published.inherited = true;
        }
        let gone: Vec<_> = published.rooms.keys().filter(|class| !names.contains(*class)).cloned().collect();
        for class in gone {
            remove(&objects, &object_name(context, &class)).await?;
            published.rooms.remove(&class);
        }
        Ok(outcome)
    }
}

/// Why there is a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    /// A claim is about to be given back.
    AtOnce,
    /// Volumes or classes have changed.
    Changed,
    /// Nothing has.
    Idle,
}

/// How far a pass came.
enum Pass {
    Complete,
    /// Something has changed and is not told yet.
    Gathering,
}

/// Room for volumes of `class`. One whose parameters are wrong has room for nothing.
async fn room(context: &Context, class: &StorageClass) -> Result<Capacity, Failure> {
    let Ok(parameters) = parameters(class) else { return Ok(Capacity::default()) };
    match context.volumes.capacity(&parameters).await {
        Ok(room) => Ok(room),
        Err(fault) => match Failure::from(fault) {
            failure if failure.is_final() => Ok(Capacity::default()),
            failure => Err(failure),
        },
    }
}

/// Whether the difference is one that filesystems make by themselves, and that nobody need be told of.
fn is_drift(before: Capacity, now: Capacity) -> bool {
    let little = now.total / DRIFT_SHARE;
    before.available.abs_diff(now.available) < little && before.largest_volume.abs_diff(now.largest_volume) < little
}

fn describe(context: &Context, class: &str, room: Capacity) -> CSIStorageCapacity {
    let mut labels = context.place.segments();
    labels.insert(DRIVER_LABEL.to_owned(), context.driver.to_string());
    labels.insert(MANAGED_BY_LABEL.to_owned(), MANAGED_BY.to_owned());
    // An agent that restarts must not hide its node; one whose node is gone must not go on showing it.
    let owner = context.node.uid.as_ref().map(|uid| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: context.node.name.clone(),
        uid: uid.clone(),
        ..OwnerReference::default()
    });
    CSIStorageCapacity {
        metadata: ObjectMeta {
            name: Some(object_name(context, class)),
            namespace: Some(context.namespace.clone()),
            labels: Some(labels),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        storage_class_name: class.to_owned(),
        node_topology: Some(LabelSelector { match_labels: Some(context.place.segments()), match_expressions: None }),
        capacity: Some(quantity(room.available)),
        maximum_volume_size: Some(quantity(room.largest_volume)),
    }
}

/// The same name each time, so that one request makes an object or changes it.
fn object_name(context: &Context, class: &str) -> String {
    let digest = Sha256::digest(format!("{}\n{}\n{class}", context.driver, context.place.value()));
    let short: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    format!("bulkhead-{short}")
}

/// Removes objects of this node that belong to no class any more.
async fn remove_stale(
    context: &Context,
    objects: &Api<CSIStorageCapacity>,
    classes: &BTreeSet<String>,
) -> Result<(), Failure> {
    let place = format!("{}={}", context.place.key(), context.place.value());
    let own = ListParams::default().labels(&format!("{MANAGED_BY_LABEL}={MANAGED_BY},{place}"));
    for object in ask("listing CSIStorageCapacity objects", objects.list(&own)).await? {
        let current = object_name(context, &object.storage_class_name) == object.name_any();
        if !current || !classes.contains(&object.storage_class_name) {
            remove(objects, &object.name_any()).await?;
        }
    }
    Ok(())
}

async fn remove(objects: &Api<CSIStorageCapacity>, name: &str) -> Result<(), Failure> {
    match ask("deleting a CSIStorageCapacity", objects.delete(name, &DeleteParams::default())).await {
        Ok(_) => Ok(()),
        Err(failure) if failure.is_not_found() => Ok(()),
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_drift_and_a_volume_is_not() {
        let room = |available| Capacity { available, largest_volume: available, total: 100 << 30 };
        assert!(is_drift(room(50 << 30), room((50 << 30) + (1 << 20))));
        assert!(is_drift(room(50 << 30), room((50 << 30) - (1 << 20))));
        assert!(!is_drift(room(50 << 30), room(49 << 30)));
    }
}
