//! A rig: a directory with pools, publish directories, a kubelet's directory, and both processes using them.

use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::Welcome;

use crate::commands::refusal;
use crate::csi::CsiClient;
use crate::csi::requests;
use crate::csi::v1::{CreateVolumeRequest, VolumeCapability};
use crate::daemon::{Daemon, FRONTEND_UID};
use crate::helper::HelperClient;
use crate::kubelet::Kubelet;
use crate::leaks;
use crate::observe::processes;
use crate::pace::{self, Allowance};
use crate::pool::Pool;
use crate::run_options::{RunOptions, program_in};
use crate::undo::{Pending, Undo};
use crate::wait;

/// The size of a pool for filesystems in images, of which none has less than 300 MiB.
const FILESYSTEMS_MEBIBYTES: u64 = 4096;

/// The user of the process that mounts them.
pub const MOUNTER_UID: u32 = 10002;

/// The rig of one test.
#[derive(Debug)]
pub struct Rig {
    /// The options of the run.
    pub run_options: RunOptions,
    /// The kubelet's directory.
    pub kubelet: Kubelet,
    /// The node's name.
    pub node: String,
    /// A program with its flags that runs the helper, whose command line follows.
    pub helper_wrapper: Vec<String>,
    /// Where the helper's program is, if it is not the one under test.
    pub helper_from: Option<PathBuf>,
    /// Where the frontend's program is, if it is not the one under test.
    pub frontend_from: Option<PathBuf>,
    /// Additional flags for the helper.
    pub helper_flags: Vec<String>,
    /// Additional flags for the frontend.
    pub frontend_flags: Vec<OsString>,
    /// Where both processes log, if not to files.
    pub stderr: Option<OwnedFd>,
    /// The pools, the one called default first.
    pub pools: Vec<Pool>,
    /// Whether a start is over only once all loop devices of the host have answered: another suite, which runs beside this
    /// one, has some that hang.
    pub waits_for_devices: bool,
    work: PathBuf,
    templates: PathBuf,
    helper: Option<Daemon>,
    frontend: Option<Daemon>,
    pending: Pending,
    ends_clean: bool,
}

impl Rig {
    /// Lays out the directories below `work`.
    pub fn new(run_options: &RunOptions, work: &Path, templates: &Path) -> Result<Self> {
        for directory in ["publish", "pools", "run", "log"] {
            fs::create_dir_all(work.join(directory))?;
        }
        Ok(Self {
            run_options: run_options.clone(),
            kubelet: Kubelet::make(&work.join("kubelet"))?,
            node: "node".to_owned(),
            helper_wrapper: Vec::new(),
            helper_from: None,
            frontend_from: None,
            helper_flags: Vec::new(),
            frontend_flags: Vec::new(),
            stderr: None,
            pools: Vec::new(),
            waits_for_devices: false,
            work: work.to_owned(),
            templates: templates.to_owned(),
            helper: None,
            frontend: None,
            pending: Pending::default(),
            ends_clean: true,
        })
    }

    /// The test's scratch directory; everything else is below it.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// Returns where images of fresh filesystems are kept.
    pub fn templates(&self) -> &Path {
        &self.templates
    }

    /// The publish directory called `work`.
    pub fn publish_directory(&self) -> PathBuf {
        self.work.join("publish")
    }

    /// A target in the publish directory called `work`.
    pub fn target(&self, name: &str) -> PathBuf {
        self.publish_directory().join(name)
    }

    /// The helper's socket.
    pub fn helper_socket(&self) -> PathBuf {
        self.work.join("run/helper.sock")
    }

    /// The logs of both processes.
    pub fn logs(&self) -> PathBuf {
        self.work.join("log")
    }

    /// A generous timeout, as long as it must be on this machine.
    pub fn patience(&self, on_host: Duration) -> Duration {
        pace::patience(on_host)
    }

    /// Waits until `check` succeeds, for this many seconds at most on the host, and returns what it returns.
    pub fn eventually<T>(&self, seconds: u64, check: impl FnMut() -> Result<T>) -> Result<T> {
        wait::until(self.patience(Duration::from_secs(seconds)), check)
    }

    /// The pool called default, or the first one.
    pub fn pool(&self) -> &Pool {
        &self.pools[0]
    }

    /// Makes one more pool.
    pub fn add_pool(&mut self, name: &str) -> Result<()> {
        let directory = self.work.join("pools").join(name);
        self.pools.push(Pool::make(&self.run_options, &self.templates, &directory, name)?);
        Ok(())
    }

    /// Makes several more pools.
    pub fn add_pools<const N: usize>(&mut self, names: [&str; N]) -> Result<()> {
        names.iter().try_for_each(|name| self.add_pool(name))
    }

    /// Makes one more pool, whose files cannot share blocks.
    pub fn add_pool_without_shared_blocks(&mut self, name: &str) -> Result<()> {
        let directory = self.work.join("pools").join(name);
        self.pools.push(Pool::make_without_shared_blocks(&self.run_options, &self.templates, &directory, name)?);
        Ok(())
    }

    /// Starts both processes, on a pool called default if there are no pools yet.
    pub fn start(&mut self) -> Result<()> {
        self.start_helper()?;
        self.start_frontend()
    }

    /// Starts both processes, and returns a connection to the frontend.
    pub fn started_csi(&mut self) -> Result<CsiClient> {
        self.start()?;
        self.csi()
    }

    /// Makes one more pool, which may have filesystems in images and is large enough for some.
    pub fn add_pool_for_filesystems(&mut self, name: &str) -> Result<()> {
        self.run_options.pool_mebibytes = FILESYSTEMS_MEBIBYTES;
        self.add_pool(name)?;
        if let Some(pool) = self.pools.last_mut() {
            pool.options += ",filesystems";
        }
        self.helper_flags.extend(["--mounter-uid".to_owned(), MOUNTER_UID.to_string()]);
        Ok(())
    }

    /// The helper's flags, except for `helper_flags`.
    pub fn base_flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        for pool in &self.pools {
            flags.extend(["--pool".to_owned(), pool.flag()]);
        }
        let socket = self.helper_socket().display().to_string();
        let kubelet = self.kubelet.root().display().to_string();
        let publish = format!("work={}", self.publish_directory().display());
        let uid = FRONTEND_UID.to_string();
        let pairs =
            [("--socket", socket), ("--allow-uid", uid), ("--kubelet-dir", kubelet), ("--publish-dir", publish)];
        flags.extend(pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
        flags
    }

    /// The helper's command line.
    pub fn helper_command(&self) -> Result<Command> {
        let helper = program_in(self.helper_from.as_deref(), "bulkhead-privhelper")?;
        let mut command = match self.helper_wrapper.split_first() {
            Some((wrapper, flags)) => {
                let mut command = Command::new(wrapper);
                command.args(flags).arg(helper);
                command
            }
            None => Command::new(helper),
        };
        command.args(self.base_flags()).args(&self.helper_flags).current_dir("/");
        Ok(command)
    }

    /// Starts a helper on the pools that there are, which must refuse to serve, and returns its message.
    pub fn refusal(&self) -> Result<String> {
        refusal(&mut self.helper_command()?)
    }

    /// Starts the helper, on a pool called default if there are no pools yet, and waits until it serves. A disk that is
    /// only slow may not have answered in time: the helper ends when it does, and is started anew. So it is, as by a service
    /// manager, where processes of an earlier helper take long to end.
    pub fn start_helper(&mut self) -> Result<()> {
        let limit = self.patience(Duration::from_secs(60));
        let mut allowance = Allowance::at_this_pace(self.patience(Duration::from_secs(20)));
        loop {
            match self.start_helper_beside_hung() {
                Err(error) if format!("{error:#}").contains("another helper listens on") && !allowance.is_spent() => {
                    self.helper = None;
                    continue;
                }
                started => started?,
            }
            if self.stderr.is_some() {
                return Ok(());
            }
            let waits_for_devices = self.waits_for_devices;
            let helper = self.running_helper()?;
            // By then it has logged what it does not serve.
            wait::until(limit, || {
                ensure!(helper.own_log()?.contains("serving requests"), "it has not logged that it serves");
                Ok(())
            })?;
            let log = helper.own_log()?;
            let is_silent = waits_for_devices && log.contains("a loop device does not answer");
            if !is_silent && !log.contains("kind=Unanswering") {
                return Ok(());
            }
            helper.wait(limit).context("a filesystem does not answer")?;
            ensure!(helper.wants_another_start()?, "the helper failed: {}", helper.own_log()?);
        }
    }

    /// Starts the helper as [`Self::start_helper`] does, but whatever filesystem does not answer.
    pub fn start_helper_beside_hung(&mut self) -> Result<()> {
        if self.pools.is_empty() {
            self.add_pool("default")?;
        }
        let mut command = self.helper_command()?;
        let mut helper = self.launch("helper", &mut command)?;
        let limit = self.patience(Duration::from_secs(20));
        let served = helper.wait_until(limit, || HelperClient::welcomed(&self.helper_socket()).map(drop));
        self.helper = Some(helper);
        served.context("the helper does not serve")
    }

    /// Starts the helper, and returns a connection to it.
    pub fn started_helper(&mut self) -> Result<HelperClient> {
        self.start_helper()?;
        self.helper()
    }

    /// Starts the frontend, as a user without any capability, and waits until it is ready.
    pub fn start_frontend(&mut self) -> Result<()> {
        self.launch_frontend()?;
        self.await_frontend()
    }

    /// Waits until the frontend is ready, as it is again some time after the helper was.
    pub fn await_frontend(&mut self) -> Result<()> {
        let mut allowance = Allowance::at_this_pace(self.patience(Duration::from_secs(20)));
        let mut pause = Duration::from_millis(2);
        loop {
            // What others have on this host may not have answered while it started. A service manager does the same.
            if let Some(helper) = &mut self.helper
                && helper.wants_another_start()?
            {
                self.start_helper()?;
            }
            // There is nothing to wait for once either of them has ended.
            for daemon in [&mut self.frontend, &mut self.helper].into_iter().flatten() {
                daemon.check_alive()?;
            }
            match self.csi().and_then(|csi| csi.check_ready()) {
                Ok(()) => return Ok(()),
                Err(error) if allowance.is_spent() => return Err(error.context("the frontend does not get ready")),
                Err(_) => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// The registration socket, which appears a moment after CSI is served.
    pub fn registration_socket(&self) -> Result<PathBuf> {
        let socket = self.kubelet.registration_socket();
        self.eventually(20, || {
            ensure!(socket.exists(), "there is no {}", socket.display());
            Ok(())
        })?;
        Ok(socket)
    }

    /// Starts the frontend without waiting for it.
    pub fn launch_frontend(&mut self) -> Result<()> {
        let mut command = Command::new(program_in(self.frontend_from.as_deref(), "bulkhead-frontend")?);
        command.arg("--helper-socket").arg(self.helper_socket()).args(["--node-id", &self.node]);
        command.args(&self.frontend_flags);
        command.uid(FRONTEND_UID).gid(FRONTEND_UID).current_dir("/");
        self.frontend = Some(self.launch("frontend", &mut command)?);
        Ok(())
    }

    fn launch(&self, name: &'static str, command: &mut Command) -> Result<Daemon> {
        let stderr = self.stderr.as_ref().map(OwnedFd::try_clone).transpose()?;
        Daemon::start_logging_to(name, command, &self.logs(), stderr)
    }

    /// The running helper.
    pub fn running_helper(&mut self) -> Result<&mut Daemon> {
        self.helper.as_mut().context("the helper was not started")
    }

    /// The process id of the running helper.
    pub fn helper_pid(&self) -> Result<i32> {
        Ok(i32::try_from(self.helper.as_ref().context("the helper was not started")?.pid())?)
    }

    /// The process id of the running helper's first child, an emptier.
    pub fn emptier_pid(&self) -> Result<i32> {
        Ok(processes::descendants(self.helper_pid()?)?.first().context("no emptier")?.pid)
    }

    /// How long the helper and the frontend have run on a processor.
    pub fn processor_time(&self) -> Result<Duration> {
        let frontend = self.frontend.as_ref().context("the frontend was not started")?.pid();
        Ok(processes::processor_time(self.helper_pid()?)? + processes::processor_time(frontend)?)
    }

    /// The running frontend.
    pub fn running_frontend(&mut self) -> Result<&mut Daemon> {
        self.frontend.as_mut().context("the frontend was not started")
    }

    /// Returns what the running frontend has logged.
    pub fn frontend_log(&self) -> Result<String> {
        self.frontend.as_ref().context("the frontend was not started")?.own_log()
    }

    /// Kills the helper without warning.
    pub fn kill_helper(&mut self) -> Result<()> {
        self.helper.take().context("the helper was not started")?.kill()
    }

    /// Kills the frontend without warning.
    pub fn kill_frontend(&mut self) -> Result<()> {
        self.frontend.take().context("the frontend was not started")?.kill()
    }

    /// Kills the processes that are running, when only the clean-up is left to do.
    pub fn abandon(&mut self) {
        for daemon in [self.frontend.take(), self.helper.take()].into_iter().flatten() {
            // One that has already ended needs no killing.
            let _ = daemon.kill();
        }
    }

    /// Kills the helper without warning and starts another.
    pub fn restart_helper(&mut self) -> Result<()> {
        self.kill_helper()?;
        self.start_helper()
    }

    /// Kills the helper without warning, starts another, and returns a connection to it.
    pub fn restarted_helper(&mut self) -> Result<HelperClient> {
        self.kill_helper()?;
        self.started_helper()
    }

    /// Kills the frontend without warning and starts another.
    pub fn restart_frontend(&mut self) -> Result<()> {
        self.kill_frontend()?;
        self.start_frontend()
    }

    /// Kills the helper and starts another, and then the frontend.
    pub fn restart(&mut self) -> Result<()> {
        self.restart_helper()?;
        self.restart_frontend()
    }

    /// Waits until the helper has ended of its own accord, in an orderly way, to be started anew.
    pub fn await_end_of_helper(&mut self, limit: Duration) -> Result<()> {
        let status = self.end_of_helper(limit)?;
        ensure!(status.success(), "the helper ended with {status}");
        Ok(())
    }

    /// Waits until the helper has ended of its own accord, and returns how.
    pub fn end_of_helper(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.helper.take().context("the helper was not started")?.wait(limit)
    }

    /// Shuts down the helper in an orderly way.
    pub fn stop_helper(&mut self) -> Result<()> {
        let limit = self.patience(Duration::from_secs(10));
        self.helper.take().context("the helper was not started")?.stop(limit)
    }

    /// Shuts down both processes in an orderly way.
    pub fn stop(&mut self) -> Result<()> {
        let limit = self.patience(Duration::from_secs(10));
        for daemon in [self.frontend.take(), self.helper.take()].into_iter().flatten() {
            daemon.stop(limit)?;
        }
        Ok(())
    }

    /// A new connection to the helper, past the hello.
    pub fn helper(&self) -> Result<HelperClient> {
        Ok(HelperClient::welcomed(&self.helper_socket())?.recording(&self.pending))
    }

    /// The helper's answer to a hello.
    pub fn welcome(&self) -> Result<Welcome> {
        HelperClient::connect(&self.helper_socket())?.hello(bulkhead_protocol::HIGHEST_VERSION)
    }

    /// A new connection to the frontend.
    pub fn csi(&self) -> Result<CsiClient> {
        Ok(CsiClient::connect(&self.kubelet.csi_socket())?.recording(&self.pending))
    }

    /// Creates a volume and returns its id.
    pub fn create(&self, csi: &CsiClient, name: &str, bytes: i64, capability: VolumeCapability) -> Result<String> {
        let answer = csi.create_volume(requests::create(name, bytes, capability))?;
        Ok(answer.volume.context("a volume was made and is not in the answer")?.volume_id)
    }

    /// Creates a volume and publishes it at a target of that name. Returns a client and the target.
    pub fn published(&self, request: CreateVolumeRequest) -> Result<(CsiClient, PathBuf)> {
        let (csi, name) = (self.csi()?, request.name.clone());
        let capability = request.volume_capabilities.first().context("a volume without a capability")?.clone();
        csi.create_volume(request)?;
        let target = self.target(&name);
        csi.node_publish_volume(requests::publish(&name, &target, capability))?;
        Ok((csi, target))
    }

    /// Leaves everything as it is at the end of the test: the next phase looks for it.
    pub fn leave_as_it_is(&mut self) {
        self.ends_clean = false;
    }

    /// Undoes what the test has made and left, the newest first.
    fn undo(&mut self) -> Result<()> {
        let pending = self.pending.take();
        if pending.is_empty() || self.helper.is_none() {
            // What cannot be undone is for the test to remove, and for the check to find.
            return Ok(());
        }
        let (helper, mut csi) = (self.helper()?, None);
        if pending.iter().any(Undo::is_for_the_frontend) && self.frontend.is_some() {
            self.await_frontend()?;
            csi = Some(self.csi()?);
        }
        pending.iter().try_for_each(|undo| undo.carry_out(&helper, csi.as_ref()))
    }

    /// Undoes what the test has made, checks that nothing else is left, ends both processes and unmounts the pools.
    pub fn finish(mut self) -> Result<()> {
        if !self.ends_clean {
            return Ok(());
        }
        for daemon in [&mut self.frontend, &mut self.helper].into_iter().flatten() {
            daemon.check_alive()?;
        }
        self.undo()?;
        leaks::check(&self)?;
        self.stop()?;
        leaks::check_stopped(&self)?;
        for pool in self.pools.iter().filter(|pool| pool.directory.starts_with(&self.work)) {
            crate::observe::mounts::unmount_all(&pool.directory)?;
        }
        leaks::check_unmounted(&self)
    }
}
