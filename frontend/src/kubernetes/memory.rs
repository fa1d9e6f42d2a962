//! What the agent remembers about objects from one look at them to the next: one entry for each, by uid, which is
//! forgotten as a whole when the object is gone.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::api::events::Reason;
use crate::metrics::METRICS;

/// The memory.
#[derive(Debug, Default)]
pub struct Memory(Mutex<HashMap<String, Entry>>);

/// What is remembered about one object.
#[derive(Debug, Default, PartialEq)]
pub struct Entry {
    /// How many attempts in a row have failed.
    failures: u32,
    /// Whether the latest of them failed for a reason that may pass.
    is_failing: bool,
    /// The state in which this agent left the object.
    written: Option<Written>,
    /// Of a claim: when it was first seen to need a volume on this node, until it has one.
    pub wanted_since: Option<Instant>,
    /// Of a claim that any node may take: this node's bids for it.
    pub bids: Option<Bids>,
    /// Of a claim that any node may take: whether its owner was told that this node has no room for it.
    pub no_room_reported: bool,
    /// Of a claim that any node may take: whether its owner was told that this node may not.
    pub refusal_reported: bool,
    /// Of a claim whose source no node has: when this one says so, unless another has.
    pub report_unheld_at: Option<Instant>,
    /// Of such a claim: whether it has.
    pub unheld_reported: bool,
    /// Of a PersistentVolume: whether it was said that its deletion waits for a pool.
    pub waiting_reported: bool,
    /// Of a claim: its last expansion, if that failed for good.
    pub failed_expansion: Option<FailedExpansion>,
    /// Of a claim: the last attempt to change its volume's attributes, if that failed for good.
    pub failed_modification: Option<FailedModification>,
    /// Of the object of a snapshot, or of a group of them: the last attempt, if that failed.
    pub failed_attempt: Option<FailedAttempt>,
}

#[derive(Debug, PartialEq)]
enum Written {
    /// With this resource version.
    ///
    /// Those of one resource are increasing numbers (Kubernetes 1.35, KEP-5504; in practice always).
    Version(u64),
    /// With nothing left to do, whatever is reported about it until it is gone.
    Finished,
}

/// The bids of this node for a claim that any node may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bids {
    /// Since when this node could bid.
    pub since: Instant,
    /// How often it has.
    pub made: usize,
}

/// An expansion that failed for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedExpansion {
    /// The size that was tried, in bytes.
    pub target: u64,
    /// When it was tried.
    pub at: Instant,
}

/// An attempt to change a volume's attributes that failed for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedModification {
    /// The class of attributes that was tried.
    pub target: String,
    /// When it may be repeated.
    pub not_before: Instant,
}

/// An attempt to take or to delete a snapshot that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// What was attempted, as it was reported.
    pub reason: Reason,
    /// When it may be repeated.
    pub not_before: Instant,
}

impl Memory {
    /// Reads or changes what is remembered about the object with that uid.
    pub fn with<T>(&self, uid: &str, access: impl FnOnce(&mut Entry) -> T) -> T {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.entry(uid.to_owned()).or_default();
        let was_failing = entry.is_failing;
        let result = access(entry);
        if was_failing != entry.is_failing {
            METRICS.failing_objects.with([]).inc_by(if entry.is_failing { 1.0 } else { -1.0 });
        }
        if *entry == Entry::default() {
            entries.remove(uid);
        }
        result
    }

    /// Counts a failed attempt, and returns how many have failed in a row. What fails for good, `is_final`, is its owner's
    /// concern.
    pub fn count_failure(&self, uid: &str, is_final: bool) -> u32 {
        self.with(uid, |entry| {
            entry.is_failing = !is_final;
            entry.failures = entry.failures.saturating_add(1);
            entry.failures
        })
    }

    /// Records that the latest attempt has succeeded.
    pub fn clear_failures(&self, uid: &str) {
        self.with(uid, |entry| (entry.failures, entry.is_failing) = (0, false));
    }

    /// Returns whether the latest attempt has failed.
    pub fn has_failed(&self, uid: &str) -> bool {
        self.with(uid, |entry| entry.failures > 0)
    }

    /// Returns how many attempts in a row have failed.
    pub fn failures(&self, uid: &str) -> u32 {
        self.with(uid, |entry| entry.failures)
    }

    /// Records that the agent has written the object, which now has that resource version.
    pub fn record_written(&self, uid: &str, version: Option<&str>) {
        if let Some(version) = version.and_then(|version| version.parse().ok()) {
            self.with(uid, |entry| entry.written = Some(Written::Version(version)));
        }
    }

    /// Records that nothing is left to do for the object, whatever is reported about it until it is gone.
    pub fn finish(&self, uid: &str) {
        self.with(uid, |entry| entry.written = Some(Written::Finished));
    }

    /// Returns whether the agent has written the object since it had that resource version. Once it is seen with a
    /// newer one, what was written is no longer remembered.
    pub fn is_outdated(&self, uid: &str, version: Option<&str>) -> bool {
        self.with(uid, |entry| {
            let outdated = match entry.written {
                None => false,
                Some(Written::Finished) => true,
                Some(Written::Version(ours)) => {
                    version.and_then(|version| version.parse::<u64>().ok()).is_some_and(|seen| seen < ours)
                }
            };
            if !outdated {
                entry.written = None;
            }
            outdated
        })
    }

    /// Forgets in which state the agent left objects: the API server has gone back in time, and what was written later is
    /// lost.
    pub fn forget_written(&self) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|_, entry| {
            entry.written = None;
            *entry != Entry::default()
        });
    }

    /// Forgets the object, which is gone.
    pub fn forget(&self, uid: &str) {
        self.with(uid, |entry| *entry = Entry::default());
    }

    /// Forgets all objects but those with these uids.
    pub fn forget_all_but(&self, existing: &HashSet<String>) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|uid, _| existing.contains(uid));
        let failing = entries.values().filter(|entry| entry.is_failing).count();
        METRICS.failing_objects.with([]).set(failing as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remembered(memory: &Memory) -> usize {
        memory.0.lock().unwrap().len()
    }

    #[test]
    fn older_versions_are_outdated() {
        let memory = Memory::default();
        assert!(!memory.is_outdated("a", Some("7")));
        memory.record_written("a", Some("10"));
        assert!(memory.is_outdated("a", Some("9")));
        assert!(!memory.is_outdated("b", Some("9")));
        assert!(!memory.is_outdated("a", Some("10")));
        assert!(!memory.is_outdated("a", Some("9")), "it is not remembered for ever");
        memory.finish("a");
        assert!(memory.is_outdated("a", Some("11")) && memory.is_outdated("a", Some("12")));
        memory.forget("a");
        assert!(!memory.is_outdated("a", Some("13")));
    }

    #[test]
    fn what_is_lost_was_never_written() {
        let memory = Memory::default();
        memory.record_written("a", Some("10"));
        memory.finish("b");
        memory.count_failure("b", false);
        memory.forget_written();
        assert!(!memory.is_outdated("a", Some("7")) && !memory.is_outdated("b", Some("7")));
        assert!(memory.has_failed("b"));
        assert_eq!(remembered(&memory), 1);
    }

    #[test]
    fn failures_are_counted_for_each_object() {
        let memory = Memory::default();
        assert!(!memory.has_failed("a"));
        assert_eq!(
            [memory.count_failure("a", false), memory.count_failure("a", true), memory.count_failure("b", false)],
            [1, 2, 1]
        );
        memory.clear_failures("a");
        assert!(!memory.has_failed("a") && memory.has_failed("b"));
    }

    #[test]
    fn nothing_is_kept_of_objects_of_which_nothing_is_known() {
        let memory = Memory::default();
        assert!(!memory.has_failed("a"));
        memory.count_failure("a", false);
        memory.clear_failures("a");
        assert_eq!(remembered(&memory), 0);
    }

    #[test]
    fn an_object_is_forgotten_as_a_whole() {
        let memory = Memory::default();
        for uid in ["a", "b"] {
            memory.count_failure(uid, false);
            memory.finish(uid);
            memory.with(uid, |entry| entry.bids = Some(Bids { since: Instant::now(), made: 1 }));
            memory.with(uid, |entry| entry.failed_expansion = Some(FailedExpansion { target: 1, at: Instant::now() }));
        }
        memory.forget_all_but(&HashSet::from(["b".to_owned()]));
        assert_eq!(remembered(&memory), 1);
        assert!(!memory.has_failed("a") && memory.has_failed("b"));
        memory.forget("b");
        assert_eq!(remembered(&memory), 0);
    }
}
