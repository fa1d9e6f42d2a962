//! Units, controlled with systemctl(1).

use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::observe::processes;
use bulkhead_tests::pool::{output, run};

/// The helper's service.
pub const HELPER: Unit = Unit("bulkhead-privhelper.service");
/// The socket that starts the helper.
pub const SOCKET: Unit = Unit("bulkhead-privhelper.socket");
/// The frontend's service.
pub const FRONTEND: Unit = Unit("bulkhead-frontend.service");

/// A unit.
#[derive(Clone, Copy, Debug)]
pub struct Unit(&'static str);

impl Unit {
    /// Its name.
    pub fn name(self) -> &'static str {
        self.0
    }

    /// Starts it, and waits until it is ready.
    pub fn start(self) -> Result<()> {
        self.ask("start")
    }

    /// Stops it.
    pub fn stop(self) -> Result<()> {
        self.ask("stop")
    }

    /// Stops it and starts it again.
    pub fn restart(self) -> Result<()> {
        self.ask("restart")
    }

    /// Starts several units, and waits until all are ready. One call of systemctl is much cheaper than several.
    pub fn start_all(units: &[Self]) -> Result<()> {
        let arguments: Vec<&str> = ["start"].into_iter().chain(units.iter().map(|unit| unit.0)).collect();
        systemctl(&arguments).with_context(|| units.iter().map(|unit| unit.log()).collect::<Vec<_>>().join("\n"))
    }

    fn ask(self, what: &str) -> Result<()> {
        systemctl(&[what, self.0]).with_context(|| self.log())
    }

    /// One of its properties.
    pub fn property(self, property: &str) -> Result<String> {
        output(Command::new("systemctl").args(["show", "--value", "--property", property, self.0]))
    }

    /// Checks that it is in this state: `active`, `inactive`, `failed`, ….
    pub fn check(self, state: &str) -> Result<()> {
        let found = self.property("ActiveState")?;
        ensure!(found == state, "{} is {found}, not {state}: {}", self.0, self.log());
        Ok(())
    }

    /// Its main process.
    pub fn pid(self) -> Result<i32> {
        let pid: i32 = self.property("MainPID")?.parse()?;
        ensure!(pid > 0, "{} has no process: {}", self.0, self.log());
        Ok(pid)
    }

    /// The line of its main process's status (proc(5)) that begins with `name:`.
    pub fn status(self, name: &str) -> Result<String> {
        processes::status(self.pid()?, name)
    }

    /// The last lines of its log.
    pub fn log(self) -> String {
        let log =
            output(Command::new("journalctl").args(["--no-pager", "--lines=15", "--output=cat", "--unit", self.0]));
        log.unwrap_or_else(|error| format!("{error:#}"))
    }
}

/// Runs systemctl.
pub fn systemctl(arguments: &[&str]) -> Result<()> {
    run(Command::new("systemctl").args(arguments))
}
