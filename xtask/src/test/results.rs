//! Each test's time and outcome, in the format of JUnit, which CI systems show: a suite for each step.

use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result};
use fs_err::{self as fs, File};
use quick_junit::{Report, TestSuite};

/// Writes the tests of these steps to a file.
pub fn write(file: &Path, steps: impl Iterator<Item = TestSuite>) -> Result<()> {
    fs::create_dir_all(file.parent().context("it is in no directory")?)?;
    let mut report = Report::new("bulkhead");
    report.add_test_suites(steps).serialize(File::create(file)?).context("write it")
}

/// Keeps the tests of these steps in a file, with those of the steps that ran before, for a later run to be compared with.
pub fn remember(file: &Path, steps: &[TestSuite]) -> Result<()> {
    let others = read(file).filter(|other| steps.iter().all(|step| step.name != other.name));
    let others: Vec<_> = others.collect();
    write(file, steps.iter().cloned().chain(others))
}

/// The steps and tests in a file that a run has written, if there is one.
pub fn read(file: &Path) -> impl Iterator<Item = TestSuite> {
    let report = File::open(file).ok().and_then(|file| Report::deserialize(BufReader::new(file)).ok());
    report.into_iter().flat_map(|report| report.test_suites)
}
