//! The process that a machine runs in, and how it ends.

use std::io::{self, PipeReader};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use fs_err::OpenOptions;
use rustix::io::{FdFlags, fcntl_setfd};

use super::network::Network;

/// A running engine. It ends when this value is dropped, and with this process, however that ends.
pub struct Process {
    child: Child,
    /// Ends when no process has the engine's output open any more.
    output: Option<JoinHandle<()>>,
    /// The network of a guest to which the engine gives none.
    pub network: Option<Network>,
}

impl Process {
    /// Starts an engine that gets the agent's socket, and appends what it writes to a log in the machine's directory.
    pub fn start(mut engine: Command, agent: &UnixStream, directory: &Path, log: &str) -> Result<Self> {
        let mut file = OpenOptions::new().append(true).create(true).open(directory.join(log))?;
        let (mut reader, writer): (PipeReader, _) = io::pipe().context("make a pipe for what the machine writes")?;
        engine.current_dir(directory).stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        fcntl_setfd(agent, FdFlags::empty())?;
        let child = engine.spawn().with_context(|| format!("start {}", engine.get_program().display()))?;
        let output = thread::spawn(move || {
            // If the log cannot be written, the machine goes on without it.
            let _ = io::copy(&mut reader, &mut file);
        });
        Ok(Process { child, output: Some(output), network: None })
    }

    /// How the process has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Returns whether the guest had a network that is gone.
    pub fn has_lost_its_network(&mut self) -> bool {
        self.network.as_mut().is_some_and(Network::has_ended)
    }

    /// Kills the process and waits until it has ended, and with it every other process that could still write to the
    /// disks, or holds its ports: user-mode Linux has one that writes, one for each address space of its guest, and one for
    /// its network.
    pub fn kill(&mut self) {
        // It may have ended already: then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(output) = self.output.take() {
            let _ = output.join();
        }
        self.network = None;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
