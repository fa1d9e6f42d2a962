//! Telling the scheduler how much room there is: one CSIStorageCapacity object for each class of ours.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::estimate::Rooms;
use super::object::{describe, object_name, remove, remove_stale};
use crate::kubernetes::api::backoff::{Interruptions, random};
use crate::kubernetes::api::failure::{Failure, ask};
use crate::kubernetes::api::identity::NodeIdentity;
use crate::kubernetes::claims::request::parameters;
use crate::kubernetes::context::Context;
use crate::volumes::Capacity;

/// How often the room is measured without a reason.
const PERIOD: Duration = Duration::from_secs(60);

/// How often all objects are written whether or not they have changed: somebody else may have changed them.
const REWRITTEN: Duration = Duration::from_secs(900);

/// How often the API server is asked whether the node is still the same object. One that was deleted and registered
/// again takes its predecessor's capacity objects along.
const REVIEWED: Duration = Duration::from_secs(180);

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
pub struct Publisher {
    changed: Arc<Notify>,
    rooms: Rooms,
    /// What the objects say. Locked while they are written.
    published: Mutex<Published>,
}

#[derive(Default)]
struct Published {
    /// By class.
    rooms: BTreeMap<String, Capacity>,
    /// The node's uid, whose objects they are.
    owner: Option<String>,
    /// Whether objects that no class has any more were looked for.
    swept: bool,
    written: Option<Instant>,
}

impl Published {
    /// Writes everything again with the next pass.
    fn invalidate(&mut self) {
        self.rooms.clear();
        self.swept = false;
    }

    /// Removes the objects of classes that are gone.
    async fn sweep(
        &mut self,
        context: &Context,
        objects: &Api<CSIStorageCapacity>,
        classes: &[Arc<StorageClass>],
    ) -> Result<(), Failure> {
        let names: BTreeSet<_> = classes.iter().map(|class| class.name_any()).collect();
        if !self.swept {
            remove_stale(context, objects, &names).await?;
            self.swept = true;
        }
        let gone: Vec<_> = self.rooms.keys().filter(|class| !names.contains(*class)).cloned().collect();
        for class in gone {
            remove(objects, &object_name(context, &class)).await?;
            self.rooms.remove(&class);
        }
        Ok(())
    }
}

impl Publisher {
    /// For the node with that uid, if it is known.
    pub fn new(node: Option<String>) -> Self {
        let published = Published { owner: node, ..Published::default() };
        Self { changed: Arc::default(), rooms: Rooms::default(), published: Mutex::new(published) }
    }

    /// Something has changed: a volume, or a class.
    pub fn nudge(&self) {
        self.changed.notify_one();
    }

    /// Room for volumes of `class`.
    ///
    /// # Errors
    /// When the class is none that can be served, or the helper is away.
    pub async fn room(&self, context: &Context, class: &StorageClass) -> Result<Capacity, Failure> {
        self.rooms.measure(context, &class.name_any(), &parameters(class)?).await
    }

    /// Publishes for as long as it is polled.
    pub async fn run(&self, context: &Context) {
        let mut rewrite = Instant::now() + REWRITTEN + random(REWRITTEN);
        let mut review = Instant::now() + REVIEWED + random(REVIEWED / 2);
        let mut interruptions = Interruptions::default();
        let mut afterwards = AFTERWARDS.iter();
        let mut urgency = Urgency::Changed;
        loop {
            if Instant::now() > review {
                review = Instant::now() + REVIEWED + random(REVIEWED / 2);
                self.review(context).await;
            }
            let mut next = Instant::now() + PERIOD + random(PERIOD / 4);
            let outcome = self.pass(context, urgency).await;
            urgency = Urgency::Idle;
            if outcome.is_gathering {
                next = Instant::now() + GATHERED;
                urgency = Urgency::Changed;
            }
            if let Some((class, failure)) = outcome.failures.first() {
                warn!(class = class.as_deref(), "the node's capacity is not published: {failure}");
                let pause = interruptions.next().unwrap_or(PERIOD);
                next = Instant::now() + failure.retry_after().unwrap_or_default().max(pause);
                // The token may be of a node that is gone.
                review = Instant::now();
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
                self.published.lock().await.invalidate();
            }
        }
    }

    /// Publishes that there is no room for a volume of `size` bytes of `class`, which could not be made, and returns
    /// when the API server has it.
    ///
    /// # Errors
    /// When it has not.
    pub async fn disprove(&self, context: &Context, class: &StorageClass, size: u64) -> Result<(), Failure> {
        if self.room(context, class).await?.largest_volume >= size {
            self.rooms.disprove(&class.name_any(), size);
        }
        let outcome = self.pass(context, Urgency::AtOnce).await;
        let own = outcome.failures.into_iter().find(|(failed, _)| failed.as_ref() == class.metadata.name.as_ref());
        own.map_or(Ok(()), |(_, failure)| Err(failure))
    }

    /// Looks whether the node is the same object still.
    async fn review(&self, context: &Context) {
        match NodeIdentity::review(&context.client, &context.node.name).await {
            Ok(node) => {
                let mut published = self.published.lock().await;
                if published.owner != node.uid {
                    info!(node = %node.name, "the node was registered again: its capacity is published anew");
                    published.owner = node.uid;
                    published.invalidate();
                }
            }
            Err(failure) => debug!("{failure}"),
        }
    }

    async fn pass(&self, context: &Context, urgency: Urgency) -> Outcome {
        let mut published = self.published.lock().await;
        let objects: Api<CSIStorageCapacity> = Api::namespaced(context.client.clone(), &context.namespace);
        let own = context.classes.state_filter(|class| class.provisioner == context.driver.as_str());
        let mut outcome = Outcome::default();
        let just_written = published.written.is_some_and(|written| written.elapsed() < GATHERED);
        for class in &own {
            let name = class.name_any();
            let room = match self.room(context, class).await {
                Ok(room) => room,
                // Nothing can be made for such a class.
                Err(failure) if failure.is_final() => Capacity::default(),
                Err(failure) => {
                    outcome.failures.push((Some(name), failure));
                    continue;
                }
            };
            let before = published.rooms.get(&name).copied();
            if before.is_some_and(|before| before == room || (urgency == Urgency::Idle && is_drift(before, room))) {
                continue;
            }
            if before.is_some() && just_written && urgency != Urgency::AtOnce {
                outcome.is_gathering = true;
                continue;
            }
            let object = describe(context, published.owner.as_deref(), &name, room);
            let parameters = PatchParams::apply(context.driver.as_str()).force();
            let object_name = object.name_any();
            let patch = Patch::Apply(&object);
            match ask("writing a CSIStorageCapacity", objects.patch(&object_name, &parameters, &patch)).await {
                Ok(_) => {
                    debug!(class = %name, available = room.available, largest = room.largest_volume, "capacity published");
                    published.rooms.insert(name, room);
                    published.written = Some(Instant::now());
                }
                Err(failure) => outcome.failures.push((Some(name), failure)),
            }
        }
        if let Err(failure) = published.sweep(context, &objects, &own).await {
            outcome.failures.push((None, failure));
        }
        outcome
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

/// How far a pass came. One class that cannot be told holds up no other.
#[derive(Default)]
struct Outcome {
    /// Something has changed and is not told yet.
    is_gathering: bool,
    /// What was not written, with its class if it is about one.
    failures: Vec<(Option<String>, Failure)>,
}

/// Whether the difference is one that filesystems make by themselves, and that nobody need be told of.
fn is_drift(before: Capacity, now: Capacity) -> bool {
    let little = now.total / DRIFT_SHARE;
    before.available.abs_diff(now.available) < little && before.largest_volume.abs_diff(now.largest_volume) < little
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
