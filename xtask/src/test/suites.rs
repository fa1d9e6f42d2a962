//! Runs the programs that test the real ones: on this host, in a machine, and across a reboot of the machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::count::Count;
use super::release;
use super::step::Step;
use super::transcript::Transcript;
use crate::former;
use crate::go_tool::{HELM, PROMETHEUS, PROMTOOL, for_snapshots};
use crate::kubernetes;
use crate::node::{self, Equipment};
use crate::packages;
use crate::process::{command, run_with};
use crate::programs::Programs;
use crate::storage_suite;
use crate::vm::{Machine, Options, Output, Userland};
use crate::workspace::Workspace;

const SUITE: &str = "bulkhead-suite";
const CLUSTER: &str = "bulkhead-cluster";
const SANITY: &str = "bulkhead-sanity";
const SERVICES: &str = "bulkhead-systemd";

/// How the suites are run.
pub struct Suites<'a> {
    /// Where the machine's parts are kept.
    pub workspace: &'a Workspace,
    /// The programs under test, and the suites.
    pub programs: Programs,
    /// csi-sanity's own program.
    pub sanity: Option<PathBuf>,
    /// Run only tests whose name contains this.
    pub filter: Option<String>,
    /// Also run tests that take long.
    pub long: bool,
    /// In the machine, also run what is proved on this host; on the node, run both deployments in full.
    pub everything: bool,
    /// Run every machine under QEMU.
    pub qemu: bool,
}

impl Suites<'_> {
    /// Runs a step in the machine that an earlier step left, or in one of its own, and leaves the machine for a later
    /// step.
    pub fn run(&self, step: Step, machine: &mut Option<Machine>, transcript: &mut Transcript<'_>) -> Result<Count> {
        match step {
            Step::Host => {
                let mut shell = command("sh");
                // They are removed after the run.
                let former = self.long.then(|| Programs::copy(self.workspace, &former::provide(self.workspace)?));
                let former = former.transpose()?;
                if let Some(former) = &former {
                    shell.env(former::VARIABLE, former.directory());
                }
                self.on_host(&self.line(&self.programs.path(SUITE), "host", "xfs", self.long), &mut shell, transcript)
            }
            Step::Kubernetes => {
                let mut suite = self.on_control_plane(&kubernetes::control_plane(self.workspace)?)?;
                if self.long {
                    for tool in [HELM, PROMETHEUS, PROMTOOL] {
                        suite.env(tool.variable, tool.provide(self.workspace)?);
                    }
                }
                self.on_host(&self.line(&self.programs.path(CLUSTER), "host", "xfs", self.long), &mut suite, transcript)
            }
            Step::OlderKubernetes => {
                // What takes long, or needs other programs, is proved on the newest one.
                let line = self.line(&self.programs.path(CLUSTER), "host", "xfs --older-kubernetes", false);
                let mut sum = Count::default();
                for (version, assets) in kubernetes::older_control_planes(self.workspace)? {
                    transcript.say(&format!("== Kubernetes {version}"));
                    sum.add(self.on_host(&line, &mut self.on_control_plane(&assets)?, transcript)?);
                }
                Ok(sum)
            }
            Step::Xfs | Step::Ext4 => {
                let line = self.line(Path::new(SUITE), "vm", filesystem(step), self.long);
                count(self.up(machine)?, &line, self.patience(), transcript)
            }
            Step::Sanity => {
                let line = format!("{SANITY} --place vm --pool-fs {}", filesystem(step));
                count(self.up(machine)?, &line, self.patience(), transcript)
            }
            Step::Reboot => self.interrupted(self.up(machine)?, Machine::reboot, transcript),
            Step::PowerCut => self.interrupted(self.up(machine)?, Machine::power_cut, transcript),
            Step::Systemd => self.services(transcript),
            Step::Node => self.node(transcript),
            Step::StorageE2e => {
                let since = transcript.counts();
                let filter = self.filter.as_deref();
                let status = storage_suite::run(self.workspace, &self.programs, filter, self.qemu, |program| {
                    run_with(program, |bytes| transcript.push(Output::Stdout, bytes))
                })?;
                transcript.verdict(since, status)
            }
            Step::Release => release::run(self.workspace, transcript),
            Step::Policy | Step::Unit => anyhow::bail!("{} is not a suite", step.name()),
        }
    }

    fn on_host(&self, line: &str, shell: &mut Command, transcript: &mut Transcript<'_>) -> Result<Count> {
        shell.args(["-c", line]);
        let since = transcript.counts();
        let status = run_with(shell, |bytes| transcript.push(Output::Stdout, bytes))?;
        transcript.verdict(since, status)
    }

    /// A shell in which the suite starts its control plane from these programs.
    fn on_control_plane(&self, assets: &Path) -> Result<Command> {
        let mut shell = command("sh");
        shell.env(kubernetes::ASSETS, assets).envs(for_snapshots(self.workspace)?);
        Ok(shell)
    }

    /// The machine that is running, or a new one.
    fn up<'m>(&self, machine: &'m mut Option<Machine>) -> Result<&'m mut Machine> {
        match machine {
            Some(up) => Ok(up),
            None => {
                let programs = self.programs.all()?.into_iter().chain(self.sanity.clone());
                let options = Options { qemu: self.qemu, ..Options::new(programs.collect()) };
                Ok(machine.insert(Machine::boot(self.workspace, &options)?))
            }
        }
    }

    /// The suite's two phases, on both filesystems, with the end of the machine and its restart between them.
    fn interrupted(
        &self,
        machine: &mut Machine,
        interrupt: fn(&mut Machine) -> Result<()>,
        transcript: &mut Transcript<'_>,
    ) -> Result<Count> {
        let line = |phase| format!("{SUITE} --each-time --place vm --phase {phase}");
        let before = count(machine, &line("before-reboot"), self.patience(), transcript)?;
        interrupt(machine)?;
        let mut sum = count(machine, &line("after-reboot"), self.patience(), transcript)?;
        sum.add(before);
        Ok(sum)
    }

    /// Both programs as systemd services, also after a reboot.
    fn services(&self, transcript: &mut Transcript<'_>) -> Result<Count> {
        packages::require(&["runc"])?;
        let programs = self.programs.all()?.into_iter().chain([PathBuf::from("/usr/sbin/runc")]);
        let options = Options { userland: Userland::Debian, qemu: self.qemu, ..Options::new(programs.collect()) };
        let mut machine = Machine::boot(self.workspace, &options)?;
        let line = self.line(Path::new(SERVICES), "vm", "xfs", self.long);
        let mut sum = count(&mut machine, &line, self.patience(), transcript)?;
        if self.filter.is_none() {
            let line = |phase| format!("{SERVICES} --each-time --place vm --phase {phase}");
            sum.add(count(&mut machine, &line("before-reboot"), self.patience(), transcript)?);
            machine.reboot()?;
            sum.add(count(&mut machine, &line("after-reboot"), self.patience(), transcript)?);
        }
        Ok(sum)
    }

    /// Pods on a real node.
    fn node(&self, transcript: &mut Transcript<'_>) -> Result<Count> {
        let mut arguments = vec!["test".to_owned()];
        if self.everything {
            arguments.push("--everything".to_owned());
        }
        arguments.extend(self.filter.clone());
        let since = transcript.counts();
        let snapshots = for_snapshots(self.workspace)?;
        let status = node::run(
            self.workspace,
            &self.programs,
            Equipment::usual(self.workspace, self.qemu)?,
            &arguments,
            |program| {
                program.envs(snapshots);
                if self.everything {
                    program.env(HELM.variable, HELM.provide(self.workspace)?);
                }
                run_with(program, |bytes| transcript.push(Output::Stdout, bytes))
            },
        )?;
        transcript.verdict(since, status)
    }

    /// Returns how long a suite may take in a machine.
    fn patience(&self) -> Duration {
        Duration::from_secs(if self.long { 4 * 3600 } else { 3600 })
    }

    /// The shell command that runs a suite.
    fn line(&self, program: &Path, place: &str, filesystem: &str, long: bool) -> String {
        let mut line = format!("'{}' --each-time --place {place} --pool-fs {filesystem}", program.display());
        if long {
            line += " --long";
        }
        if self.everything {
            line += " --everything";
        }
        if let Some(filter) = &self.filter {
            line += &format!(" '{}'", filter.replace('\'', r"'\''"));
        }
        line
    }
}

/// The filesystem of the pool in a step.
fn filesystem(step: Step) -> &'static str {
    match step.continues().unwrap_or(step) {
        Step::Ext4 => "ext4",
        _ => "xfs",
    }
}

/// Runs a program in the machine that ends by printing its count.
fn count(machine: &mut Machine, line: &str, patience: Duration, transcript: &mut Transcript<'_>) -> Result<Count> {
    let since = transcript.counts();
    let status = machine.run_with(line, patience, &mut |output, bytes| transcript.push(output, bytes))?;
    transcript.verdict(since, status)
}

/// Makes sure that this host has what the steps need.
pub fn require_host(steps: &[Step]) -> Result<()> {
    if steps.iter().any(|step| step.needs_root()) {
        ensure!(rustix::process::geteuid().is_root(), "needs root: run it with sudo, or pass --vm-only");
        packages::require(&[packages::FILESYSTEM_TOOLS.as_slice(), &packages::SUITE_TOOLS].concat())?;
    }
    Ok(())
}
