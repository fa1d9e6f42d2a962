//! The output of a step, and what is read from it: how many tests passed, what the failed ones said, and how long they
//! took.

use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::count::Count;
use super::failures::{FailedTest, Failures};
use super::progress::Progress;
use super::step::Step;
use crate::vm::{Output, show};

/// A test and how long it took.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedTest {
    /// How long it took.
    pub time: Duration,
    /// Its name.
    pub name: String,
}

/// The output of a step.
pub struct Transcript<'a> {
    step: Step,
    progress: &'a Progress,
    /// Output to show when the step has ended; `None` if it is shown as it arrives.
    kept: Option<Vec<u8>>,
    line: Vec<u8>,
    counts: Vec<Count>,
    times: Vec<TimedTest>,
    failures: Failures,
}

/// What is kept of a step's tests.
#[derive(Debug, Default)]
pub struct Notable {
    /// How long each took.
    pub times: Vec<TimedTest>,
    /// Those that failed.
    pub failed: Vec<FailedTest>,
}

impl<'a> Transcript<'a> {
    /// An empty transcript. If `live`, output is shown as it arrives, otherwise at the end.
    pub fn new(step: Step, progress: &'a Progress, live: bool) -> Self {
        let kept = if live { None } else { Some(Vec::new()) };
        Transcript {
            step,
            progress,
            kept,
            line: Vec::new(),
            counts: Vec::new(),
            times: Vec::new(),
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
            if let Some(test) = timed_test(&line) {
                self.times.push(test);
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
    pub fn took(&mut self, name: String, time: Duration) {
        self.times.push(TimedTest { time, name });
    }

    /// The count of a program that prints its total last and ended with this status. Its counts start at `since`.
    pub fn verdict(&self, since: usize, status: ExitStatus) -> Result<Count> {
        agreed(self.counts.get(since..).and_then(|counts| counts.last()).copied(), status)
    }

    /// The count of a program that prints one for each of its parts and ended with this status.
    pub fn verdict_of_parts(&self, since: usize, status: ExitStatus) -> Result<Count> {
        let parts = self.counts.get(since..).unwrap_or_default().iter().copied();
        let sum = parts.reduce(|mut sum, count| {
            sum.add(count);
            sum
        });
        agreed(sum, status)
    }

    /// Returns how many counts there are: the index at which those of the next program start.
    pub fn counts(&self) -> usize {
        self.counts.len()
    }

    /// Shows the output that was kept back, and returns what to keep of the tests.
    pub fn close(mut self) -> Notable {
        let rest = std::mem::take(&mut self.line);
        self.show(Output::Stdout, &rest);
        if let Some(kept) = &self.kept {
            let title = format!("\n== {}\n", self.step.title());
            show(Output::Stdout, &[title.as_bytes(), kept].concat());
        }
        Notable { times: self.times, failed: self.failures.into_all() }
    }
}

/// The count, which must be consistent with how the program ended.
fn agreed(count: Option<Count>, status: ExitStatus) -> Result<Count> {
    let count = count.with_context(|| format!("reported no number of tests; it ended with {status}"))?;
    ensure!(status.success() || count.failed > 0, "ended with {status} after {count}");
    Ok(count)
}

/// The test named in a line `time: 12.34 s theme::test` of our suites, or `test theme::test ... ok <12.340s>` of the standard
/// library's harness. That one names failed tests again, with what they said.
fn timed_test(line: &str) -> Option<TimedTest> {
    let ours = || line.strip_prefix("time: ")?.split_once(" s ");
    let standard = || {
        let (name, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
        Some((outcome.split_once(" <")?.1.strip_suffix("s>")?, name))
    };
    let (seconds, name) = ours().or_else(standard)?;
    let time = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
    Some(TimedTest { time, name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn counts_and_times_are_read_from_pieces() {
        let progress = Progress::default();
        let mut transcript = Transcript::new(Step::Unit, &progress, false);
        let mut push = |text: &str| transcript.push(Output::Stdout, text.as_bytes());
        push("running 3 tests\ntest result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; finished in 0.01s\n");
        push(
            "FAIL! -- 70 Passed | 2 Failed | 1 Pending | 20 Skipped\ntime: 1.50 s theme::test\ntest a::b ... FAILED <2.000s>\nnothing passed",
        );
        push("\n5 passed, 1 fa");
        push("iled\n");
        let counts = [(3, 0), (70, 2), (5, 1)].map(|(passed, failed)| Count { passed, failed });
        assert_eq!(transcript.counts, counts);
        let (good, bad) = (ExitStatus::from_raw(0), ExitStatus::from_raw(256));
        assert_eq!(transcript.verdict(0, good).unwrap(), counts[2]);
        assert_eq!(transcript.verdict(2, bad).unwrap(), counts[2]);
        assert_eq!(transcript.verdict_of_parts(0, good).unwrap(), Count { passed: 78, failed: 3 });
        assert!(transcript.verdict(3, good).is_err(), "the last program reported nothing");
        let timed = |time, name: &str| TimedTest { time: Duration::from_millis(time), name: name.to_owned() };
        assert_eq!(transcript.times, [timed(1500, "theme::test"), timed(2000, "a::b")]);
    }
}
