//! The output of a step, and what is read from it: how many tests passed, what the failed ones said, and how long they
//! took.

use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::count::Count;
use super::failures::{FailedTest, Failures};
use super::progress::Progress;
use super::step::Step;
use crate::process::run_with;
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
    /// Those of the program that runs.
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
        Transcript {
            step,
            progress,
            kept: (!live).then(Vec::new),
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

    /// Adds what a program of this host prints, and returns the count that it ends with.
    pub fn run(&mut self, program: &mut Command) -> Result<Count> {
        self.count(|transcript| run_with(program, |line| transcript.push(Output::Stdout, line)))
    }

    /// Has a program run, which ends with printing its total, and returns that.
    pub fn count(&mut self, run: impl FnOnce(&mut Self) -> Result<ExitStatus>) -> Result<Count> {
        self.counts.clear();
        let status = run(self)?;
        agreed(self.counts.last().copied(), status)
    }

    /// Adds what a program of this host prints, which counts each of its parts, and returns the sum.
    pub fn run_parts(&mut self, program: &mut Command) -> Result<Count> {
        self.counts.clear();
        let status = run_with(program, |line| self.push(Output::Stdout, line))?;
        let mut sum = Count::default();
        self.counts.iter().for_each(|count| sum.add(*count));
        agreed((!self.counts.is_empty()).then_some(sum), status)
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
    use crate::process::command;

    #[test]
    fn counts_and_times_are_read_from_pieces() {
        let timed = |time, name: &str| TimedTest { time: Duration::from_millis(time), name: name.to_owned() };
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
        assert_eq!(transcript.times, [timed(1500, "theme::test"), timed(2000, "a::b")]);
        assert_eq!(
            transcript.run_parts(command("printf").arg(pieces.concat())).unwrap(),
            Count { passed: 78, failed: 3 }
        );
        assert!(transcript.run(&mut command("true")).is_err(), "the last program reported nothing");
        assert!(transcript.run(command("sh").args(["-c", "echo 1 passed, 0 failed; exit 3"])).is_err());
    }
}
