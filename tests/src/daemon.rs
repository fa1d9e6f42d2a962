//! A process under test, with its log.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::pace::{self, Allowance};
use crate::wait;

/// The user that the frontend runs as.
pub const FRONTEND_UID: u32 = 901;

/// A running process.
#[derive(Debug)]
pub struct Daemon {
    name: &'static str,
    child: Child,
    log: PathBuf,
    /// The length of the log when the process was started.
    earlier: u64,
}

impl Daemon {
    /// Starts a process in a process group of its own. Its output is appended to a log in `logs`.
    pub fn start(name: &'static str, command: &mut Command, logs: &Path) -> Result<Self> {
        Self::start_logging_to(name, command, logs, None)
    }

    /// Starts a process as [`Self::start`] does, with its standard error elsewhere if `stderr` is given.
    pub fn start_logging_to(
        name: &'static str,
        command: &mut Command,
        logs: &Path,
        stderr: Option<OwnedFd>,
    ) -> Result<Self> {
        fs::create_dir_all(logs)?;
        let log = logs.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log)?;
        let earlier = output.metadata()?.len();
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(stderr.unwrap_or_else(|| output.into()))
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        Ok(Self { name, child, log, earlier })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything it has logged so far, in this life and earlier ones.
    pub fn log(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(&self.log)?).into_owned())
    }

    /// Everything it has logged so far in this life.
    pub fn own_log(&self) -> Result<String> {
        let log = fs::read(&self.log)?;
        let own = log.get(usize::try_from(self.earlier)?..).unwrap_or_default();
        Ok(String::from_utf8_lossy(own).into_owned())
    }

    /// Waits until its log passes `check`: lines are written by a separate thread, a moment after the call they
    /// describe has been answered.
    pub fn check_log(&self, mut check: impl FnMut(&str) -> Result<()>) -> Result<()> {
        wait::until(pace::patience(Duration::from_secs(10)), || check(&self.log()?))
    }

    /// Waits until its log contains `part`.
    pub fn has_logged(&self, part: &str) -> Result<()> {
        self.check_log(|log| {
            ensure!(log.contains(part), "the log does not say {part:?}: {log}");
            Ok(())
        })
    }

    /// Whether it has ended in order, to be started anew.
    pub fn wants_another_start(&mut self) -> Result<bool> {
        let has_ended = self.child.try_wait()?.is_some_and(|status| status.success());
        Ok(has_ended && self.own_log()?.contains("to be started anew"))
    }

    /// Fails if it has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} has ended ({status}): {}", self.name, last_lines(&self.log()?, 3));
        }
        Ok(())
    }

    /// Waits until `check` succeeds.
    pub fn wait_until(&mut self, limit: Duration, mut check: impl FnMut() -> Result<()>) -> Result<()> {
        let mut allowance = Allowance::at_this_pace(limit);
        let mut pause = Duration::from_millis(2);
        loop {
            self.check_alive()?;
            match check() {
                Ok(()) => return Ok(()),
                Err(complaint) if allowance.is_spent() => {
                    return Err(complaint.context(format!("still after {} s", limit.as_secs())));
                }
                Err(_) => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Waits until it has ended of its own accord.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let mut allowance = Allowance::at_this_pace(limit);
        loop {
            if let Some(status) = wait::ended(&mut self.child, Duration::from_millis(100))? {
                return Ok(status);
            }
            ensure!(!allowance.is_spent(), "{} still runs after {} s", self.name, limit.as_secs());
        }
    }

    /// Kills it without warning.
    pub fn kill(mut self) -> Result<()> {
        self.check_alive()?;
        self.child.kill()?;
        let status = self.child.wait()?;
        ensure!(status.signal() == Some(9), "{} ended by itself: {status}", self.name);
        Ok(())
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(mut self, limit: Duration) -> Result<()> {
        self.check_alive()?;
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("process id")?;
        kill_process(pid, Signal::TERM)?;
        let status = self.wait(limit)?;
        // A process without a handler for the signal dies of it, which is just as orderly.
        ensure!(status.success() || status.signal() == Some(15), "{} ended badly: {status}", self.name);
        Ok(())
    }
}

fn last_lines(text: &str, number: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(number)..].join(" | ")
}
