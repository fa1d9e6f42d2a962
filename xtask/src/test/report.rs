//! The summary of a run: the failed tests, each with the command that runs it again, the slowest ones, each step with its
//! time, and the total.

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use quick_junit::{TestCase, TestCaseStatus, TestSuite};

use super::compared::Former;
use super::count::Count;
use super::results;
use super::step::Step;
use super::transcript::processors;
use crate::progress::say;

/// How many of the slowest tests of each step are listed.
const SLOWEST: usize = 3;

/// The results so far. Steps that run in parallel add theirs as they end.
pub struct Report {
    start: Instant,
    lines: Mutex<Vec<Line>>,
    tests: Mutex<Vec<(Step, TestSuite)>>,
}

struct Line {
    /// `None` for a preparation.
    step: Option<Step>,
    title: String,
    time: Duration,
    /// How many tests passed and failed, and what is said of that.
    outcome: (Count, String),
}

impl Report {
    /// An empty report.
    pub fn new() -> Self {
        Report { start: Instant::now(), lines: Mutex::default(), tests: Mutex::default() }
    }

    /// Does something that steps depend on, and returns its result if it succeeded.
    pub fn preparation<T>(&self, title: &str, prepare: impl FnOnce() -> Result<T>) -> Option<T> {
        say(format_args!("== {title}"));
        let start = Instant::now();
        let (made, outcome) = match prepare() {
            Ok(made) => (Some(made), (Count::default(), "done".to_owned())),
            Err(error) => (None, broken(title, &error)),
        };
        self.add(Line { step: None, title: title.to_owned(), time: start.elapsed(), outcome });
        made
    }

    /// Adds the result of a step, and its tests.
    pub fn step(&self, step: Step, time: Duration, result: Result<Count>, tests: TestSuite) {
        let mut outcome = result.map_or_else(|error| broken(step.title(), &error), |count| (count, count.to_string()));
        let processors = processors(&tests).as_secs_f64();
        if processors > 0.0 {
            outcome.1 += &format!("; {processors:.0} s of processors");
        }
        self.add(Line { step: Some(step), title: step.title().to_owned(), time, outcome });
        self.tests.lock().unwrap_or_else(PoisonError::into_inner).push((step, tests));
    }

    fn add(&self, line: Line) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// Writes each test's time and outcome to a file in this directory, and prints the summary. Its last line is the total,
    /// in which a step that broke counts as one failure. Steps that ran whole are what a later run is compared with.
    pub fn finish(self, directory: &Path, is_whole: bool) -> ExitCode {
        let mut lines = self.lines.into_inner().unwrap_or_else(PoisonError::into_inner);
        lines.sort_by_key(|line| line.step);
        let mut tests = self.tests.into_inner().unwrap_or_else(PoisonError::into_inner);
        tests.sort_by_key(|(step, _)| *step);
        name_failed(&tests);
        let tests: Vec<TestSuite> = tests.into_iter().map(|(_, tests)| tests).collect();
        let (file, before) = (directory.join("test-results.xml"), directory.join("test-results-before.xml"));
        name_slow(&tests, &Former::read(&before), is_whole);
        let remember = || if is_whole { results::remember(&before, &tests) } else { Ok(()) };
        match results::write(&file, tests.iter().cloned()).and_then(|()| remember()) {
            Ok(()) => println!("\ntimes and outcomes of all tests: {}", file.display()),
            Err(error) => println!("\nthe tests' times are not written to {}: {error:#}", file.display()),
        }
        println!("\nsteps:");
        let mut total = Count::default();
        for Line { step, title, time, outcome: (count, text) } in &lines {
            total.add(*count);
            let name = step.map_or("-", Step::name);
            println!("{:>7.1} s  {name:<10}  {title}: {text}", time.as_secs_f64());
        }
        println!("{:>7.1} s  total", self.start.elapsed().as_secs_f64());
        println!("{total}");
        if total.failed == 0 && total.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Prints the failed tests.
fn name_failed(steps: &[(Step, TestSuite)]) {
    if steps.iter().any(|(_, tests)| tests.failures > 0) {
        println!("\nfailed tests:");
    }
    for (step, TestCase { name, status, .. }) in
        steps.iter().flat_map(|(step, tests)| tests.test_cases.iter().map(move |test| (step, test)))
    {
        if let TestCaseStatus::NonSuccess { description, .. } = status {
            println!("  {}: {}", step.name(), name.as_str());
            description.iter().flat_map(|said| said.lines()).for_each(|line| println!("      {line}"));
            println!("      again: {}", step.again(name));
        }
    }
}

/// Prints the slowest tests of each step, those that have become slow, and those that are gone.
fn name_slow(steps: &[TestSuite], former: &Former, is_whole: bool) {
    println!("\nslowest tests:");
    for step in steps {
        let mut times: Vec<_> = step.test_cases.iter().filter_map(|test| Some((test.time?, test))).collect();
        times.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        for (time, test) in times.iter().take(SLOWEST) {
            println!("{:>7.1} s  {}: {}", time.as_secs_f64(), step.name.as_str(), test.name.as_str());
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

fn broken(title: &str, error: &Error) -> (Count, String) {
    say(format_args!("{title}: {error:#}"));
    let why = error.to_string().lines().next().unwrap_or_default().to_owned();
    (Count { passed: 0, failed: 1 }, format!("FAILED: {why}"))
}
