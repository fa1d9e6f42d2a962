//! Kubernetes' own tests of storage drivers: their program gets the definition of each of our classes, and we read its
//! reports.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::node::{Node, Outcome, Outcomes, Skips, State};
use bulkhead_tests::times::Times;

/// How many tests run at a time: they spend most of their time waiting for the kubelet.
const PROCESSES: u32 = 4;

const REPORT: &str = "report.json";

/// A class that is tested.
struct Class {
    /// Its name.
    name: &'static str,
    /// What its volumes can do, in the directory of the definitions.
    definition: &'static str,
    /// The tests that may be skipped for it alone, in the same directory.
    own_list: &'static str,
}

const CLASSES: [Class; 2] = [
    Class { name: "bulkhead", definition: "driver.yaml", own_list: "skipped-directory.txt" },
    Class { name: "bulkhead-image", definition: "image.yaml", own_list: "skipped-image.txt" },
];

/// The tests that may be skipped for any class.
const LIST: &str = "skipped.txt";

/// Runs all tests, or those whose names match the filter: of one class if it begins with the class's name and a colon,
/// as what is printed does.
pub fn run(node: &Node, definitions: &Path, filter: Option<&str>) -> Result<ExitCode> {
    let common = Skips::read(&definitions.join(LIST))?;
    grant_all_classes(node)?;
    node.kubectl.run(&["apply", "--filename", &definitions.join("attributes.yaml").to_string_lossy()])?;
    let mut verdict = Verdict::default();
    let (mut listed, mut used) = (BTreeSet::new(), BTreeSet::new());
    for class in CLASSES {
        let Some(filter) = class.filter(filter) else { continue };
        let skips = Skips::read(&definitions.join(class.own_list))?.then(&common);
        let outcomes = class.run(node, definitions, &skips, filter)?;
        class.print(&outcomes, &skips, filter.is_none(), &mut verdict);
        listed.extend(skips.parts().map(str::to_owned));
        used.extend(skips.used(&outcomes).into_iter().map(str::to_owned));
    }
    if filter.is_none() {
        for part in listed.difference(&used) {
            verdict.failed += 1;
            println!("{LIST} ... FAILED: no test is skipped for {part:?}");
        }
    }
    if verdict.failed > 0 {
        node.print_logs();
    }
    verdict.times.print_each();
    println!("{} passed, {} failed", verdict.passed, verdict.failed);
    Ok(if verdict.failed == 0 && verdict.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The suite makes classes of its own, under names that are not known beforehand.
fn grant_all_classes(node: &Node) -> Result<()> {
    let name = "bulkhead-class-any";
    let resource = "--resource=storageclasses.storage.k8s.io";
    let (role, account) = (format!("--clusterrole={name}"), "--serviceaccount=bulkhead-system:bulkhead-agent");
    node.kubectl.run(&["create", "clusterrole", name, "--verb=provision,take,restore", resource])?;
    node.kubectl.run(&["create", "clusterrolebinding", name, &role, account]).map(drop)
}

/// How many tests passed and failed, of all classes.
#[derive(Default)]
struct Verdict {
    passed: usize,
    failed: usize,
    times: Times,
}

impl Class {
    /// Returns what is wanted of this class: nothing, all, or what matches a regular expression.
    fn filter<'f>(&self, filter: Option<&'f str>) -> Option<Option<&'f str>> {
        let Some(filter) = filter else { return Some(None) };
        match CLASSES.iter().find_map(|class| Some((class.name, filter.strip_prefix(class.name)?.strip_prefix(':')?))) {
            Some((name, rest)) if name == self.name => Some(Some(rest.trim_start())),
            Some(_) => None,
            None => Some(Some(filter)),
        }
    }

    fn run(&self, node: &Node, definitions: &Path, skips: &Skips, filter: Option<&str>) -> Result<Outcomes> {
        println!("== class {}", self.name);
        let directory = tempfile::tempdir()?;
        let assets = node.kubectl.program.parent().context("kubectl has no directory")?;
        let mut suite = Command::new("setpriv");
        suite.args(["--pdeathsig", "KILL", "--"]).arg(assets.join("ginkgo"));
        suite.args(["run", "--no-color", "--silence-skips", "--timeout=6h", "--keep-going"]);
        suite.arg(format!("--procs={PROCESSES}"));
        suite.arg(format!("--focus=External.Storage.*({})", filter.unwrap_or_default()));
        suite.args(skips.not_run().map(|part| format!("--skip={}", literal(part))));
        suite.arg("--output-dir").arg(directory.path()).arg(format!("--json-report={REPORT}"));
        suite.arg(assets.join("e2e.test")).args(["--", "--provider=skeleton"]);
        suite.arg(format!("--kubeconfig={}", node.kubectl.kubeconfig.display()));
        suite.arg(format!("--kubectl-path={}", node.kubectl.program.display()));
        suite.arg(format!("--storage.testdriver={}", definitions.join(self.definition).display()));
        let status = suite.current_dir(directory.path()).status().context("start the suite")?;
        let report = fs::read_to_string(directory.path().join(REPORT));
        let report = report.with_context(|| format!("the suite ended with {status} and left no report"))?;
        let outcomes = Outcomes::read(&report)?;
        let failed = outcomes.tests.iter().any(|test| matches!(test.state, State::Failed(_)));
        ensure!(status.success() || failed, "the suite ended with {status}, and reports no failed test");
        Ok(outcomes)
    }

    /// Prints a line for each test that passed or failed. A skipped test that is not on our list counts as failed.
    fn print(&self, outcomes: &Outcomes, skips: &Skips, all: bool, verdict: &mut Verdict) {
        let (mut skipped, class) = (0, self.name);
        for Outcome { name, state, time } in &outcomes.tests {
            let seconds = time.as_secs_f64();
            match state {
                State::Passed => {
                    verdict.passed += 1;
                    println!("{class}: {name} ... ok ({seconds:.1} s)");
                }
                State::Failed(why) => {
                    verdict.failed += 1;
                    println!("{class}: {name} ... FAILED ({seconds:.1} s): {why}");
                }
                State::LeftOut if !all => {}
                State::Skipped(_) | State::LeftOut if skips.allow(name) => skipped += 1,
                State::Skipped(why) => {
                    verdict.failed += 1;
                    println!("{class}: {name} ... FAILED: skipped without a line in {LIST}: {why}");
                }
                State::LeftOut => {
                    verdict.failed += 1;
                    println!("{class}: {name} ... FAILED: left out without a line in {LIST}");
                }
            }
            if !matches!(state, State::Skipped(_) | State::LeftOut) {
                verdict.times.add(&format!("{class}: {name}"), *time);
            }
        }
        println!("{class}: {skipped} skipped, for the reasons in the lists");
    }
}

/// A regular expression that matches this text.
fn literal(text: &str) -> String {
    let special = |character: char| !character.is_alphanumeric() && character != ' ';
    text.chars().flat_map(|character| special(character).then_some('\\').into_iter().chain([character])).collect()
}
