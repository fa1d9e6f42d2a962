//! `cargo xtask test`: every test of the project, on this host and in the machine.

use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};

use crate::count::{Count, Counter};
use crate::packages;
use crate::policy;
use crate::process::{command, run_with};
use crate::report::Report;
use crate::sanity;
use crate::vm::{Machine, Options, require_packages, show};
use crate::workspace::{Architecture, Profile, Workspace, cargo};

const SUITE: &str = "bulkhead-suite";

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
}

impl Step {
    fn title(self) -> &'static str {
        match self {
            Step::Policy => "policy for the code with privilege",
            Step::Unit => "unit and property tests",
            Step::Host => "suite on this host",
            Step::Xfs => "suite in the machine on XFS",
            Step::Ext4 => "suite in the machine on ext4",
            Step::Sanity => "csi-sanity in the machine",
            Step::Reboot => "across a reboot of the machine",
            Step::PowerCut => "across a power cut of the machine",
        }
    }

    fn wanted(self, arguments: &TestArguments) -> bool {
        if !arguments.steps.is_empty() {
            return arguments.steps.contains(&self);
        }
        match self {
            Step::Policy | Step::Unit => arguments.filter.is_none(),
            Step::Host => !arguments.vm_only,
            Step::Xfs | Step::Ext4 => !arguments.host_only,
            Step::Sanity | Step::Reboot | Step::PowerCut => !arguments.host_only && arguments.filter.is_none(),
        }
    }

    fn needs_machine(self) -> bool {
        self.needs_programs() && self != Step::Host
    }

    /// Whether it runs the programs of the workspace.
    fn needs_programs(self) -> bool {
        !matches!(self, Step::Policy | Step::Unit)
    }
}

/// Runs the steps. One that fails does not keep the others from running.
pub fn test(workspace: &Workspace, arguments: &TestArguments) -> ExitCode {
    let mut report = Report::new(arguments.filter.is_some());
    let run = Run { workspace, arguments };
    if Step::value_variants().iter().any(|step| step.wanted(arguments) && step.needs_machine()) {
        report.preparation("packages for the machine", || require_packages(Architecture::host()));
    }
    let built = report.preparation("build the programs", || run.build());
    for step in Step::value_variants() {
        if step.wanted(arguments) && (built || !step.needs_programs()) {
            report.tests(step.title(), || run.step(*step));
        }
    }
    report.finish()
}

struct Run<'a> {
    workspace: &'a Workspace,
    arguments: &'a TestArguments,
}

impl Run<'_> {
    fn step(&self, step: Step) -> Result<Count> {
        match step {
            Step::Policy => policy::check(self.workspace),
            Step::Unit => self.unit_tests(),
            Step::Host => self.suite_on_host(),
            Step::Xfs => self.suite_in_machine("xfs"),
            Step::Ext4 => self.suite_in_machine("ext4"),
            Step::Sanity => self.sanity(),
            Step::Reboot => self.interrupted(Machine::reboot),
            Step::PowerCut => self.interrupted(Machine::power_cut),
        }
    }

    fn unit_tests(&self) -> Result<Count> {
        let mut test = cargo();
        test.args(["test", "--quiet", "--workspace", "--no-fail-fast", "--target", Architecture::host().triple()]);
        let (status, counter) = count_of(&mut test)?;
        verdict(status, counter.sum())
    }

    fn build(&self) -> Result<()> {
        ensure!(self.workspace.has_program(SUITE), "the workspace has no program {SUITE}");
        self.workspace.build(Architecture::host(), Profile::Dev).map(drop)
    }

    fn suite_on_host(&self) -> Result<Count> {
        ensure!(rustix::process::geteuid().is_root(), "needs root: run it with sudo, or pass --vm-only");
        packages::require(&packages::FILESYSTEM_TOOLS)?;
        let program = self.workspace.program(SUITE, Architecture::host(), Profile::Dev);
        let mut suite = command("sh");
        suite.args(["-c", &self.suite(&program, "host", "xfs")]);
        let (status, counter) = count_of(&mut suite)?;
        verdict(status, counter.last())
    }

    fn suite_in_machine(&self, filesystem: &str) -> Result<Count> {
        let mut machine = self.machine(&[])?;
        self.count_in_machine(&mut machine, &self.suite(Path::new(SUITE), "vm", filesystem))
    }

    fn sanity(&self) -> Result<Count> {
        let program = sanity::build(self.workspace)?;
        let mut machine = self.machine(&[&program])?;
        self.count_in_machine(&mut machine, sanity::COMMAND)
    }

    /// The suite's two phases, with the end of the machine and its next start between them.
    fn interrupted(&self, interrupt: fn(&mut Machine) -> Result<()>) -> Result<Count> {
        let mut machine = self.machine(&[])?;
        let before = self.count_in_machine(&mut machine, &format!("{SUITE} --place vm --phase before-reboot"))?;
        interrupt(&mut machine)?;
        let mut count = self.count_in_machine(&mut machine, &format!("{SUITE} --place vm --phase after-reboot"))?;
        count.add(before);
        Ok(count)
    }

    fn machine(&self, more: &[&Path]) -> Result<Machine> {
        let mut programs = self.workspace.built(Architecture::host(), Profile::Dev)?;
        programs.extend(more.iter().map(|path| path.to_path_buf()));
        Machine::boot(self.workspace, &Options::new(programs))
    }

    fn count_in_machine(&self, machine: &mut Machine, line: &str) -> Result<Count> {
        let timeout = Duration::from_secs(if self.arguments.long { 4 * 3600 } else { 1800 });
        let mut counter = Counter::default();
        let status = machine.run_with(line, timeout, &mut |output, bytes| {
            counter.push(bytes);
            show(output, bytes);
        })?;
        verdict(status, counter.last())
    }

    /// The shell command that runs the suite.
    fn suite(&self, program: &Path, place: &str, filesystem: &str) -> String {
        let mut line = format!("'{}' --place {place} --pool-fs {filesystem}", program.display());
        if self.arguments.long {
            line += " --long";
        }
        if let Some(filter) = &self.arguments.filter {
            line += &format!(" '{}'", filter.replace('\'', r"'\''"));
        }
        line
    }
}

fn count_of(command: &mut Command) -> Result<(ExitStatus, Counter)> {
    let mut counter = Counter::default();
    let status = run_with(command, |bytes| counter.push(bytes))?;
    Ok((status, counter))
}

/// What a program counted must agree with how it ended.
fn verdict(status: ExitStatus, count: Option<Count>) -> Result<Count> {
    let count = count.with_context(|| format!("told no number of tests; it ended with {status}"))?;
    if !status.success() && count.failed == 0 {
        bail!("ended with {status} after {count}");
    }
    Ok(count)
}
