//! The node that the demonstration sets up: a pool, a publish directory, both processes.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::daemon::{Daemon, FRONTEND_UID};
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::pool::{Pool, run};
use bulkhead_tests::run_options::{Place, program};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};

/// Everything that the demonstration creates is here, except for the virtual machine's own pool.
const STATE: &str = "/var/lib/bulkhead-demo";

/// The node.
pub struct Node {
    /// On this host rather than in a virtual machine.
    pub here: bool,
    helper: Option<Daemon>,
    frontend: Option<Daemon>,
}

impl Node {
    pub fn new(here: bool) -> Self {
        Self { here, helper: None, frontend: None }
    }

    pub fn state(&self) -> &'static Path {
        Path::new(STATE)
    }

    /// The socket that `bulkheadctl` talks to.
    pub fn endpoint(&self) -> PathBuf {
        self.state().join("csi.sock")
    }

    pub fn target(&self, name: &str) -> PathBuf {
        self.state().join("publish").join(name)
    }

    pub fn pool(&self) -> Pool {
        let directory = if self.here { self.state().join("pool") } else { PathBuf::from("/pools/xfs") };
        let mut pool = Pool::existing(&directory, "default");
        if self.here {
            pool.options = ",quota=none".to_owned();
        }
        pool
    }

    /// Whether writing beyond a volume's size fails.
    pub fn enforces_sizes(&self) -> bool {
        !self.here
    }

    /// Creates the directories and the pool.
    pub fn set_up(&self) -> Result<()> {
        if self.state().exists() {
            self.tidy().context("tidy up after an earlier demonstration")?;
        }
        fs::create_dir_all(self.state())?;
        fs::set_permissions(self.state(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        self.share()?;
        fs::create_dir(self.state().join("publish"))?;
        let pool = self.pool();
        if self.here {
            let image = self.state().join("pool.disk");
            fs::File::create(&image)?.set_len(1 << 30)?;
            run(Command::new("mkfs.xfs").arg("-q").arg(&image))?;
            fs::create_dir(&pool.directory)?;
            run(Command::new("mount").args(["-o", "loop"]).args([&image, &pool.directory]))?;
        }
        if !pool.directory.join(".bulkhead").exists() {
            run(Command::new(program("bulkhead-setup")?).arg("init-pool").arg(&pool.directory))?;
        }
        Ok(())
    }

    /// Mounts made by the helper must be visible outside its namespace. On a node with systemd every mount is shared;
    /// elsewhere this directory becomes a shared mount.
    pub fn share(&self) -> Result<()> {
        if self.here && mounts::at(self.state())?.is_empty() {
            mount_bind(self.state(), self.state())?;
            mount_change(self.state(), MountPropagationFlags::SHARED)?;
        }
        Ok(())
    }

    pub fn helper_flags(&self) -> Vec<String> {
        [
            ("--pool", self.pool().flag()),
            ("--socket", self.state().join("helper.sock").display().to_string()),
            ("--csi-socket", self.endpoint().display().to_string()),
            ("--publish-dir", format!("demo={}", self.state().join("publish").display())),
            ("--allow-uid", FRONTEND_UID.to_string()),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
    }

    fn logs(&self) -> PathBuf {
        self.state().join("log")
    }

    fn patience(&self) -> Duration {
        let place = if self.here { Place::Host } else { Place::Vm };
        place.patience(Duration::from_secs(20))
    }

    /// Starts both processes and waits until the plugin is ready.
    pub fn start(&mut self) -> Result<()> {
        let mut helper = Command::new(program("bulkhead-privhelper")?);
        helper.args(self.helper_flags()).current_dir("/");
        let mut helper = Daemon::start("helper", &mut helper, &self.logs())?;
        let socket = self.state().join("helper.sock");
        let served =
            helper.wait_until(self.patience(), || bulkhead_tests::helper::HelperClient::welcomed(&socket).map(drop));
        self.helper = Some(helper);
        served?;
        let mut frontend = Command::new(program("bulkhead-frontend")?);
        frontend.arg("--helper-socket").arg(&socket).args(["--node-id", "demo"]);
        frontend.uid(FRONTEND_UID).gid(FRONTEND_UID).current_dir("/");
        let mut frontend = Daemon::start("frontend", &mut frontend, &self.logs())?;
        let ready = frontend.wait_until(self.patience(), || {
            let csi = bulkhead_tests::csi::CsiClient::connect(&self.endpoint())?;
            ensure!(csi.probe(Default::default())?.ready == Some(true), "the frontend reports that it is not ready");
            Ok(())
        });
        self.frontend = Some(frontend);
        ready
    }

    /// Process ids of the helper and the frontend.
    pub fn pids(&self) -> Result<(u32, u32)> {
        let (helper, frontend) = (self.helper.as_ref(), self.frontend.as_ref());
        Ok((helper.context("no helper runs")?.pid(), frontend.context("no frontend runs")?.pid()))
    }

    /// Kills both processes without warning.
    pub fn kill(&mut self) -> Result<()> {
        self.frontend.take().context("no frontend runs")?.kill()?;
        self.helper.take().context("no helper runs")?.kill()
    }

    /// Kills whichever of the two are running.
    pub fn kill_what_runs(&mut self) {
        for daemon in [self.frontend.take(), self.helper.take()].into_iter().flatten() {
            // If one has already ended, that is the failure being reported.
            let _ = daemon.kill();
        }
    }

    /// Asks both processes to end.
    pub fn stop(&mut self) -> Result<()> {
        let limit = self.patience();
        for daemon in [self.frontend.take(), self.helper.take()].into_iter().flatten() {
            daemon.stop(limit)?;
        }
        Ok(())
    }

    /// Leaves them running while this process ends.
    pub fn leave_running(&mut self) {
        self.helper = None;
        self.frontend = None;
    }

    pub fn print_logs(&self) {
        for name in ["helper", "frontend"] {
            if let Ok(log) = fs::read_to_string(self.logs().join(format!("{name}.log"))) {
                println!("--- the last lines of {name}'s log");
                let lines: Vec<&str> = log.lines().collect();
                lines[lines.len().saturating_sub(20)..].iter().for_each(|line| println!("{line}"));
            }
        }
    }

    /// Removes everything that the demonstration has created: mounts, loop devices, files.
    pub fn tidy(&self) -> Result<()> {
        let pool = self.pool();
        let publish = self.state().join("publish");
        let looped =
            if mounts::at(&pool.directory)?.is_empty() { Vec::new() } else { loops::backed_by(&pool.device()?)? };
        mounts::unmount_all(&publish)?;
        looped.iter().try_for_each(loops::detach)?;
        mounts::unmount_all(self.state())?;
        fs::remove_dir_all(self.state()).with_context(|| format!("remove {STATE}"))
    }
}
