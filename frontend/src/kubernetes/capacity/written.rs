//! What the API's objects say about the node's capacity, and when they have to be updated.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::estimate::Estimate;
use crate::volumes::Capacity;

/// Successive changes are reported together, this often. The first is reported at once: a pod may be waiting.
pub const COALESCED: Duration = Duration::from_secs(1);

/// A change smaller than this fraction of a filesystem (1/256) comes and goes without any change to volumes.
const DRIFT_SHARE: u64 = 256;

/// Why capacity is reported now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// A claim is about to be given back to the scheduler.
    Immediate,
    /// Volumes or classes have changed.
    Changed,
    /// A change was postponed until now.
    Due,
    /// It is time for the periodic look.
    Periodic,
}

/// What to do about the capacity of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// What is reported still holds.
    Keep,
    /// Write it now.
    Write,
    /// Write it a little later, with whatever else changes until then.
    Postpone,
}

/// The reported state.
#[derive(Default)]
pub struct Written {
    /// By class.
    capacities: BTreeMap<String, Capacity>,
    /// What is said to be in the way of any volume of a class here.
    obstacles: BTreeMap<String, String>,
    /// The uid of the node that the objects belong to.
    owner: Option<String>,
    /// Whether an earlier agent's objects, for classes that are gone, have been deleted.
    stale_deleted: bool,
    written: Option<Instant>,
    /// Why volumes of some classes can be made nowhere.
    flaws: BTreeMap<String, String>,
}

impl Written {
    /// Nothing yet, for the node with that uid, if known.
    pub fn new(owner: Option<String>) -> Self {
        Self { owner, ..Self::default() }
    }

    /// Forgets what is reported, so that everything is written again.
    pub fn invalidate(&mut self) {
        self.capacities.clear();
        self.stale_deleted = false;
    }

    /// Sets the node's uid to `owner`. Returns whether it has changed, in which case everything is written again.
    pub fn set_owner(&mut self, owner: Option<String>) -> bool {
        let has_changed = self.owner != owner;
        if has_changed {
            self.owner = owner;
            self.invalidate();
        }
        has_changed
    }

    /// The uid of the node that the objects belong to.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// Returns whether something was written so recently that other changes should wait, and need not even be measured.
    pub fn is_just_written(&self) -> bool {
        self.written.is_some_and(|written| written.elapsed() < COALESCED)
    }

    /// Returns what to do when the class called `class` has that capacity.
    pub fn judge(&self, class: &str, Estimate { capacity, obstacle }: &Estimate, urgency: Urgency) -> Verdict {
        let capacity = *capacity;
        if self.obstacles.get(class) != obstacle.as_ref() {
            return Verdict::Write;
        }
        match self.capacities.get(class) {
            None => Verdict::Write,
            Some(before) if *before == capacity => Verdict::Keep,
            Some(before) if urgency == Urgency::Periodic && is_drift(*before, capacity) => Verdict::Keep,
            // No pod waits for less room.
            Some(before) if urgency == Urgency::Changed && is_less(*before, capacity) => Verdict::Postpone,
            Some(_) => Verdict::Write,
        }
    }

    /// Records that the API server has this capacity for a class.
    pub fn record_written(&mut self, class: &str, Estimate { capacity, obstacle }: Estimate) {
        self.capacities.insert(class.to_owned(), capacity);
        match obstacle {
            Some(obstacle) => self.obstacles.insert(class.to_owned(), obstacle),
            None => self.obstacles.remove(class),
        };
        self.written = Some(Instant::now());
    }

    /// Returns whether the API server has for a class that no volume of `size` bytes can be made.
    pub fn rules_out(&self, class: &str, size: u64) -> bool {
        self.capacities.get(class).is_some_and(|capacity| capacity.largest_volume < size)
    }

    /// Returns whether an earlier agent's objects have yet to be looked for.
    pub fn has_stale(&self) -> bool {
        !self.stale_deleted
    }

    /// Records that an earlier agent's objects are gone.
    pub fn record_stale_deleted(&mut self) {
        self.stale_deleted = true;
    }

    /// The classes other than `classes` whose capacity is reported.
    pub fn beyond(&self, classes: &BTreeSet<String>) -> Vec<String> {
        self.capacities.keys().filter(|class| !classes.contains(*class)).cloned().collect()
    }

    /// Records that the object for a class is gone.
    pub fn record_deleted(&mut self, class: &str) {
        self.capacities.remove(class);
        self.obstacles.remove(class);
    }

    /// Records why volumes of a class can be made nowhere. Returns whether that is news.
    pub fn record_flaw(&mut self, class: &str, flaw: &str) -> bool {
        let before = self.flaws.insert(class.to_owned(), flaw.to_owned());
        before.as_deref() != Some(flaw)
    }

    /// The classes of which this node can make no volume, each with the reason, as far as that is no matter of room.
    pub fn unservable(&self) -> BTreeMap<String, String> {
        self.obstacles.clone().into_iter().chain(self.flaws.clone()).collect()
    }

    /// Records that volumes of a class can be made, or that it is gone.
    pub fn record_sound(&mut self, class: &str) {
        self.flaws.remove(class);
    }
}

/// Returns whether there is no more room for anything than before.
fn is_less(before: Capacity, now: Capacity) -> bool {
    now.available <= before.available && now.largest_volume <= before.largest_volume
}

/// Returns whether the difference is one that filesystems cause by themselves, and that need not be reported.
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

    fn estimate(available: u64) -> Estimate {
        capacity(available).into()
    }

    #[test]
    fn a_little_is_drift_and_a_volume_is_not() {
        assert!(is_drift(capacity(50 << 30), capacity((50 << 30) + (1 << 20))));
        assert!(is_drift(capacity(50 << 30), capacity((50 << 30) - (1 << 20))));
        assert!(!is_drift(capacity(50 << 30), capacity(49 << 30)));
    }

    #[test]
    fn verdicts() {
        let mut written = Written::new(None);
        let drifted = (50 << 30) + 1;
        assert_eq!(written.judge("a", &estimate(50 << 30), Urgency::Changed), Verdict::Write, "the first one");
        written.capacities.insert("a".to_owned(), capacity(50 << 30));
        for (available, urgency, expected) in [
            (50 << 30, Urgency::Immediate, Verdict::Keep),
            (drifted, Urgency::Periodic, Verdict::Keep),
            (drifted, Urgency::Changed, Verdict::Write),
            (drifted, Urgency::Immediate, Verdict::Write),
            (40 << 30, Urgency::Changed, Verdict::Postpone),
            (40 << 30, Urgency::Due, Verdict::Write),
            (40 << 30, Urgency::Immediate, Verdict::Write),
            (40 << 30, Urgency::Periodic, Verdict::Write),
        ] {
            assert_eq!(written.judge("a", &estimate(available), urgency), expected, "{available} {urgency:?}");
        }
        let larger_volumes = Capacity { largest_volume: 45 << 30, ..capacity(40 << 30) };
        written.capacities.insert("a".to_owned(), capacity(40 << 30));
        assert_eq!(
            written.judge("a", &larger_volumes.into(), Urgency::Changed),
            Verdict::Write,
            "a pod may wait for one"
        );
    }

    #[test]
    fn a_size_is_ruled_out_by_what_is_reported() {
        let mut written = Written::new(None);
        assert!(!written.rules_out("a", 2), "nothing is known of it");
        written.record_written("a", estimate(1));
        assert!(written.rules_out("a", 2) && !written.rules_out("a", 1) && !written.rules_out("b", 2));
    }

    #[test]
    fn what_is_in_the_way_is_written_when_it_changes() {
        let mut written = Written::new(None);
        let obstructed = |why: &str| Estimate { obstacle: Some(why.to_owned()), ..Estimate::default() };
        let judge = |written: &Written, estimate: &Estimate| written.judge("a", estimate, Urgency::Periodic);
        written.record_written("a", Estimate::default());
        assert_eq!(judge(&written, &obstructed("ext4")), Verdict::Write, "the room is the same");
        written.record_written("a", obstructed("ext4"));
        assert_eq!(judge(&written, &obstructed("ext4")), Verdict::Keep);
        assert_eq!(written.unservable(), BTreeMap::from([("a".to_owned(), "ext4".to_owned())]));
        assert_eq!(judge(&written, &Estimate::default()), Verdict::Write);
        written.record_written("a", Estimate::default());
        assert!(written.unservable().is_empty());
    }

    #[test]
    fn a_flaw_is_news_once() {
        let mut written = Written::new(None);
        written.record_sound("a");
        assert!(written.record_flaw("a", "colour"));
        assert!(!written.record_flaw("a", "colour"));
        assert!(written.record_flaw("a", "size"));
        written.record_deleted("a");
        assert!(!written.record_flaw("a", "size"), "its object is gone, the class is not");
        written.record_sound("a");
        assert!(written.record_flaw("a", "size"));
    }

    #[test]
    fn another_node_of_the_same_name_gets_everything_anew() {
        let mut written = Written::new(Some("1".to_owned()));
        written.capacities.insert("a".to_owned(), capacity(1));
        assert!(!written.set_owner(Some("1".to_owned())) && !written.capacities.is_empty());
        assert!(written.set_owner(Some("2".to_owned())) && written.capacities.is_empty());
    }
}
