//! One process of an engine and the agent in its guest.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow};
use bulkhead_vm_agent::Frame;
use fs_err as fs;

use super::channel::Channel;
use super::engine::{CONSOLE, Engine, Guest};
use super::process::Process;
use super::{network, qemu};
use crate::progress::say;

const BOOT_PATIENCE: Duration = Duration::from_secs(240);
const KVM_PATIENCE: Duration = Duration::from_secs(15);
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
    pub fn start(guest: &Guest, engine: Engine) -> Result<Self> {
        let (start, patience) = (Instant::now(), if engine == Engine::Kvm { KVM_PATIENCE } else { BOOT_PATIENCE });
        let (channel, agent) = Channel::new()?;
        let process = engine.start(guest, &agent)?;
        // Only the machine has the agent's end now: the channel is closed when the machine ends.
        drop(agent);
        let mut session = Session { process, channel, directory: guest.directory.path().to_owned() };
        loop {
            match session.next("booting", start + patience)? {
                Some(Frame::Ready) => break,
                Some(_) => {}
                None => return Err(session.failure("booting", &format!("not done after {patience:?}"))),
            }
        }
        let (release, seconds) = (&guest.kernel.release, start.elapsed().as_secs_f64());
        say(format_args!("booted Linux {release} ({}) in {seconds:.1} s", engine.name()));
        Ok(session)
    }

    /// Runs a shell command and waits until it ends. Processes that it leaves in the background keep running.
    pub fn run(&mut self, command: &str, timeout: Duration, sink: Sink<'_>) -> Result<ExitStatus> {
        let doing = format!("running `{:.80}`", command.lines().next().unwrap_or_default());
        self.channel.send_command(command).map_err(|error| self.failure(&doing, &format!("{error:#}")))?;
        let deadline = Instant::now() + timeout;
        let mut killed = false;
        loop {
            match self.next(&doing, deadline + if killed { KILL_PATIENCE } else { Duration::ZERO })? {
                Some(Frame::Exited(status)) if !killed => return Ok(ExitStatus::from_raw(status)),
                Some(Frame::Exited(_)) => return Err(self.failure(&doing, &format!("not done after {timeout:?}"))),
                Some(Frame::Ready) => return Err(self.failure(&doing, "its agent was killed")),
                Some(Frame::Stdout(bytes)) => sink(Output::Stdout, &bytes),
                Some(Frame::Stderr(bytes)) => sink(Output::Stderr, &bytes),
                // The agent sends nothing else.
                Some(_) => {}
                None if !killed => {
                    killed = true;
                    self.channel.send(&Frame::Kill)?;
                }
                None => return Err(self.failure(&doing, &format!("not done after {timeout:?}, and not to be killed"))),
            }
        }
    }

    /// Shuts the guest down as an operator does who reboots it. The process ends then, instead of resetting the guest.
    pub fn shut_down(&mut self) -> Result<()> {
        self.channel.send_command("reboot")?;
        let deadline = Instant::now() + BOOT_PATIENCE;
        while self.process.ended().is_none() {
            if Instant::now() >= deadline {
                return Err(self.failure("shutting down", &format!("not done after {BOOT_PATIENCE:?}")));
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
            let fault = match self.channel.frames.recv_timeout(left.min(TICK)) {
                Ok(frame) => return Ok(Some(frame)),
                Err(RecvTimeoutError::Disconnected) => "its agent cannot be heard any more",
                // The machine's end of the socket may still be open in another one that was started at the same moment.
                Err(RecvTimeoutError::Timeout) if self.process.ended().is_some() => "nothing is heard",
                Err(RecvTimeoutError::Timeout) if self.process.has_lost_its_network() => "its network has ended",
                Err(RecvTimeoutError::Timeout) if self.written(CONSOLE).contains("Kernel panic") => {
                    "its kernel panicked"
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => continue,
            };
            return Err(self.failure(doing, fault));
        }
    }

    /// What is in one of the machine's logs, if there is that log.
    fn written(&self, log: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.directory.join(log)).unwrap_or_default()).into_owned()
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
            let text = self.written(log);
            let lines: Vec<&str> = text.lines().collect();
            if !lines.is_empty() {
                let tail = &lines[lines.len().saturating_sub(CONSOLE_TAIL)..];
                message += &format!("\n--- end of what {name} wrote\n{}", tail.join("\n"));
            }
        }
        anyhow!(message)
    }
}
