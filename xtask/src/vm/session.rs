//! One process of an engine and the agent in its guest.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow};
use bulkhead_vm_agent::Frame;

use super::channel::{Channel, Event};
use super::engine::{CONSOLE, Engine, Guest};
use super::process::Process;
use super::{network, qemu};

const TICK: Duration = Duration::from_millis(250);
const KILL_PATIENCE: Duration = Duration::from_secs(10);
const CONSOLE_TAIL: usize = 40;

/// Which output of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Receives a command's output as it arrives.
pub type Sink<'a> = &'a mut dyn FnMut(Output, &[u8]);

/// A guest that has booted.
pub struct Session {
    process: Process,
    channel: Channel,
    directory: PathBuf,
}

impl Session {
    /// Starts the engine and waits until the agent is ready for commands.
    pub fn start(guest: &Guest<'_>, engine: Engine, patience: Duration) -> Result<Self> {
        let (channel, agent) = Channel::new()?;
        let process = engine.start(guest, &agent)?;
        // Only the machine has the agent's end now: the channel is closed when the machine ends.
        drop(agent);
        let directory = guest.directory.to_owned();
        let mut session = Session { process, channel, directory };
        let deadline = Instant::now() + patience;
        loop {
            match session.next("booting", deadline)? {
                Some(Frame::Ready(_)) => return Ok(session),
                Some(_) => {}
                None => return Err(session.failure("booting", &format!("not done after {patience:?}"))),
            }
        }
    }

    /// Runs a shell command and waits until it ends. Processes that it leaves in the background keep running.
    pub fn run(&mut self, command: &str, timeout: Duration, sink: Sink<'_>) -> Result<ExitStatus> {
        let doing = format!("running `{}`", shortened(command));
        self.channel.send_command(command).map_err(|error| self.failure(&doing, &format!("{error:#}")))?;
        let deadline = Instant::now() + timeout;
        let mut killed = false;
        loop {
            match self.next(&doing, deadline + if killed { KILL_PATIENCE } else { Duration::ZERO })? {
                Some(Frame::Exited(status)) if !killed => return Ok(ExitStatus::from_raw(status)),
                Some(Frame::Exited(_)) => return Err(self.failure(&doing, &format!("not done after {timeout:?}"))),
                Some(Frame::Ready(_)) => return Err(self.failure(&doing, "its agent was killed")),
                Some(frame) => forward(frame, sink),
                None if !killed => {
                    killed = true;
                    self.channel.send_kill()?;
                }
                None => return Err(self.failure(&doing, &format!("not done after {timeout:?}, and not to be killed"))),
            }
        }
    }

    /// Shuts the guest down as an operator does who reboots it. The process ends then, instead of resetting the guest.
    pub fn shut_down(&mut self, patience: Duration) -> Result<()> {
        self.channel.send_command("reboot")?;
        let deadline = Instant::now() + patience;
        while self.process.ended().is_none() {
            if Instant::now() >= deadline {
                return Err(self.failure("shutting down", &format!("not done after {patience:?}")));
            }
            thread::sleep(TICK);
        }
        // What is left of it, such as its network, must not be in the next one's way.
        self.process.kill();
        Ok(())
    }

    /// Cuts the power.
    pub fn power_off(&mut self) {
        self.process.kill();
    }

    /// The next frame, or `None` at the deadline. A kernel panic and the end of the process are errors.
    fn next(&mut self, doing: &str, deadline: Instant) -> Result<Option<Frame>> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.channel.receive(left.min(TICK)) {
                Event::Frame(frame) => return Ok(Some(frame)),
                Event::Closed => return Err(self.failure(doing, "its agent cannot be heard any more")),
                // The machine's end of the socket may still be open in another one that was started at the same moment.
                Event::Silence if self.process.ended().is_some() => return Err(self.failure(doing, "nothing is heard")),
                Event::Silence if self.process.has_lost_its_network() => {
                    return Err(self.failure(doing, "its network has ended"));
                }
                Event::Silence if console(&self.directory).contains("Kernel panic") => {
                    return Err(self.failure(doing, "its kernel panicked"));
                }
                Event::Silence if left.is_zero() => return Ok(None),
                Event::Silence => {}
            }
        }
    }

    /// An error that says how the process ended, if it did, and ends with the last lines of the machine's logs.
    fn failure(&mut self, doing: &str, what: &str) -> Error {
        let mut message = format!("the machine, {doing}: {what}");
        // Its sockets are closed a moment before a process has ended.
        thread::sleep(TICK);
        if let Some(status) = self.process.ended() {
            message += &format!("; its process has ended: {status}");
        }
        for (name, log) in [("QEMU", qemu::LOG), ("the machine's network", network::LOG), ("its console", CONSOLE)] {
            let text = written(&self.directory, log);
            let lines: Vec<&str> = text.lines().collect();
            if !lines.is_empty() {
                let tail = &lines[lines.len().saturating_sub(CONSOLE_TAIL)..];
                message += &format!("\n--- end of what {name} wrote\n{}", tail.join("\n"));
            }
        }
        anyhow!(message)
    }
}

fn forward(frame: Frame, sink: Sink<'_>) {
    match frame {
        Frame::Stdout(bytes) => sink(Output::Stdout, &bytes),
        Frame::Stderr(bytes) => sink(Output::Stderr, &bytes),
        // The agent sends nothing else.
        _ => {}
    }
}

fn console(directory: &Path) -> String {
    written(directory, CONSOLE)
}

/// What is in one of a machine's logs, if there is that log.
fn written(directory: &Path, log: &str) -> String {
    String::from_utf8_lossy(&fs::read(directory.join(log)).unwrap_or_default()).into_owned()
}

fn shortened(command: &str) -> String {
    let line = command.lines().next().unwrap_or_default();
    match line.char_indices().nth(80) {
        Some((end, _)) => format!("{} …", &line[..end]),
        None => line.to_owned(),
    }
}
