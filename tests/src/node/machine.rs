//! The virtual machine that xtask lends to this process on its standard input.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(300);

/// The machine. One command runs in it at a time.
#[derive(Debug)]
pub struct Machine {
    line: Mutex<BufReader<UnixStream>>,
}

impl Machine {
    /// The machine on standard input.
    pub fn lent() -> Result<Self> {
        let socket = io::stdin().as_fd().try_clone_to_owned().context("take the machine from standard input")?;
        let socket = UnixStream::from(socket);
        socket.peer_addr().context("standard input does not lead to a machine: start this with `cargo xtask`")?;
        Ok(Self { line: Mutex::new(BufReader::new(socket)) })
    }

    /// Runs a shell command as root and returns its standard output.
    pub fn run(&self, command: &str) -> Result<String> {
        let answer = self.ask(&json!({ "run": command, "seconds": LIMIT.as_secs() }))?;
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        let status = answer["status"].as_i64().and_then(|status| i32::try_from(status).ok()).context("no status")?;
        let status = ExitStatus::from_raw(status);
        ensure!(status.success(), "`{command}` in the machine: {status}\n{}{}", text("stdout"), text("stderr"));
        Ok(text("stdout"))
    }

    /// Checks that it still runs commands.
    pub fn check(&self) -> Result<()> {
        self.run("true").map(drop)
    }

    /// Writes a file.
    pub fn write(&self, path: &str, content: &str) -> Result<()> {
        self.run(&format!("cat >{path} <<'END OF FILE'\n{}\nEND OF FILE", content.trim_end())).map(drop)
    }

    /// Reboots it as an operator would, and waits until it is up again.
    pub fn reboot(&self) -> Result<()> {
        self.ask(&json!({ "reboot": true })).map(drop)
    }

    /// Cuts its power, starts it from the same disks, and waits until it is up again.
    pub fn power_cut(&self) -> Result<()> {
        self.ask(&json!({ "power_cut": true })).map(drop)
    }

    fn ask(&self, request: &Value) -> Result<Value> {
        let mut line = self.lock();
        writeln!(line.get_mut(), "{request}").context("ask for the machine")?;
        let mut answer = String::new();
        if line.read_line(&mut answer)? == 0 {
            bail!("the machine is gone");
        }
        let answer: Value = serde_json::from_str(&answer).context("read the machine's answer")?;
        match answer["error"].as_str() {
            Some(error) => bail!("{error}"),
            None => Ok(answer),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BufReader<UnixStream>> {
        // A panic leaves no half-read answer that others would have to be protected from.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
