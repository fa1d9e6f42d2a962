//! The summary of a run: the failed tests, each with the command that runs it again, the slowest ones, each step with its
//! time, and the total.

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Error, Result};

use super::compared::Former;
use super::count::Count;
use super::failures::FailedTest;
use super::results;
use super::step::Step;
use super::transcript::{Notable, TimedTest};
use crate::progress::say;

/// How many of the slowest tests of each step are listed.
const SLOWEST: usize = 3;

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

    /// Writes each test's time and outcome to a file in this directory, and prints the summary. Its last line is the total,
    /// in which a step that broke counts as one failure. Steps that ran whole are what a later run is compared with.
    pub fn finish(self, directory: &Path, is_whole: bool) -> ExitCode {
        let mut lines = self.lines.into_inner().unwrap_or_else(PoisonError::into_inner);
        lines.sort_by_key(|line| line.step);
        let mut steps = self.notable.into_inner().unwrap_or_else(PoisonError::into_inner);
        steps.sort_by_key(|(step, _)| *step);
        let (file, before) = (directory.join("test-results.xml"), directory.join("test-results-before.xml"));
        name_tests(&steps, &Former::read(&before), is_whole);
        let remember = || if is_whole { results::remember(&before, &steps) } else { Ok(()) };
        match results::write(&file, &steps).and_then(|()| remember()) {
            Ok(()) => println!("\ntimes and outcomes of all tests: {}", file.display()),
            Err(error) => println!("\nthe tests' times are not written to {}: {error:#}", file.display()),
        }
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

/// Prints the failed tests, the slowest ones of each step, those that have become slow, and those that are gone.
fn name_tests(steps: &[(Step, Notable)], former: &Former, is_whole: bool) {
    if steps.iter().any(|(_, notable)| !notable.failed.is_empty()) {
        println!("\nfailed tests:");
    }
    for (step, FailedTest { name, said }) in
        steps.iter().flat_map(|(step, of)| of.failed.iter().map(move |test| (step, test)))
    {
        println!("  {}: {name}", step.name());
        said.iter().for_each(|line| println!("      {line}"));
        println!("      again: {}", step.again(name));
    }
    println!("\nslowest tests:");
    for (step, notable) in steps {
        let mut times: Vec<&TimedTest> = notable.times.iter().collect();
        times.sort_by_key(|test| std::cmp::Reverse(test.time));
        for TimedTest { time, name } in times.iter().take(SLOWEST) {
            println!("{:>7.1} s  {}: {name}", time.as_secs_f64(), step.name());
        }
    }
    let gone = if is_whole { former.gone(steps) } else { Vec::new() };
    for (title, lines) in [
        ("more than twice as slow as in the run before, compared with the others", former.slower(steps)),
        ("in the run before, and not in this one", gone),
    ] {
        if !lines.is_empty() {
            println!("\n{title}:\n  {}", lines.join("\n  "));
        }
    }
}

fn broken(title: &str, error: &Error) -> Outcome {
    say(format_args!("{title}: {error:#}"));
    Outcome::Broken(error.to_string().lines().next().unwrap_or_default().to_owned())
}
