//! `cargo xtask test`: every test of the project, on this host and in the machine.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum};
use quick_junit::TestSuite;

use crate::go_tool;
use crate::kubernetes;
use crate::programs::Programs;
use crate::progress::say;
use crate::test::{self, Report, Schedule, Step, Suites, Touched, require_host};
use crate::vm::{Machine, require_packages};
use crate::workspace::{Architecture, BuiltTests, Profile, Selection, TestProgram, Workspace};
use crate::{audit, policy};

/// What `test` takes.
#[derive(Args)]
pub struct Arguments {
    /// Run only the tests of the suites whose name contains this.
    filter: Option<String>,
    /// Run everything: also tests that take long, and in the machine also others that ran on this host. For releases and
    /// large changes.
    #[arg(long)]
    all: bool,
    /// Run only this step; may be given several times.
    #[arg(long = "step", value_enum, value_name = "STEP")]
    steps: Vec<Step>,
    /// Run only the steps that the changes since the main branch can affect, committed or not.
    #[arg(long, conflicts_with = "steps")]
    changed: bool,
    /// Run nothing in the virtual machine.
    #[arg(long, conflicts_with_all = ["vm_only", "steps", "changed"])]
    host_only: bool,
    /// Run the suites only in the virtual machine: this needs no root.
    #[arg(long, conflicts_with_all = ["steps", "changed"])]
    vm_only: bool,
    /// Run the machines under QEMU, with Debian's own kernel and two processors, even where user-mode Linux would do.
    #[arg(long, conflicts_with = "host_only")]
    qemu: bool,
    /// Use the suites and the programs under test from an earlier build. Unit tests are built nevertheless.
    #[arg(long)]
    no_build: bool,
    /// Also check the source as `cargo xtask lint` does, while the tests run.
    #[arg(long, conflicts_with = "changed")]
    lint: bool,
    /// Instead of running the tests, test them: change the protocol, and the parts of the helper that make no system
    /// calls, in small ways, and list the changes that no unit test notices. This takes long, and no other option
    /// includes it.
    #[arg(long, exclusive = true)]
    mutants: bool,
    /// Instead of running the tests, have Miri interpret those of the protocol and of the parts of the helper that make no
    /// system calls, and look for undefined behaviour. No other option includes it.
    #[arg(long, exclusive = true)]
    miri: bool,
    /// Instead of running the tests, have libFuzzer look for input that breaks what tests/fuzz says of everything that is
    /// read from others: in the targets whose name contains the filter, for a minute each, or for as many seconds as
    /// BULKHEAD_FUZZ_SECONDS says. No other option includes it.
    #[arg(long, conflicts_with_all = ["all", "steps", "changed", "host_only", "vm_only", "no_build", "lint"])]
    fuzz: bool,
}

impl Arguments {
    fn wants(&self, step: Step) -> bool {
        if !self.steps.is_empty() {
            return self.steps.contains(&step);
        }
        let here = step.needs_machine() || !self.vm_only || !step.needs_root();
        let there = !step.needs_machine() || !self.host_only;
        let long = self.all || !step.is_long();
        here && there && long && (self.filter.is_none() || step.takes_filter())
    }
}

/// Builds programs of Kubernetes unless they are in the cache, and returns their directory.
type Provider = fn(&Workspace) -> Result<PathBuf>;

/// Runs the steps. A failing step does not keep the others from running.
pub fn execute(workspace: &Workspace, arguments: &Arguments) -> Result<ExitCode> {
    if arguments.mutants {
        return test::mutants(workspace);
    }
    if arguments.miri {
        return test::miri(workspace);
    }
    if arguments.fuzz {
        return test::fuzz(workspace, arguments.filter.as_deref());
    }
    let mut steps: Vec<Step> = Step::value_variants().iter().copied().filter(|step| arguments.wants(*step)).collect();
    let mut units = None;
    if arguments.changed {
        let touched = Touched::since_main(workspace)?;
        steps.retain(|step| touched.steps.contains(step));
        units = touched.units;
        if steps.is_empty() {
            say("nothing has changed since the main branch that a test looks at");
            return Ok(ExitCode::SUCCESS);
        }
        say(format_args!("steps: {}", steps.iter().map(|step| step.name()).collect::<Vec<_>>().join(", ")));
    }
    let report = Report::new();
    if steps.contains(&Step::Policy) {
        let start = Instant::now();
        let result = policy::check(workspace, audit::check(&workspace.root));
        report.step(Step::Policy, start.elapsed(), result, TestSuite::new(Step::Policy.name()));
    }
    // All others run programs that cargo builds.
    if steps.iter().any(|step| *step != Step::Policy) {
        run(workspace, arguments, &steps, units.as_ref(), &report);
    } else if arguments.lint {
        test::check_source(&report);
    }
    Ok(report.finish(&workspace.target, arguments.filter.is_none()))
}

fn run(workspace: &Workspace, arguments: &Arguments, steps: &[Step], units: Option<&BTreeSet<&str>>, report: &Report) {
    if steps.iter().any(|step| step.needs_root()) {
        report.preparation("prepare this host", || require_host(steps));
    }
    if steps.iter().any(|step| step.needs_machine()) {
        report.preparation("install packages for the machine", || require_packages(Architecture::host()));
    }
    if !arguments.qemu && steps.iter().any(|step| step.runs_in_user_mode()) {
        report.preparation("provide the machine's kernel", || Machine::provide_kernel(workspace));
    }
    // Each includes the ones below it.
    let providers: [(Step, Provider); 5] = [
        (Step::StorageE2e, kubernetes::cluster_with_tests),
        (Step::Node, kubernetes::cluster),
        (Step::Selinux, kubernetes::cluster),
        (Step::Kubernetes, kubernetes::control_plane),
        (Step::OlderKubernetes, kubernetes::control_plane),
    ];
    if let Some((_, provide)) = providers.iter().find(|(step, _)| steps.contains(step)) {
        report.preparation("provide the programs of Kubernetes", || provide(workspace));
    }
    let sanity = match steps.contains(&Step::Sanity) {
        true => report.preparation("build csi-sanity", || go_tool::csi_sanity(workspace)),
        false => None,
    };
    let built = report.preparation("build the programs and the tests", || build(workspace, arguments, steps));
    let Some((programs, mut unit_tests)) = built else { return };
    if let Some(units) = units {
        unit_tests.retain(|test| units.contains(test.package.as_str()));
    }
    let filter = arguments.filter.clone();
    // If nothing runs on this host, the machine has to prove what the host otherwise would.
    let everything = arguments.all || arguments.vm_only;
    let schedule = Schedule {
        steps,
        suites: Suites { workspace, programs, sanity, filter, long: arguments.all, everything, qemu: arguments.qemu },
        unit_tests,
        examples: units.is_none(),
        lint: arguments.lint,
    };
    schedule.run(report);
}

/// Builds what the steps run. The programs are copied: a later build must not change them while tests use them.
fn build(workspace: &Workspace, arguments: &Arguments, steps: &[Step]) -> Result<(Programs, Vec<TestProgram>)> {
    let tests = match steps.contains(&Step::Unit) {
        true => workspace.build_tests()?,
        false => BuiltTests::default(),
    };
    let programs = if arguments.no_build {
        Programs::built(workspace, Selection::All, Profile::Dev)?
    } else if steps.contains(&Step::Unit) {
        Programs::copy(workspace, &tests.programs)?
    } else {
        Programs::build(workspace, Selection::All, Profile::Dev)?
    };
    Ok((programs, tests.unit_tests))
}
