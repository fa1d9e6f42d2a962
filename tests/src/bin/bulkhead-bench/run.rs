//! A run: its report, its progress, and its time limit.

use std::time::{Duration, Instant};

use bulkhead_tests::bench::report::{Baseline, Figure, Report, Unit};
use bulkhead_tests::bench::statistics::Summary;

/// A run in progress.
#[derive(Debug)]
pub struct Run {
    pub report: Report,
    start: Instant,
    limit: Duration,
}

impl Run {
    pub fn new(limit: Duration) -> Self {
        Self { report: Report::default(), start: Instant::now(), limit }
    }

    /// Announces what is measured next.
    pub fn tell(&self, what: &str) {
        eprintln!("{:>6.1} s  {what}", self.start.elapsed().as_secs_f64());
    }

    /// Returns whether there is time for one more measurement; if not, the report says that it is missing.
    pub fn has_time_for(&mut self, what: &str) -> bool {
        let in_time = self.start.elapsed() < self.limit;
        if in_time {
            self.tell(what);
        } else {
            self.leave_out(format!("{what}: {} s are over (--limit)", self.limit.as_secs()));
        }
        in_time
    }

    /// Records that something is missing from the report.
    pub fn leave_out(&mut self, reason: String) {
        self.tell(&format!("not measured: {reason}"));
        self.report.left_out.push(reason);
    }

    /// Adds a figure.
    pub fn add(
        &mut self,
        section: &str,
        subject: &str,
        condition: &str,
        unit: Unit,
        summary: Summary,
        baseline: Option<Baseline>,
    ) {
        let [section, subject, condition] = [section, subject, condition].map(str::to_owned);
        self.report.figures.push(Figure { section, subject, condition, unit, summary, baseline });
    }
}
