//! The results of Kubernetes' own tests, as ginkgo reports them, and which of the tests may be skipped.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The outermost text of a test of an external driver.
const SUITE: &str = "External Storage ";

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It ran and passed.
    Passed,
    /// It failed, or something around it did, for this reason.
    Failed(String),
    /// The suite skipped it, for this reason.
    Skipped(String),
    /// The command line excluded it.
    LeftOut,
}

/// One test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its name: the texts around it, starting with the second, and its own.
    pub name: String,
    /// How it ended.
    pub state: State,
    /// How long it took.
    pub time: Duration,
}

/// The tests of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Sorted by name.
    pub tests: Vec<Outcome>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    spec_reports: Option<Vec<Spec>>,
    special_suite_failure_reasons: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_text: String,
    leaf_node_type: String,
    state: String,
    run_time: i64,
    failure: Option<Failure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    message: String,
}

impl Outcomes {
    /// Reads ginkgo's report.
    pub fn read(report: &str) -> Result<Self> {
        let suites: Vec<Suite> = serde_json::from_str(report).context("read the suite's report")?;
        let mut tests = Vec::new();
        for suite in suites {
            for reason in suite.special_suite_failure_reasons.unwrap_or_default() {
                tests.push(Outcome {
                    name: "the suite".to_owned(),
                    state: State::Failed(reason),
                    time: Duration::ZERO,
                });
            }
            tests.extend(suite.spec_reports.unwrap_or_default().into_iter().filter_map(outcome));
        }
        tests.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(Self { tests })
    }
}

fn outcome(spec: Spec) -> Option<Outcome> {
    let is_test = spec.leaf_node_type == "It";
    let texts = spec.container_hierarchy_texts.unwrap_or_default();
    let message = spec.failure.map(|failure| failure.message).unwrap_or_default();
    let state = match spec.state.as_str() {
        "passed" => State::Passed,
        // The suite itself always gives a reason when it skips a test.
        "skipped" if message.is_empty() => State::LeftOut,
        "skipped" => State::Skipped(first_line(&message)),
        "pending" => State::Skipped("it is marked as pending".to_owned()),
        other => State::Failed(format!("{other}: {}", first_line(&message))),
    };
    // The suite's setup and cleanup count only if they fail.
    let ours = is_test && texts.first().is_some_and(|text| text.starts_with(SUITE));
    if !ours && !matches!(state, State::Failed(_)) {
        return None;
    }
    let mut name: Vec<&str> = texts.iter().skip(1).map(String::as_str).collect();
    name.push(if is_test { &spec.leaf_node_text } else { &spec.leaf_node_type });
    let time = Duration::from_nanos(u64::try_from(spec.run_time).unwrap_or(0));
    Some(Outcome { name: name.join(" "), state, time })
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// The prefix of the reason for a test that is not even started.
const NOT_RUN: &str = "not run: ";

/// Which tests may be skipped: a part of their names, and the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skips {
    lines: Vec<(String, String)>,
}

impl Skips {
    /// Reads a list of lines `PART OF THE NAME => REASON`. Empty lines and comments are ignored.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("read {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut lines = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let Some((part, reason)) = line.split_once(" => ") else { bail!("no reason in the line {line:?}") };
            lines.push((part.trim().to_owned(), reason.trim().to_owned()));
        }
        Ok(Self { lines })
    }

    /// Returns whether the test with this name may be skipped.
    pub fn allow(&self, name: &str) -> bool {
        self.line(name).is_some()
    }

    /// The name parts of tests that are not to be started. The suite does not skip them of its own accord.
    pub fn not_run(&self) -> impl Iterator<Item = &str> {
        let not_run = self.lines.iter().filter(|(_, reason)| reason.starts_with(NOT_RUN));
        not_run.map(|(part, _)| part.as_str())
    }

    /// These lines, and then those of another list.
    #[must_use]
    pub fn then(mut self, other: &Self) -> Self {
        self.lines.extend_from_slice(&other.lines);
        self
    }

    /// The name parts of all lines.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(|(part, _)| part.as_str())
    }

    /// The name parts for which a test is skipped: others do not belong in the list.
    pub fn used(&self, outcomes: &Outcomes) -> BTreeSet<&str> {
        let is_skipped = |test: &&Outcome| matches!(test.state, State::Skipped(_) | State::LeftOut);
        outcomes.tests.iter().filter(is_skipped).filter_map(|test| self.line(&test.name)).collect()
    }

    /// The first line that matches the test with this name.
    fn line(&self, name: &str) -> Option<&str> {
        self.parts().find(|part| name.contains(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"[{ "SpecialSuiteFailureReasons": null, "SpecReports": [
        { "ContainerHierarchyTexts": ["External Storage [Driver: d]", "volumes"], "LeafNodeType": "It",
          "LeafNodeText": "should store data", "State": "passed", "RunTime": 1500000000 },
        { "ContainerHierarchyTexts": ["External Storage [Driver: d]", "clones"], "LeafNodeType": "It",
          "LeafNodeText": "are made", "State": "skipped", "RunTime": 1, "Failure": { "Message": "no clones\nhere" } },
        { "ContainerHierarchyTexts": ["External Storage [Driver: d]", "volumes"], "LeafNodeType": "It",
          "LeafNodeText": "left out by the filter", "State": "skipped", "RunTime": 0 },
        { "ContainerHierarchyTexts": ["Networking"], "LeafNodeType": "It",
          "LeafNodeText": "routes", "State": "skipped", "RunTime": 0, "Failure": { "Message": "no network" } },
        { "ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedBeforeSuite",
          "LeafNodeText": "", "State": "failed", "RunTime": 0, "Failure": { "Message": "no node" } }
    ] }]"#;

    #[test]
    fn a_report_is_read() {
        let outcomes = Outcomes::read(REPORT).unwrap();
        let states: Vec<_> = outcomes.tests.iter().map(|test| (test.name.as_str(), test.state.clone())).collect();
        let expected = [
            ("SynchronizedBeforeSuite", State::Failed("failed: no node".to_owned())),
            ("clones are made", State::Skipped("no clones".to_owned())),
            ("volumes left out by the filter", State::LeftOut),
            ("volumes should store data", State::Passed),
        ];
        assert_eq!(states, expected);
        assert_eq!(outcomes.tests[3].time, Duration::from_millis(1500));
        assert!(Outcomes::read("{}").is_err());
    }

    #[test]
    fn what_is_skipped_needs_a_reason() {
        let skips = Skips::parse("# a comment\n\nclones => it has none\nsnapshots => not run: nor these\n").unwrap();
        assert!(skips.allow("clones are made"));
        assert!(!skips.allow("volumes should store data"));
        assert_eq!(skips.used(&Outcomes::read(REPORT).unwrap()), BTreeSet::from(["clones"]));
        assert_eq!(skips.not_run().collect::<Vec<_>>(), ["snapshots"]);
        let more = Skips::parse("left out => of one class only\nclones => hidden").unwrap().then(&skips);
        assert_eq!(more.parts().collect::<Vec<_>>(), ["left out", "clones", "clones", "snapshots"]);
        assert!(Skips::parse("clones\n").is_err());
    }
}
