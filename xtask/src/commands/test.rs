//! `cargo xtask test`: every test of the project, on this host and in the machine.

use std::fmt;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::count::{Count, Counter};
use crate::policy;
use crate::process::{command, run_with};
use crate::report::Report;
use crate::sanity;
use crate::vm::{Machine, Options, show};
use crate::workspace::{Architecture, Profile, Workspace, cargo};

const SUITE: &str = "bulkhead-suite";

/// What `test` takes.
#[derive(Args)]
pub struct TestArguments {
    /// Only suite tests whose name contains this, and no other steps.
    filter: Option<String>,
    /// Also what takes too long for every run: storms, races, many rounds.
    #[arg(long)]
    long: bool,
    /// Nothing in the virtual machine.
    #[arg(long, conflicts_with = "vm_only")]
    host_only: bool,
    /// Nothing on this host but the unit tests.
    #[arg(long)]
    vm_only: bool,
}

/// The filesystem of the pool that a suite runs on.
#[derive(Clone, Copy)]
enum PoolFilesystem {
    Xfs,
    Ext4,
}

impl fmt::Display for PoolFilesystem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            PoolFilesystem::Xfs => "xfs",
            PoolFilesystem::Ext4 => "ext4",
        })
    }
}

/// Runs the steps. A step that fails does not keep the others from running.
pub fn test(workspace: &Workspace, arguments: &TestArguments) -> ExitCode {
    let mut report = Report::new(arguments.filter.is_some());
    let run = Run { workspace, arguments };
    if arguments.filter.is_none() {
        report.tests("policy for the code with privilege", || policy::check(workspace));
        report.tests("unit and property tests", || run.unit_tests());
    }
    if report.preparation("build the programs", || run.build()) {
        if !arguments.vm_only {
            report.tests("suite on this host", || run.suite_on_host());
        }
        if !arguments.host_only {
            for filesystem in [PoolFilesystem::Xfs, PoolFilesystem::Ext4] {
                report.tests(&format!("suite in the machine on {filesystem}"), || run.suite_in_machine(filesystem));
            }
            if arguments.filter.is_none() {
                report.tests("csi-sanity in the machine", || run.sanity());
                report.tests("across a reboot of the machine", || run.interrupted(Machine::reboot));
                report.tests("across a power cut of the machine", || run.interrupted(Machine::power_cut));
            }
        }
    }
    report.finish()
}

struct Run<'a> {
    workspace: &'a Workspace,
    arguments: &'a TestArguments,
}

impl Run<'_> {
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
        let program = self.workspace.program(SUITE, Architecture::host(), Profile::Dev);
        let mut suite = command("sh");
        suite.args(["-c", &self.suite(&program, "host", PoolFilesystem::Xfs)]);
        let (status, counter) = count_of(&mut suite)?;
        verdict(status, counter.last())
    }

    fn suite_in_machine(&self, filesystem: PoolFilesystem) -> Result<Count> {
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
    fn suite(&self, program: &Path, place: &str, filesystem: PoolFilesystem) -> String {
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
