//! What the API's objects say of the node's capacity, and when they have to say something else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::object;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::volumes::Capacity;

/// Changes that follow one another are published together, this often. The first is published at once: a pod may be
/// waiting.
pub const COALESCED: Duration = Duration::from_secs(1);

/// A change below this share of a filesystem comes and goes without any change of volumes.
const DRIFT_SHARE: u64 = 256;

/// Why capacity is published now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// A claim is about to be given back to the scheduler.
    Immediate,
    /// Volumes or classes have changed.
    Changed,
    /// It is time to look again.
    Periodic,
}

/// What to do about the capacity of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// What is published still holds.
    Keep,
    /// Write it now.
    Write,
    /// Write it a little later, with what else changes until then.
    Postpone,
}

/// The published state.
#[derive(Default)]
pub struct Published {
    /// By class.
    capacities: BTreeMap<String, Capacity>,
    /// The uid of the node that the objects belong to.
    owner: Option<String>,
    /// Whether objects of an earlier agent, for classes that are gone, were looked for.
    stale_deleted: bool,
    written: Option<Instant>,
}

impl Published {
    /// Nothing yet, for the node with that uid, if it is known.
    pub fn new(owner: Option<String>) -> Self {
        Self { owner, ..Self::default() }
    }

    /// Forgets what is published, so that everything is written again.
    pub fn invalidate(&mut self) {
        self.capacities.clear();
        self.stale_deleted = false;
    }

    /// The node's uid is `owner` now. Returns whether it was another one before; then everything is written again.
    pub fn set_owner(&mut self, owner: Option<String>) -> bool {
        let has_changed = self.owner != owner;
        if has_changed {
            self.owner = owner;
            self.invalidate();
        }
        has_changed
    }

    /// Whether something was written so recently that other changes should wait.
    pub fn is_just_written(&self) -> bool {
        self.written.is_some_and(|written| written.elapsed() < COALESCED)
    }

    /// What to do when the class called `class` has that `capacity`.
    pub fn judge(&self, class: &str, capacity: Capacity, urgency: Urgency, just_written: bool) -> Verdict {
        match self.capacities.get(class) {
            None => Verdict::Write,
            Some(before) if *before == capacity => Verdict::Keep,
            Some(before) if urgency == Urgency::Periodic && is_drift(*before, capacity) => Verdict::Keep,
            Some(_) if just_written && urgency != Urgency::Immediate => Verdict::Postpone,
            Some(_) => Verdict::Write,
        }
    }

    /// Writes the capacity of a class.
    ///
    /// # Errors
    /// When the API server does not accept it.
    pub async fn write(&mut self, context: &Context, class: &str, capacity: Capacity) -> Result<(), Failure> {
        object::write(context, self.owner.as_deref(), class, capacity).await?;
        self.capacities.insert(class.to_owned(), capacity);
        self.written = Some(Instant::now());
        Ok(())
    }

    /// Deletes the objects of classes other than `classes`.
    ///
    /// # Errors
    /// When one cannot be deleted.
    pub async fn keep_only(&mut self, context: &Context, classes: &BTreeSet<String>) -> Result<(), Failure> {
        if !self.stale_deleted {
            object::delete_stale(context, classes).await?;
            self.stale_deleted = true;
        }
        let gone: Vec<_> = self.capacities.keys().filter(|class| !classes.contains(*class)).cloned().collect();
        for class in gone {
            object::delete(context, &class).await?;
            self.capacities.remove(&class);
        }
        Ok(())
    }
}

/// Whether the difference is one that filesystems cause by themselves, and that need not be published.
fn is_drift(before: Capacity, now: Capacity) -> bool {
    let little = now.total / DRIFT_SHARE;
    before.available.abs_diff(now.available) < little && before.largest_volume.abs_diff(now.largest_volume) < little
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity(available: u64) -> Capacity {
        Capacity { available, largest_volume: available, total: 100 << 30 }
    }

    #[test]
    fn a_little_is_drift_and_a_volume_is_not() {
        assert!(is_drift(capacity(50 << 30), capacity((50 << 30) + (1 << 20))));
        assert!(is_drift(capacity(50 << 30), capacity((50 << 30) - (1 << 20))));
        assert!(!is_drift(capacity(50 << 30), capacity(49 << 30)));
    }

    #[test]
    fn verdicts() {
        let mut published = Published::new(None);
        let drifted = (50 << 30) + 1;
        assert_eq!(published.judge("a", capacity(50 << 30), Urgency::Periodic, true), Verdict::Write, "the first one");
        published.capacities.insert("a".to_owned(), capacity(50 << 30));
        for (available, urgency, just_written, expected) in [
            (50 << 30, Urgency::Immediate, false, Verdict::Keep),
            (drifted, Urgency::Periodic, false, Verdict::Keep),
            (drifted, Urgency::Changed, false, Verdict::Write),
            (drifted, Urgency::Changed, true, Verdict::Postpone),
            (drifted, Urgency::Immediate, true, Verdict::Write),
            (40 << 30, Urgency::Periodic, false, Verdict::Write),
            (40 << 30, Urgency::Periodic, true, Verdict::Postpone),
        ] {
            let verdict = published.judge("a", capacity(available), urgency, just_written);
            assert_eq!(verdict, expected, "{available} {urgency:?} {just_written}");
        }
    }

    #[test]
    fn another_node_of_the_same_name_gets_everything_anew() {
        let mut published = Published::new(Some("1".to_owned()));
        published.capacities.insert("a".to_owned(), capacity(1));
        assert!(!published.set_owner(Some("1".to_owned())) && !published.capacities.is_empty());
        assert!(published.set_owner(Some("2".to_owned())) && published.capacities.is_empty());
    }
}
