//! When capacity is reported: after every change, and from time to time without one.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::warn;

use super::reporter::CapacityReporter;
use super::written::{COALESCED, Urgency};
use crate::kubernetes::api::backoff::{Interruptions, jitter};
use crate::kubernetes::intervals::Intervals;

/// When to measure again after a change: a deleted volume frees its space only as it is emptied.
const AFTER_CHANGE: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
];

/// Publishes for as long as it is polled.
pub async fn run(reporter: &CapacityReporter) {
    let Intervals { capacity: period, capacity_written, node, .. } = *reporter.intervals();
    let mut rewrite = Instant::now() + capacity_written + jitter(capacity_written);
    let mut review = Instant::now() + node + jitter(node / 2);
    let mut interruptions = Interruptions::default();
    let mut after_change = AFTER_CHANGE.iter();
    let mut urgency = Urgency::Changed;
    loop {
        if Instant::now() > review {
            review = Instant::now() + node + jitter(node / 2);
            reporter.review_node().await;
        }
        let mut next = Instant::now() + period + jitter(period / 4);
        let outcome = reporter.report(urgency).await;
        urgency = Urgency::Periodic;
        if outcome.is_postponed {
            next = Instant::now() + COALESCED;
            urgency = Urgency::Due;
        }
        // What the agent may not do has been reported once, and somebody has to grant it first.
        let mut failures = outcome.failures.iter().filter(|(_, failure)| !failure.is_forbidden());
        if let Some((class, failure)) = failures.next() {
            warn!(class = class.as_deref(), "the node's capacity is not published: {failure}");
            let pause = interruptions.next().unwrap_or(period);
            next = Instant::now() + failure.retry_after().unwrap_or_default().max(pause);
            // The token may belong to a node that is gone.
            review = Instant::now();
        }
        if let Some(soon) = after_change.as_slice().first() {
            next = next.min(Instant::now() + *soon);
        }
        tokio::select! {
            // Whatever changes before a postponed pass is measured in that pass.
            () = reporter.change(), if !outcome.is_postponed => {
                after_change = AFTER_CHANGE.iter();
                urgency = Urgency::Changed;
            }
            () = reporter.loss() => {
                reporter.invalidate();
                urgency = Urgency::Changed;
            }
            () = sleep_until(next) => {
                if !outcome.is_postponed && after_change.next().is_some() {
                    urgency = Urgency::Changed;
                }
            }
        }
        if Instant::now() > rewrite {
            rewrite = Instant::now() + capacity_written + jitter(capacity_written);
            reporter.invalidate();
        }
    }
}
