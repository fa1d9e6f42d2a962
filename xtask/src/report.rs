//! Steps in order, with their times, and the summary at the end.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::count::Count;
use crate::progress::say;

/// What the steps so far came to.
pub struct Report {
    filtered: bool,
    lines: Vec<(String, Duration, Outcome)>,
}

enum Outcome {
    Counted(Count),
    Done,
    Broken(String),
}

impl Report {
    /// An empty report. With `filtered` a step may find no test of the name that was asked for.
    pub fn new(filtered: bool) -> Self {
        Report { filtered, lines: Vec::new() }
    }

    /// Runs a step that counts tests.
    pub fn tests(&mut self, name: &str, step: impl FnOnce() -> Result<Count>) {
        let filtered = self.filtered;
        self.step(name, || {
            let count = step()?;
            ensure!(filtered || count != Count::default(), "ran no test");
            Ok(Outcome::Counted(count))
        });
    }

    /// Runs a step that others depend on, and returns what they need if it succeeded.
    pub fn preparation<T>(&mut self, name: &str, step: impl FnOnce() -> Result<T>) -> Option<T> {
        let mut made = None;
        self.step(name, || {
            made = Some(step()?);
            Ok(Outcome::Done)
        });
        made
    }

    fn step(&mut self, name: &str, step: impl FnOnce() -> Result<Outcome>) {
        say(format_args!("== {name}"));
        let start = Instant::now();
        let outcome = step().unwrap_or_else(|error| {
            say(format_args!("{name}: {error:#}"));
            Outcome::Broken(error.to_string().lines().next().unwrap_or_default().to_owned())
        });
        self.lines.push((name.to_owned(), start.elapsed(), outcome));
    }

    /// Prints the summary. Its last line is the total, in which a step that broke counts as one failure.
    pub fn finish(self) -> ExitCode {
        let mut total = Count::default();
        println!();
        for (name, duration, outcome) in &self.lines {
            let (count, text) = match outcome {
                Outcome::Counted(count) => (*count, count.to_string()),
                Outcome::Done => (Count::default(), "done".to_owned()),
                Outcome::Broken(why) => (Count { passed: 0, failed: 1 }, format!("FAILED: {why}")),
            };
            total.add(count);
            println!("{:>7.1} s  {name}: {text}", duration.as_secs_f64());
        }
        println!("{total}");
        if total.failed == 0 && total.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
