//! Runs the suites that test the real programs: on this host, in the machine, across its reboot.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::count::{Count, Counter};
use crate::kubernetes;
use crate::node;
use crate::packages;
use crate::process::{command, run_with};
use crate::programs::Programs;
use crate::sanity;
use crate::vm::{Machine, Options, Sink, Userland, show};
use crate::workspace::Workspace;

const SUITE: &str = "bulkhead-suite";
const CLUSTER: &str = "bulkhead-cluster";
const SERVICES: &str = "bulkhead-systemd";

/// How the suites are run.
pub struct Suites<'a> {
    /// Where the machine's parts are kept.
    pub workspace: &'a Workspace,
    /// What is tested, and the suites.
    pub programs: Programs,
    /// Only tests whose name contains this.
    pub filter: Option<String>,
    /// Also what takes long.
    pub long: bool,
}

impl Suites<'_> {
    /// The suite on this host.
    pub fn on_host(&self) -> Result<Count> {
        self.run_on_host(SUITE, &mut command("sh"))
    }

    /// The agents' suite on this host, with a control plane of its own.
    pub fn on_control_plane(&self) -> Result<Count> {
        let programs = kubernetes::control_plane(self.workspace)?;
        self.run_on_host(CLUSTER, command("sh").env(kubernetes::ASSETS, programs))
    }

    fn run_on_host(&self, program: &str, suite: &mut Command) -> Result<Count> {
        ensure!(rustix::process::geteuid().is_root(), "needs root: run it with sudo, or pass --vm-only");
        packages::require(&packages::FILESYSTEM_TOOLS)?;
        suite.args(["-c", &self.line(&self.programs.path(program), "host", "xfs")]);
        let mut counter = Counter::default();
        let status = run_with(suite, |bytes| counter.push(bytes))?;
        counter.verdict(status, Counter::last)
    }

    /// The suite in a machine of its own, with its pool on this filesystem.
    pub fn in_machine(&self, filesystem: &str, sink: Sink<'_>) -> Result<Count> {
        self.count(&mut self.boot()?, &self.line(Path::new(SUITE), "vm", filesystem), sink)
    }

    /// The same beside another machine: what it writes is returned for later.
    pub fn in_machine_unseen(&self, filesystem: &str) -> (Result<Count>, Vec<u8>) {
        let mut written = Vec::new();
        let count = self.in_machine(filesystem, &mut |_, bytes| written.extend_from_slice(bytes));
        (count, written)
    }

    /// csi-sanity, with what it tests, in a machine of its own.
    pub fn sanity(&self) -> Result<Count> {
        self.programs.add(&sanity::build(self.workspace)?)?;
        self.count(&mut self.boot()?, sanity::COMMAND, &mut show)
    }

    /// Both programs as services of systemd, and behind a reboot.
    pub fn services(&self) -> Result<Count> {
        packages::require(&["runc"])?;
        self.programs.add(Path::new("/usr/sbin/runc"))?;
        let options = Options { userland: Userland::Debian, ..Options::new(self.programs.all()?) };
        let mut machine = Machine::boot(self.workspace, &options)?;
        let mut count = self.count(&mut machine, &self.line(Path::new(SERVICES), "vm", "xfs"), &mut show)?;
        if self.filter.is_none() {
            count.add(self.count(&mut machine, &format!("{SERVICES} --place vm --phase before-reboot"), &mut show)?);
            machine.reboot()?;
            count.add(self.count(&mut machine, &format!("{SERVICES} --place vm --phase after-reboot"), &mut show)?);
        }
        Ok(count)
    }

    /// The suite's two phases, with the end of the machine and its next start between them.
    pub fn interrupted(&self, interrupt: fn(&mut Machine) -> Result<()>) -> Result<Count> {
        let mut machine = self.boot()?;
        let before = self.count(&mut machine, &format!("{SUITE} --place vm --phase before-reboot"), &mut show)?;
        interrupt(&mut machine)?;
        let mut count = self.count(&mut machine, &format!("{SUITE} --place vm --phase after-reboot"), &mut show)?;
        count.add(before);
        Ok(count)
    }

    /// Pods on a real node.
    pub fn node(&self) -> Result<Count> {
        let mut counter = Counter::default();
        let status = node::run(self.workspace, &self.programs, &["test".to_owned()], |bytes| counter.push(bytes))?;
        counter.verdict(status, Counter::last)
    }

    fn boot(&self) -> Result<Machine> {
        Machine::boot(self.workspace, &Options::new(self.programs.all()?))
    }

    fn count(&self, machine: &mut Machine, line: &str, sink: Sink<'_>) -> Result<Count> {
        let timeout = Duration::from_secs(if self.long { 4 * 3600 } else { 3600 });
        let mut counter = Counter::default();
        let status = machine.run_with(line, timeout, &mut |output, bytes| {
            counter.push(bytes);
            sink(output, bytes);
        })?;
        counter.verdict(status, Counter::last)
    }

    /// The shell command that runs the suite.
    fn line(&self, program: &Path, place: &str, filesystem: &str) -> String {
        let mut line = format!("'{}' --place {place} --pool-fs {filesystem}", program.display());
        if self.long {
            line += " --long";
        }
        if let Some(filter) = &self.filter {
            line += &format!(" '{}'", filter.replace('\'', r"'\''"));
        }
        line
    }
}
