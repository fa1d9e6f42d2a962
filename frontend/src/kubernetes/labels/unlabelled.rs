//! When to look for objects without the policy's label: those that predate the policy, or that it has missed. The watch by
//! label does not report them.

use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::kubernetes::api::backoff::jitter;

/// The interval is added once more for every this many objects without the label.
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
    /// The watch has started with a new list, which replaces everything reported before, and lacks every object without
    /// the label.
    pub fn watch_restarted(&mut self) {
        if !self.was_empty {
            self.due = Some(Instant::now());
        }
    }

    /// Plans the next look after this one: after this interval, or a longer one.
    pub fn plan<K>(&mut self, found: &Found<K>, interval: Duration) {
        let pause = found.seen.map_or(AFTER_FAILURE, |seen| interval * (1 + seen / MANY));
        self.due = Some(Instant::now() + pause + jitter(pause));
        self.was_empty = found.objects.is_empty();
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
pub struct Found<K> {
    /// Those for the agent to look at as they are.
    pub objects: Vec<K>,
    /// Among how many, unless the look has failed on the way.
    seen: Option<u32>,
}

impl<K> Found<K> {
    /// Returns what was found among `seen` objects without the label.
    pub fn among(seen: u32, objects: Vec<K>) -> Self {
        Self { objects, seen: Some(seen) }
    }

    /// Returns what was found by a look that has failed on the way.
    pub fn incomplete(objects: Vec<K>) -> Self {
        Self { objects, seen: None }
    }
}
