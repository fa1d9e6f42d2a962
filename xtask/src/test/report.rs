//! The summary of a run: the failed tests, the slowest ones, each step with its time, and the total.

use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Error, Result};

use super::count::Count;
use super::failures::FailedTest;
use super::step::Step;
use super::transcript::{Notable, SlowTest};
use crate::progress::say;

/// How many of the slowest tests are listed.
const SLOWEST: usize = 10;

/// The results so far. Steps that run in parallel add theirs as they end.
pub struct Report {
    start: Instant,
    lines: Mutex<Vec<Line>>,
    notable: Mutex<Vec<(Step, Notable)>>,
}

struct Line {
    /// `None` for a preparation.
    step: Option<Step>,
    title: String,
    time: Duration,
    outcome: Outcome,
}

enum Outcome {
    Counted(Count),
    Done,
    Broken(String),
}

impl Report {
    /// An empty report.
    pub fn new() -> Self {
        Report { start: Instant::now(), lines: Mutex::default(), notable: Mutex::default() }
    }

    /// Does something that steps depend on, and returns its result if it succeeded.
    pub fn preparation<T>(&self, title: &str, prepare: impl FnOnce() -> Result<T>) -> Option<T> {
        say(format_args!("== {title}"));
        let start = Instant::now();
        let (made, outcome) = match prepare() {
            Ok(made) => (Some(made), Outcome::Done),
            Err(error) => (None, broken(title, &error)),
        };
        self.add(Line { step: None, title: title.to_owned(), time: start.elapsed(), outcome });
        made
    }

    /// Adds the result of a step.
    pub fn step(&self, step: Step, time: Duration, result: Result<Count>, notable: Notable) {
        let outcome = result.map_or_else(|error| broken(step.title(), &error), Outcome::Counted);
        self.add(Line { step: Some(step), title: step.title().to_owned(), time, outcome });
        self.notable.lock().unwrap_or_else(PoisonError::into_inner).push((step, notable));
    }

    fn add(&self, line: Line) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// Prints the summary. Its last line is the total, in which a step that broke counts as one failure.
    pub fn finish(self) -> ExitCode {
        let mut lines = self.lines.into_inner().unwrap_or_else(PoisonError::into_inner);
        lines.sort_by_key(|line| line.step);
        name_tests(self.notable.into_inner().unwrap_or_else(PoisonError::into_inner));
        println!("\nsteps:");
        let mut total = Count::default();
        for Line { step, title, time, outcome } in &lines {
            let (count, text) = match outcome {
                Outcome::Counted(count) => (*count, count.to_string()),
                Outcome::Done => (Count::default(), "done".to_owned()),
                Outcome::Broken(why) => (Count { passed: 0, failed: 1 }, format!("FAILED: {why}")),
            };
            total.add(count);
            let name = step.map_or("-", Step::name);
            println!("{:>7.1} s  {name:<10}  {title}: {text}", time.as_secs_f64());
        }
        println!("{:>7.1} s  total", self.start.elapsed().as_secs_f64());
        println!("{total}");
        if total.failed == 0 && total.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Prints the failed tests and the slowest ones.
fn name_tests(steps: Vec<(Step, Notable)>) {
    let (mut failed, mut slow) = (Vec::new(), Vec::new());
    for (step, notable) in steps {
        failed.extend(notable.failed.into_iter().map(|test| (step, test)));
        slow.extend(notable.slow.into_iter().map(|test| (step, test)));
    }
    if !failed.is_empty() {
        println!("\nfailed tests:");
    }
    for (step, FailedTest { name, said }) in &failed {
        println!("  {}: {name}", step.name());
        said.iter().for_each(|line| println!("      {line}"));
    }
    slow.sort_by_key(|(_, test)| std::cmp::Reverse(test.time));
    println!("\nslowest tests:");
    for (step, SlowTest { time, name }) in slow.iter().take(SLOWEST) {
        println!("{:>7.1} s  {}: {name}", time.as_secs_f64(), step.name());
    }
}

fn broken(title: &str, error: &Error) -> Outcome {
    say(format_args!("{title}: {error:#}"));
    Outcome::Broken(error.to_string().lines().next().unwrap_or_default().to_owned())
}
