//! Each test's time and outcome, in the format of JUnit, which CI systems show.

use std::io::BufReader;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use fs_err::{self as fs, File};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::failures::FailedTest;
use super::step::Step;
use super::transcript::{Notable, TimedTest};

/// Writes the tests of these steps to a file.
pub fn write(file: &Path, steps: &[(Step, Notable)]) -> Result<()> {
    fs::create_dir_all(file.parent().context("it is in no directory")?)?;
    report(steps).serialize(File::create(file)?).context("write it")
}

/// Keeps the tests of these steps in a file, with those of the steps that ran before, for a later run to be compared with.
pub fn remember(file: &Path, steps: &[(Step, Notable)]) -> Result<()> {
    let mut all = report(steps);
    let others = read(file).filter(|suite| steps.iter().all(|(step, _)| suite.name.as_str() != step.name()));
    let others: Vec<_> = others.collect();
    all.add_test_suites(others);
    all.serialize(File::create(file)?).context("write it")
}

/// The steps and tests in a file that a run has written, if there is one.
pub fn read(file: &Path) -> impl Iterator<Item = TestSuite> {
    let report = File::open(file).ok().and_then(|file| Report::deserialize(BufReader::new(file)).ok());
    report.into_iter().flat_map(|report| report.test_suites)
}

fn report(steps: &[(Step, Notable)]) -> Report {
    let mut report = Report::new("bulkhead");
    for (step, Notable { times, failed }) in steps {
        let mut suite = TestSuite::new(step.name());
        for TimedTest { time, name } in times {
            let mut case = case(*step, name, failed.iter().find(|test| test.name == *name));
            case.set_time(*time);
            suite.add_test_case(case);
        }
        // What was killed with its program has no time.
        let is_timed = |test: &&FailedTest| times.iter().any(|timed| timed.name == test.name);
        for test in failed.iter().filter(|test| !is_timed(test)) {
            suite.add_test_case(case(*step, &test.name, Some(test)));
        }
        suite.set_time(times.iter().map(|test| test.time).sum::<Duration>());
        report.add_test_suite(suite);
    }
    report
}

fn case(step: Step, name: &str, failed: Option<&FailedTest>) -> TestCase {
    let status = failed.map_or_else(TestCaseStatus::success, |test| {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
        status.set_description(test.said.join("\n"));
        status
    });
    let mut case = TestCase::new(name, status);
    case.set_classname(step.name());
    case
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_failures_are_written() {
        let time = |name: &str, seconds| TimedTest { time: Duration::from_secs(seconds), name: name.to_owned() };
        let failed = |name: &str| FailedTest { name: name.to_owned(), said: vec!["<it> failed".to_owned()] };
        let notable = Notable { times: vec![time("a", 1), time("b", 2)], failed: vec![failed("b"), failed("c")] };
        let written = report(&[(Step::Host, notable)]).to_string().expect("XML");
        for part in [
            r#"<testsuite name="host" tests="3" "#,
            r#"<testcase name="a" classname="host" time="1.000"/>"#,
            r#"<testcase name="b" classname="host" time="2.000">"#,
            r#"<testcase name="c" classname="host">"#,
            "&lt;it&gt; failed",
        ] {
            assert!(written.contains(part), "{part} is not in {written}");
        }
    }
}
