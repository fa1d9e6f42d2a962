//! `cargo xtask test`: every test of the project, on this host and in the machine.

use std::process::ExitCode;
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};

use crate::count::{Count, Counter};
use crate::policy;
use crate::process::run_with;
use crate::programs::Programs;
use crate::report::Report;
use crate::suites::Suites;
use crate::vm::{Machine, Output, require_packages, show};
use crate::workspace::{Architecture, Profile, Workspace, cargo};

/// What `test` takes.
#[derive(Args)]
pub struct TestArguments {
    /// Only tests of the suite whose name contains this.
    filter: Option<String>,
    /// Also what takes too long for every run: storms, races, many rounds.
    #[arg(long)]
    long: bool,
    /// Nothing in the virtual machine.
    #[arg(long, conflicts_with_all = ["vm_only", "steps"])]
    host_only: bool,
    /// The suite only in the virtual machine.
    #[arg(long, conflicts_with = "steps")]
    vm_only: bool,
    /// Take the programs as they were built before.
    #[arg(long)]
    no_build: bool,
    /// Only this step; may be given several times.
    #[arg(long = "step", value_enum, value_name = "STEP")]
    steps: Vec<Step>,
}

/// The steps that count tests, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Step {
    /// What must hold for the code with privilege.
    Policy,
    /// Unit and property tests of every crate.
    Unit,
    /// The suite on this host.
    Host,
    /// Storage agents on a real control plane, on this host.
    Kubernetes,
    /// The suite in the machine, its pool on XFS.
    Xfs,
    /// The suite in the machine, its pool on ext4.
    Ext4,
    /// csi-sanity in the machine.
    Sanity,
    /// The tests that a reboot of the machine interrupts.
    Reboot,
    /// The same tests, interrupted by a power cut.
    PowerCut,
    /// Both programs as services, in a machine with systemd.
    Systemd,
    /// Pods on a Kubernetes node, the machine, with its control plane on this host.
    Node,
}

impl Step {
    fn title(self) -> &'static str {
        match self {
            Step::Policy => "policy for the code with privilege",
            Step::Unit => "unit and property tests",
            Step::Host => "suite on this host",
            Step::Kubernetes => "agents on a real control plane",
            Step::Xfs => "suite in the machine on XFS",
            Step::Ext4 => "suite in the machine on ext4",
            Step::Sanity => "csi-sanity in the machine",
            Step::Reboot => "across a reboot of the machine",
            Step::PowerCut => "across a power cut of the machine",
            Step::Systemd => "services in a machine with systemd",
            Step::Node => "pods on a Kubernetes node",
        }
    }

    fn wanted(self, arguments: &TestArguments) -> bool {
        if !arguments.steps.is_empty() {
            return arguments.steps.contains(&self);
        }
        match self {
            Step::Policy | Step::Unit => arguments.filter.is_none(),
            Step::Host | Step::Kubernetes => !arguments.vm_only,
            Step::Xfs | Step::Ext4 => !arguments.host_only,
            Step::Sanity | Step::Reboot | Step::PowerCut | Step::Systemd | Step::Node => {
                !arguments.host_only && arguments.filter.is_none()
            }
        }
    }

    fn needs_machine(self) -> bool {
        self.needs_programs() && !matches!(self, Step::Host | Step::Kubernetes)
    }

    /// Whether it runs the programs of the workspace.
    fn needs_programs(self) -> bool {
        !matches!(self, Step::Policy | Step::Unit)
    }
}

/// Runs the steps. One that fails does not keep the others from running.
pub fn test(workspace: &Workspace, arguments: &TestArguments) -> ExitCode {
    let mut report = Report::new(arguments.filter.is_some());
    let steps: Vec<Step> = Step::value_variants().iter().copied().filter(|step| step.wanted(arguments)).collect();
    if steps.iter().any(|step| step.needs_machine()) {
        report.preparation("packages for the machine", || require_packages(Architecture::host()));
    }
    let mut programs = None;
    if steps.iter().any(|step| step.needs_programs()) {
        programs = report.preparation("build the programs", || match arguments.no_build {
            true => Programs::built(workspace, Profile::Dev),
            false => Programs::build(workspace, Profile::Dev),
        });
    }
    let suites =
        programs.map(|programs| Suites { workspace, programs, filter: arguments.filter.clone(), long: arguments.long });
    thread::scope(|scope| {
        let mut beside = None;
        for &step in &steps {
            let title = step.title();
            match (step, &suites) {
                (Step::Policy, _) => report.tests(title, || policy::check(workspace)),
                (Step::Unit, _) => report.tests(title, unit_tests),
                (Step::Host, Some(suites)) => report.tests(title, || suites.on_host()),
                (Step::Kubernetes, Some(suites)) => report.tests(title, || suites.on_control_plane()),
                (Step::Xfs, Some(suites)) => {
                    // A machine mostly waits for one processor: the other may have a machine as well.
                    if steps.contains(&Step::Ext4) {
                        beside = Some(scope.spawn(|| suites.in_machine_unseen("ext4")));
                    }
                    report.tests(title, || suites.in_machine("xfs", &mut show));
                }
                (Step::Ext4, Some(suites)) => report.tests(title, || match beside.take() {
                    Some(running) => seen(running),
                    None => suites.in_machine("ext4", &mut show),
                }),
                (Step::Sanity, Some(suites)) => report.tests(title, || suites.sanity()),
                (Step::Reboot, Some(suites)) => report.tests(title, || suites.interrupted(Machine::reboot)),
                (Step::PowerCut, Some(suites)) => report.tests(title, || suites.interrupted(Machine::power_cut)),
                (Step::Systemd, Some(suites)) => report.tests(title, || suites.services()),
                (Step::Node, Some(suites)) => report.tests(title, || suites.node()),
                // That the programs are not built is a failure in the report already.
                (_, None) => {}
            }
        }
    });
    report.finish()
}

/// Waits for the suite that runs beside another, and shows what it has written.
fn seen(running: ScopedJoinHandle<'_, (Result<Count>, Vec<u8>)>) -> Result<Count> {
    let (count, written) = running.join().map_err(|_| anyhow!("the thread that ran the suite panicked"))?;
    show(Output::Stdout, &written);
    count
}

fn unit_tests() -> Result<Count> {
    let mut test = cargo();
    test.args(["test", "--quiet", "--workspace", "--no-fail-fast", "--target", Architecture::host().triple()]);
    let mut counter = Counter::default();
    let status = run_with(&mut test, |bytes| counter.push(bytes))?;
    counter.verdict(status, Counter::sum)
}
