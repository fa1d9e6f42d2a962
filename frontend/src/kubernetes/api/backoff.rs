//! When what has failed is tried again: later each time, and never all at once.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::runtime::utils::Backoff;

use super::failure::Failure;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);

/// The longest that a watch stays interrupted by itself.
const LONGEST_INTERRUPTION: Duration = Duration::from_secs(30);

/// After so long without an interruption the next one is the first.
const CALM: Duration = Duration::from_secs(120);

const AFTER_CONFLICT: Duration = Duration::from_millis(200);

/// The failures in a row of each object, by its uid.
#[derive(Debug, Default)]
pub struct Attempts(Mutex<HashMap<String, u32>>);

impl Attempts {
    /// How long to wait after `failure` of the object with that uid.
    pub fn after(&self, uid: &str, failure: &Failure) -> Duration {
        let failures = {
            let mut counts = self.counts();
            let failures = counts.entry(uid.to_owned()).or_default();
            *failures = failures.saturating_add(1);
            *failures
        };
        let delay = if failure.is_final() {
            LONGEST
        } else {
            // After a conflict the object's new state is on its way, unless the watch that brings it is interrupted.
            let first = if failure.is_conflict() { AFTER_CONFLICT } else { FIRST };
            doubled(first, failures - 1).min(LONGEST)
        };
        delay.max(failure.retry_after().unwrap_or_default()) + random(delay / 4)
    }

    /// The object is well, or gone.
    pub fn forget(&self, uid: &str) {
        self.counts().remove(uid);
    }

    /// Whether the last attempt has failed.
    pub fn has_failed(&self, uid: &str) -> bool {
        self.counts().contains_key(uid)
    }

    /// Forgets all but those objects.
    pub fn keep(&self, living: &HashSet<String>) {
        self.counts().retain(|uid, _| living.contains(uid));
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When what goes on for ever, a watch for instance, is begun again after an interruption: later each time.
///
/// A watcher takes every attempt that it begins for a success; here only time without interruption is one.
#[derive(Debug, Default)]
pub struct Interruptions {
    in_a_row: u32,
    last: Option<Instant>,
}

impl Iterator for Interruptions {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.last.is_some_and(|last| last.elapsed() > CALM) {
            self.in_a_row = 0;
        }
        self.last = Some(Instant::now());
        let delay = doubled(FIRST, self.in_a_row).min(LONGEST_INTERRUPTION);
        self.in_a_row = self.in_a_row.saturating_add(1);
        Some(delay + random(delay))
    }
}

impl Backoff for Interruptions {
    fn reset(&mut self) {}
}

fn doubled(first: Duration, times: u32) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(times))
}

/// A duration from nothing to `most`, another one each time. Good enough to part agents that would act at once.
pub fn random(most: Duration) -> Duration {
    // Each `RandomState` has keys of its own.
    let share = RandomState::new().hash_one(0) >> 32;
    most.mul_f64(share as f64 / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::Fault;

    #[test]
    fn longer_each_time_up_to_five_minutes() {
        let attempts = Attempts::default();
        let away = Failure::Hung("creating a volume");
        for expected in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            let delay = attempts.after("a", &away).as_secs_f64();
            assert!((f64::from(expected)..=1.25 * f64::from(expected)).contains(&delay), "{expected}: {delay}");
        }
        assert!(attempts.after("b", &away) < Duration::from_secs(2));
        attempts.forget("a");
        assert!(attempts.after("a", &away) < Duration::from_secs(2));
    }

    #[test]
    fn what_cannot_be_had_is_not_tried_soon() {
        let attempts = Attempts::default();
        assert!(attempts.after("a", &Failure::Volume(Fault::invalid("no"))) >= LONGEST);
        assert!(attempts.after("a", &Failure::Refused("no".to_owned())) >= LONGEST);
    }

    #[test]
    fn the_server_may_ask_for_more_time_and_a_conflict_needs_none() {
        let status = |code, reason: &str, seconds| {
            let details = serde_json::json!({ "retryAfterSeconds": seconds });
            let status = serde_json::json!({ "code": code, "reason": reason, "message": "", "details": details });
            let error = Box::new(kube::Error::Api(Box::new(serde_json::from_value(status).unwrap())));
            Failure::Api { operation: "testing", error }
        };
        let attempts = Attempts::default();
        assert!(attempts.after("a", &status(429, "TooManyRequests", 17)) >= Duration::from_secs(17));
        assert!(attempts.after("b", &status(409, "Conflict", 0)) < Duration::from_secs(1));
        for _ in 0..8 {
            attempts.after("b", &status(409, "Conflict", 0));
        }
        assert!(attempts.after("b", &status(409, "Conflict", 0)) > Duration::from_secs(30), "one that does not end");
    }

    #[test]
    fn interruptions_grow_whatever_the_watcher_thinks() {
        let mut interruptions = Interruptions::default();
        for expected in [1, 2, 4, 8, 16, 30, 30] {
            let delay = interruptions.next().unwrap().as_secs_f64();
            assert!((f64::from(expected)..=2.0 * f64::from(expected)).contains(&delay), "{expected}: {delay}");
            interruptions.reset();
        }
    }
}
