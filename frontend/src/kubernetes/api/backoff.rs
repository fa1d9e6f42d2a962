//! When to retry something that failed: later each time, and never on all nodes at once.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use kube::runtime::utils::Backoff;

use super::failure::Failure;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);

/// The longest delay while the API server or the helper is away.
const LONGEST_IN_OUTAGE: Duration = Duration::from_secs(12);

/// The first delay after a conflict.
const AFTER_CONFLICT: Duration = Duration::from_millis(200);

/// The longest delay, before jitter, until an interrupted watch is started again.
const LONGEST_INTERRUPTION: Duration = Duration::from_millis(7500);

/// After this long without an interruption, the next one counts as the first.
const CALM: Duration = Duration::from_secs(120);

/// Returns how long to wait after `failure`, the latest of `failures` in a row.
pub fn retry_delay(failures: u32, failure: &Failure) -> Duration {
    let delay = if failure.is_final() {
        LONGEST
    } else {
        // After a conflict the object's new state is on its way, unless the watch that brings it is interrupted.
        let first = if failure.is_conflict() { AFTER_CONFLICT } else { FIRST };
        let longest = if failure.is_outage() { LONGEST_IN_OUTAGE } else { LONGEST };
        doubled(first, failures.saturating_sub(1)).min(longest)
    };
    delay.max(failure.retry_after().unwrap_or_default()) + jitter(delay / 4)
}

/// When to restart something continuous, such as a watch, after an interruption.
///
/// A watcher counts every attempt that it starts as a success; here only time without an interruption is one.
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
        Some(delay + jitter(delay))
    }
}

impl Backoff for Interruptions {
    fn reset(&mut self) {}
}

/// A random duration of at most `most`. Good enough to keep agents from acting all at once.
pub fn jitter(most: Duration) -> Duration {
    // Each `RandomState` has its own keys.
    let share = RandomState::new().hash_one(0) >> 32;
    most.mul_f64(share as f64 / f64::from(u32::MAX))
}

fn doubled(first: Duration, times: u32) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(times))
}

#[cfg(test)]
mod tests {
    use bulkhead_model::volumes::{Fault, FaultKind};
    use bulkhead_protocol::ErrorKind;

    use super::*;

    fn status(code: u16, reason: &str, seconds: u32) -> Failure {
        let details = serde_json::json!({ "retryAfterSeconds": seconds });
        let status = serde_json::json!({ "code": code, "reason": reason, "message": "", "details": details });
        let error = Box::new(kube::Error::Api(Box::new(serde_json::from_value(status).unwrap())));
        Failure::Api { operation: "testing", error }
    }

    #[test]
    fn longer_each_time_up_to_five_minutes() {
        let failure = Failure::Volume(Fault::new(FaultKind::Typed(ErrorKind::Busy), "busy"));
        for (failures, expected) in (1..).zip([1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]) {
            let delay = retry_delay(failures, &failure).as_secs_f64();
            assert!((f64::from(expected)..=1.25 * f64::from(expected)).contains(&delay), "{expected}: {delay}");
        }
    }

    #[test]
    fn after_an_outage_no_work_waits_for_minutes() {
        let unavailable = status(503, "ServiceUnavailable", 0);
        let unreachable =
            Failure::Api { operation: "testing", error: Box::new(kube::Error::Service("connection refused".into())) };
        let hanging = Failure::NoAnswer { operation: "testing", waited: Duration::ZERO };
        let without_helper = Failure::Volume(Fault::new(FaultKind::Away, "away"));
        for outage in [unavailable, unreachable, hanging, without_helper] {
            assert!(retry_delay(1, &outage) < Duration::from_secs(2), "{outage}");
            assert!(retry_delay(1000, &outage) <= Duration::from_secs(15), "{outage}");
        }
        let mut interruptions = Interruptions::default();
        assert!((0..20).all(|_| interruptions.next().unwrap() <= Duration::from_secs(15)));
    }

    #[test]
    fn final_failures_are_not_tried_again_soon() {
        assert!(retry_delay(1, &Failure::Volume(Fault::invalid("no"))) >= LONGEST);
        assert!(retry_delay(1, &Failure::Refused("no".to_owned())) >= LONGEST);
    }

    #[test]
    fn the_server_may_ask_for_more_time_and_a_conflict_needs_none() {
        assert!(retry_delay(1, &status(429, "TooManyRequests", 17)) >= Duration::from_secs(17));
        let conflict = status(409, "Conflict", 0);
        assert!(retry_delay(1, &conflict) < Duration::from_secs(1));
        assert!(retry_delay(10, &conflict) > Duration::from_secs(30), "one that does not end");
    }

    #[test]
    fn interruptions_grow_whatever_the_watcher_thinks() {
        let mut interruptions = Interruptions::default();
        for expected in [1.0, 2.0, 4.0, 7.5, 7.5] {
            let delay = interruptions.next().unwrap().as_secs_f64();
            assert!((expected..=2.0 * expected).contains(&delay), "{expected}: {delay}");
            interruptions.reset();
        }
    }
}
