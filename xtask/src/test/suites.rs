//! Runs the programs that test the real ones: on this host, in a machine, and across a reboot of the machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::count::Count;
use super::release;
use super::step::Step;
use super::transcript::Transcript;
use crate::directory::run_directory;
use crate::former;
use crate::go_tool::{HELM, LOCAL_PATH, PROMETHEUS, PROMTOOL, REGISTRY, for_changed_blocks, for_snapshots};
use crate::image;
use crate::kubernetes;
use crate::node::{self, Equipment};
use crate::packages;
use crate::process::command;
use crate::programs::Programs;
use crate::storage_images;
use crate::vm::{Machine, Options, Userland};
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
                if self.long {
                    packages::require(&packages::LONG_SUITE_TOOLS)?;
                }
                let mut shell = command("sh");
                // They are removed after the run.
                let former = self.long.then(|| Programs::copy(self.workspace, &former::provide(self.workspace)?));
                let former = former.transpose()?;
                if let Some(former) = &former {
                    shell.env(former::VARIABLE, former.directory());
                }
                let line = self.line(&self.programs.path(SUITE), "host", "xfs", self.long);
                transcript.run(shell.args(["-c", &line]))
            }
            Step::Kubernetes => {
                let mut suite = self.on_control_plane(&kubernetes::control_plane(self.workspace)?)?;
                if self.long {
                    packages::require(&["chromium"])?;
                    for tool in [HELM, PROMETHEUS, PROMTOOL] {
                        suite.envs([tool.variable(self.workspace)?]);
                    }
                }
                let line = self.line(&self.programs.path(CLUSTER), "host", "xfs", self.long);
                transcript.run(suite.args(["-c", &line]))
            }
            Step::OlderKubernetes => {
                // What takes long, or needs other programs, is proved on the newest one.
                let line = self.line(&self.programs.path(CLUSTER), "host", "xfs --older-kubernetes", false);
                let mut sum = Count::default();
                for (version, assets) in kubernetes::older_control_planes(self.workspace)? {
                    transcript.say(&format!("== Kubernetes {version}"));
                    sum.add(transcript.run(self.on_control_plane(&assets)?.args(["-c", &line]))?);
                }
                Ok(sum)
            }
            Step::Xfs | Step::Ext4 => {
                let line = self.line(Path::new(SUITE), "vm", step.name(), self.long);
                count(self.up(machine)?, &line, self.patience(), transcript)
            }
            Step::Sanity => {
                let line = format!("{SANITY} --place vm --pool-fs xfs");
                count(self.up(machine)?, &line, self.patience(), transcript)
            }
            Step::Reboot => self.interrupted(SUITE, self.up(machine)?, Machine::reboot, transcript),
            Step::PowerCut => self.interrupted(SUITE, self.up(machine)?, Machine::power_cut, transcript),
            Step::Systemd => self.services(transcript),
            Step::Node => self.node(transcript),
            Step::Selinux => self.selinux(transcript),
            Step::StorageE2e => self.storage(transcript),
            Step::Release => release::run(self.workspace, transcript),
            Step::Policy | Step::Unit => anyhow::bail!("{} is not a suite", step.name()),
        }
    }

    /// A shell in which the suite starts its control plane from these programs.
    fn on_control_plane(&self, assets: &Path) -> Result<Command> {
        let mut shell = command("sh");
        shell.env(kubernetes::ASSETS, assets).envs(for_snapshots(self.workspace)?);
        shell.envs(for_changed_blocks(self.workspace)?);
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

    /// A suite's two phases, with the end of the machine and its restart between them.
    fn interrupted(
        &self,
        suite: &str,
        machine: &mut Machine,
        interrupt: fn(&mut Machine) -> Result<()>,
        transcript: &mut Transcript<'_>,
    ) -> Result<Count> {
        let line = |phase| format!("{suite} --each-time --place vm --phase {phase}");
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
            sum.add(self.interrupted(SERVICES, &mut machine, Machine::reboot, transcript)?);
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
        let snapshots = for_snapshots(self.workspace)?;
        let mut equipment = Equipment::usual(self.workspace, &self.programs, self.qemu)?;
        let archives = run_directory(&self.workspace.runs())?;
        if self.everything {
            let (name, program) = (LOCAL_PATH.name(), LOCAL_PATH.provide(self.workspace)?);
            equipment.images.push(image::write_other(name, &program, archives.path())?);
        }
        let release = run_directory(&self.workspace.runs())?;
        let offered = if self.everything { Some(self.offered(release.path())?) } else { None };
        node::run(self.workspace, &self.programs, equipment, &arguments, |program| {
            transcript.run(program.envs(snapshots).envs(offered.into_iter().flatten()))
        })
    }

    /// Pods on such a node where SELinux enforces.
    fn selinux(&self, transcript: &mut Transcript<'_>) -> Result<Count> {
        let mut arguments = vec!["selinux".to_owned()];
        arguments.extend(self.filter.clone());
        let snapshots = for_snapshots(self.workspace)?;
        let helm = HELM.variable(self.workspace)?;
        let equipment = Equipment { enforces: true, ..Equipment::usual(self.workspace, &self.programs, self.qemu)? };
        node::run(self.workspace, &self.programs, equipment, &arguments, |program| {
            transcript.run(program.envs(snapshots).envs([helm]))
        })
    }

    /// What is installed from a registry, in this directory, and the variables that tell a suite where it is.
    fn offered(&self, directory: &Path) -> Result<[(String, PathBuf); 4]> {
        packages::require(&["skopeo"])?;
        // The first two are the machine's.
        let [_, _, port] = node::free_ports()?;
        let registry = format!("localhost:{port}/storage");
        crate::release::write_for_registry(self.workspace, |name| self.programs.path(name), &registry, directory)?;
        Ok([
            HELM.variable(self.workspace)?,
            REGISTRY.variable(self.workspace)?,
            ("BULKHEAD_RELEASE".to_owned(), directory.to_owned()),
            ("BULKHEAD_REGISTRY_ADDRESS".to_owned(), registry.into()),
        ])
    }

    /// Kubernetes' own tests of storage drivers, on such a node.
    fn storage(&self, transcript: &mut Transcript<'_>) -> Result<Count> {
        let assets = kubernetes::cluster_with_tests(self.workspace)?;
        let archives = run_directory(&self.workspace.runs())?;
        let images = storage_images::write(&assets, archives.path())?;
        let definitions = self.workspace.root.join("tests/storage-e2e");
        let mut arguments = vec!["storage-suite".to_owned(), definitions.to_string_lossy().into_owned()];
        arguments.extend(self.filter.clone());
        // They grow volumes of one gibibyte and run several tests at a time.
        let usual = Options::new(self.programs.all()?);
        let options = Options { memory: 3072, disk: 32 << 10, qemu: self.qemu, ..usual };
        let equipment = Equipment { assets, images, options, enforces: false };
        let snapshots = for_snapshots(self.workspace)?;
        node::run(self.workspace, &self.programs, equipment, &arguments, |program| {
            transcript.run(program.envs(snapshots))
        })
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

/// Runs a program in the machine that ends by printing its count.
fn count(machine: &mut Machine, line: &str, patience: Duration, transcript: &mut Transcript<'_>) -> Result<Count> {
    transcript.count(|transcript| machine.run_with(line, patience, &mut |output, bytes| transcript.push(output, bytes)))
}

/// Makes sure that this host has what the steps need.
pub fn require_host(steps: &[Step]) -> Result<()> {
    if steps.iter().any(|step| step.needs_root()) {
        ensure!(rustix::process::geteuid().is_root(), "needs root: run it with sudo, or pass --vm-only");
        packages::require(&[packages::FILESYSTEM_TOOLS.as_slice(), &packages::SUITE_TOOLS].concat())?;
    }
    Ok(())
}
