//! The output of a step, and what is read from it: how many tests passed, what the failed ones said, and how long they
//! took.

use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quick_junit::{NonSuccessKind, Property, TestCase, TestCaseStatus, TestSuite};

use super::count::Count;
use super::failures::{FailedTest, Failures};
use super::progress::Progress;
use super::step::Step;
use crate::process::run_with;
use crate::vm::{Output, show};

/// The property of a test that says for how many seconds its processes have had a processor.
pub const PROCESSORS: &str = "processors";

/// The output of a step.
pub struct Transcript<'a> {
    step: Step,
    progress: &'a Progress,
    /// Output to show when the step has ended; `None` if it is shown as it arrives.
    kept: Option<Vec<u8>>,
    line: Vec<u8>,
    /// Those of the program that runs.
    counts: Vec<Count>,
    /// Those that say how long they took, as if all had passed.
    tests: Vec<TestCase>,
    failures: Failures,
}

impl<'a> Transcript<'a> {
    /// An empty transcript. If `live`, output is shown as it arrives, otherwise at the end.
    pub fn new(step: Step, progress: &'a Progress, live: bool) -> Self {
        Transcript {
            step,
            progress,
            kept: (!live).then(Vec::new),
            line: Vec::new(),
            counts: Vec::new(),
            tests: Vec::new(),
            failures: Failures::default(),
        }
    }

    /// Adds output. The lines with times are read, and not shown.
    pub fn push(&mut self, output: Output, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if !self.line.ends_with(b"\n") {
                continue;
            }
            let whole = std::mem::take(&mut self.line);
            let line = String::from_utf8_lossy(&whole[..whole.len() - 1]).into_owned();
            if let Some((name, time)) = timed_test(&line) {
                self.took(name, time);
                continue;
            }
            if let Some((name, time)) = named_time("processors: ", &line) {
                if let Some(test) = self.tests.iter_mut().rfind(|test| *test.name == *name) {
                    test.properties.push(Property::new(PROCESSORS, time.as_secs_f64().to_string()));
                }
                continue;
            }
            self.show(output, &whole);
            self.counts.extend(Count::of_line(&line));
            self.failures.read(&line);
            self.progress.wrote(self.step, &line);
        }
    }

    fn show(&mut self, output: Output, bytes: &[u8]) {
        match &mut self.kept {
            Some(kept) => kept.extend_from_slice(bytes),
            None => show(output, bytes),
        }
    }

    /// Adds a line of our own.
    pub fn say(&mut self, line: &str) {
        self.push(Output::Stdout, format!("{line}\n").as_bytes());
    }

    /// Adds the time of a test that does not report its own.
    pub fn took(&mut self, name: &str, time: Duration) {
        let mut test = TestCase::new(name, TestCaseStatus::success());
        test.set_time(time);
        self.tests.push(test);
    }

    /// Adds what a program of this host prints, and returns the count that it ends with.
    pub fn run(&mut self, program: &mut Command) -> Result<Count> {
        self.count(|transcript| run_with(program, |line| transcript.push(Output::Stdout, line)))
    }

    /// Has a program run, which ends with printing its total, and returns that. It must be consistent with how the program
    /// ended.
    pub fn count(&mut self, run: impl FnOnce(&mut Self) -> Result<ExitStatus>) -> Result<Count> {
        self.counts.clear();
        let status = run(self)?;
        let last = self.counts.last().copied();
        let count = last.with_context(|| format!("reported no number of tests; it ended with {status}"))?;
        ensure!(status.success() || count.failed > 0, "ended with {status} after {count}");
        Ok(count)
    }

    /// The same for a program that counts each of its parts, and ends when one has failed: returns the sum.
    pub fn run_parts(&mut self, program: &mut Command) -> Result<Count> {
        self.run(program)?;
        let mut sum = Count::default();
        self.counts.iter().for_each(|count| sum.add(*count));
        Ok(sum)
    }

    /// Shows the output that was kept back, and returns each test's time and outcome.
    pub fn close(mut self) -> TestSuite {
        let rest = std::mem::take(&mut self.line);
        self.show(Output::Stdout, &rest);
        if let Some(kept) = &self.kept {
            let title = format!("\n== {}\n", self.step.title());
            show(Output::Stdout, &[title.as_bytes(), kept].concat());
        }
        let mut tests = self.tests;
        for FailedTest { name, said } in self.failures.all {
            let mut failed = TestCaseStatus::non_success(NonSuccessKind::Failure);
            failed.set_description(said.join("\n"));
            let is_it =
                |test: &&mut TestCase| *test.name == name && matches!(test.status, TestCaseStatus::Success { .. });
            match tests.iter_mut().find(is_it) {
                Some(test) => test.status = failed,
                // What was killed with its program has no time.
                None => tests.push(TestCase::new(name, failed)),
            }
        }
        let mut suite = TestSuite::new(self.step.name());
        suite.set_time(tests.iter().filter_map(|test| test.time).sum());
        for mut test in tests {
            test.set_classname(self.step.name());
            suite.add_test_case(test);
        }
        suite
    }
}

/// The test named in a line `time: 12.34 s theme::test` of our suites, or `test theme::test ... ok <12.340s>` of the standard
/// library's harness. That one names failed tests again, with what they said.
fn timed_test(line: &str) -> Option<(&str, Duration)> {
    named_time("time: ", line).or_else(|| {
        let (name, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
        Some((name, seconds(outcome.split_once(" <")?.1.strip_suffix("s>")?)?))
    })
}

/// What follows this word in a line of our suites: `12.34 s theme::test`.
fn named_time<'l>(word: &str, line: &'l str) -> Option<(&'l str, Duration)> {
    let (time, name) = line.strip_prefix(word)?.split_once(" s ")?;
    Some((name, seconds(time)?))
}

fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

/// For how long these tests have had a processor, those that say so.
pub fn processors(tests: &TestSuite) -> Duration {
    let properties = tests.test_cases.iter().flat_map(|test| &test.properties);
    properties.filter(|property| *property.name == *PROCESSORS).filter_map(|property| seconds(&property.value)).sum()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::process::command;

    #[test]
    fn counts_and_times_are_read_from_pieces() {
        let progress = Progress::default();
        let mut transcript = Transcript::new(Step::Unit, &progress, false);
        let pieces = [
            "running 3 tests\ntest result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; finished in 0.01s\n",
            "FAIL! -- 70 Passed | 2 Failed | 1 Pending | 20 Skipped\ntime: 1.50 s theme::test\ntest a::b ... FAILED <2.000s>\nnothing passed",
            "\n5 passed, 1 fa",
            "iled\n",
        ];
        let ended = |transcript: &mut Transcript<'_>, status| {
            pieces.iter().for_each(|piece| transcript.push(Output::Stdout, piece.as_bytes()));
            Ok(ExitStatus::from_raw(status))
        };
        let last = Count { passed: 5, failed: 1 };
        assert_eq!(transcript.count(|transcript| ended(transcript, 256)).unwrap(), last);
        assert_eq!(transcript.counts, [Count { passed: 3, failed: 0 }, Count { passed: 70, failed: 2 }, last]);
        assert_eq!(
            transcript.run_parts(command("printf").arg(pieces.concat())).unwrap(),
            Count { passed: 78, failed: 3 }
        );
        assert!(transcript.run(&mut command("true")).is_err(), "the last program reported nothing");
        assert!(transcript.run(command("sh").args(["-c", "echo 1 passed, 0 failed; exit 3"])).is_err());
    }

    #[test]
    fn times_and_failures_are_kept() {
        let progress = Progress::default();
        let mut transcript = Transcript::new(Step::Host, &progress, false);
        let output = "time: 1.50 s a\nprocessors: 0.50 s a\ntest b ... FAILED <2.000s>\n---- b ----\nit failed\n---- c ----\nso did it\n";
        transcript.push(Output::Stdout, output.as_bytes());
        // What is shown is read by whoever runs this test.
        let suite = Transcript { kept: None, ..transcript }.close();
        let said = |test: &TestCase| match &test.status {
            TestCaseStatus::NonSuccess { description, .. } => description.as_deref().map(str::to_owned),
            _ => None,
        };
        let tests = suite
            .test_cases
            .iter()
            .map(|test| (test.name.as_str(), test.time.map(|time| time.as_millis()), said(test)));
        let failed = |text: &str| Some(text.to_owned());
        let expected =
            [("a", Some(1500), None), ("b", Some(2000), failed("it failed")), ("c", None, failed("so did it"))];
        assert_eq!((tests.collect::<Vec<_>>(), suite.failures), (expected.into(), 2));
        assert_eq!(processors(&suite), Duration::from_millis(500));
    }
}
