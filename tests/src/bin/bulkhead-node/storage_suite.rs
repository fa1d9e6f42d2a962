//! Kubernetes' own tests of storage drivers: their program gets our driver's definition, and we read its report.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::node::{Node, Outcome, Outcomes, Skips, State};
use bulkhead_tests::times::Times;

/// How many tests run at a time: they spend most of their time waiting for the kubelet.
const PROCESSES: u32 = 4;

const REPORT: &str = "report.json";

/// The list of tests that may be skipped, in the directory of the definition.
const LIST: &str = "skipped.txt";

/// Runs all tests, or those whose names match the filter.
///
/// # Errors
/// When they cannot be run, or leave no report.
pub fn run(node: &Node, definition: &Path, filter: Option<&str>) -> Result<ExitCode> {
    let skips = Skips::read(&definition.join(LIST))?;
    grant_all_classes(node)?;
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
    suite.arg(format!("--storage.testdriver={}", definition.join("driver.yaml").display()));
    let status = suite.current_dir(directory.path()).status().context("start the suite")?;
    let report = fs::read_to_string(directory.path().join(REPORT));
    let report = report.with_context(|| format!("the suite ended with {status} and left no report"))?;
    let verdict = print(&Outcomes::read(&report)?, &skips, filter.is_none());
    if verdict.failed > 0 {
        node.print_logs();
    }
    ensure!(status.success() || verdict.failed > 0, "the suite ended with {status}, and reports no failed test");
    println!("{} passed, {} failed", verdict.passed, verdict.failed);
    Ok(if verdict.failed == 0 && verdict.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The suite makes classes of its own, under names that are not known beforehand.
fn grant_all_classes(node: &Node) -> Result<()> {
    let name = "bulkhead-class-any";
    let resource = "--resource=storageclasses.storage.k8s.io";
    let (role, account) = (format!("--clusterrole={name}"), "--serviceaccount=bulkhead-system:bulkhead-agent");
    node.kubectl.run(&["create", "clusterrole", name, "--verb=provision,take", resource])?;
    node.kubectl.run(&["create", "clusterrolebinding", name, &role, account]).map(drop)
}

/// How many tests passed and failed.
struct Verdict {
    passed: usize,
    failed: usize,
}

/// Prints a line for each test that passed or failed. A skipped test that is not on our list counts as failed. So does
/// an entry of the list that matches no skipped test, provided that all tests were to run.
fn print(outcomes: &Outcomes, skips: &Skips, all: bool) -> Verdict {
    let times = Times::default();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for Outcome { name, state, time } in &outcomes.tests {
        let seconds = time.as_secs_f64();
        match state {
            State::Passed => {
                passed += 1;
                println!("{name} ... ok ({seconds:.1} s)");
            }
            State::Failed(why) => {
                failed += 1;
                println!("{name} ... FAILED ({seconds:.1} s): {why}");
            }
            State::LeftOut if !all => {}
            State::Skipped(_) | State::LeftOut if skips.allow(name) => skipped += 1,
            State::Skipped(why) => {
                failed += 1;
                println!("{name} ... FAILED: skipped without a line in {LIST}: {why}");
            }
            State::LeftOut => {
                failed += 1;
                println!("{name} ... FAILED: left out without a line in {LIST}");
            }
        }
        if !matches!(state, State::Skipped(_) | State::LeftOut) {
            times.add(name, *time);
        }
    }
    if all {
        for part in skips.unused(outcomes) {
            failed += 1;
            println!("{LIST} ... FAILED: no test is skipped for {part:?}");
        }
    }
    times.print_slowest();
    println!("{skipped} skipped, for the reasons in {LIST}");
    Verdict { passed, failed }
}

/// A regular expression that matches this text.
fn literal(text: &str) -> String {
    let special = |character: char| !character.is_alphanumeric() && character != ' ';
    text.chars().flat_map(|character| special(character).then_some('\\').into_iter().chain([character])).collect()
}
