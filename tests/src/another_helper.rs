//! A second helper beside the one under test, with a pool and a socket of its own and the same publish directories.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::daemon::Daemon;
use crate::helper::HelperClient;
use crate::observe::mounts;
use crate::pool::Pool;
use crate::rig::Rig;
use crate::run_options::program;

/// The second helper.
#[derive(Debug)]
pub struct AnotherHelper {
    /// Its pool, called other.
    pub pool: Pool,
    flags: Vec<String>,
    socket: PathBuf,
    logs: PathBuf,
    patience: Duration,
    daemon: Option<Daemon>,
}

impl AnotherHelper {
    /// Makes its pool and starts it.
    pub fn start(rig: &Rig) -> Result<Self> {
        let pool = Pool::make(&rig.run_options, rig.templates(), &rig.work().join("pools/other"), "other")?;
        let socket = rig.work().join("run/other.sock");
        let mut flags = vec!["--pool".to_owned(), pool.flag(), "--socket".to_owned(), socket.display().to_string()];
        let mut rest = rig.base_flags().into_iter();
        while let (Some(flag), Some(value)) = (rest.next(), rest.next()) {
            if !["--pool", "--socket"].contains(&flag.as_str()) {
                flags.extend([flag, value]);
            }
        }
        let (logs, patience) = (rig.logs(), rig.patience(Duration::from_secs(20)));
        let mut helper = Self { pool, flags, socket, logs, patience, daemon: None };
        helper.launch()?;
        Ok(helper)
    }

    /// Starts it again.
    pub fn launch(&mut self) -> Result<()> {
        let mut command = Command::new(program("bulkhead-privhelper")?);
        command.args(&self.flags).current_dir("/");
        let daemon = self.daemon.insert(Daemon::start("other", &mut command, &self.logs)?);
        let served = daemon.wait_until(self.patience, || HelperClient::welcomed(&self.socket).map(drop));
        served.context("the other helper does not serve")
    }

    /// A new connection to it, past the hello.
    pub fn client(&self) -> Result<HelperClient> {
        HelperClient::welcomed(&self.socket)
    }

    /// Kills it without warning.
    pub fn kill(&mut self) -> Result<()> {
        self.daemon.take().context("it is not running")?.kill()
    }

    /// Kills it without warning and starts it again.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.launch()
    }

    /// Ends it and unmounts its pool.
    pub fn stop(mut self) -> Result<()> {
        self.kill()?;
        // Neither the socket's name nor the lock beside it goes with a helper that is killed.
        for left in [self.socket.clone(), self.socket.with_extension("sock.lock")] {
            std::fs::remove_file(left)?;
        }
        mounts::unmount_all(&self.pool.directory)
    }
}
