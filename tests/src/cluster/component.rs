//! A process of the control plane, kept running the way a kubelet keeps a static pod running.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::wait;

/// How often it is looked whether a component may start.
const PAUSE: Duration = Duration::from_millis(10);

/// How often it is looked whether one must end.
const LOOK: Duration = Duration::from_millis(100);

/// How much memory Go's collector lets a component take before it looks for what is free, in percent of what is in use: much
/// more than the default, as the processor is what tests wait for.
const COLLECTOR: (&str, &str) = ("GOGC", "400");

/// A component that is restarted whenever it ends, until this value is dropped.
#[derive(Debug)]
pub struct Component {
    stop: Arc<AtomicBool>,
    keeper: Option<JoinHandle<()>>,
}

/// The files about a component, for tests that did not start it.
#[derive(Clone, Debug)]
pub struct Traces {
    name: &'static str,
    directory: PathBuf,
}

impl Traces {
    /// The files about the component `name` of the control plane in `directory`.
    pub fn new(directory: &Path, name: &'static str) -> Self {
        Self { name, directory: directory.to_owned() }
    }

    /// Its log.
    pub fn log(&self) -> PathBuf {
        self.directory.join(format!("{}.log", self.name))
    }

    fn pid_file(&self) -> PathBuf {
        self.directory.join(format!("{}.pid", self.name))
    }

    fn hold_file(&self) -> PathBuf {
        self.directory.join(format!("{}.hold", self.name))
    }

    /// Its process id.
    ///
    /// # Errors
    /// When it is not running.
    pub fn pid(&self) -> Result<u32> {
        let text = fs::read_to_string(self.pid_file()).with_context(|| format!("{} does not run", self.name))?;
        text.trim().parse().with_context(|| format!("the process id of {}", self.name))
    }

    /// Kills it. It is restarted immediately, unless it is held.
    pub fn kill(&self) -> Result<()> {
        let text = fs::read_to_string(self.pid_file()).with_context(|| format!("{} does not run", self.name))?;
        let pid = text.trim().parse().ok().and_then(Pid::from_raw).context("process id")?;
        kill_process(pid, Signal::KILL).with_context(|| format!("kill {}", self.name))?;
        wait::until(crate::pace::patience(Duration::from_secs(10)), || {
            let now = fs::read_to_string(self.pid_file()).unwrap_or_default();
            ensure!(now != text, "{} still runs", self.name);
            Ok(())
        })
    }

    /// Kills it, and keeps it from starting again until [`Self::release`].
    pub fn hold(&self) -> Result<()> {
        File::create(self.hold_file())?;
        self.kill()
    }

    /// Lets it start again.
    pub fn release(&self) {
        // It may not be held at all.
        let _ = fs::remove_file(self.hold_file());
    }
}

impl Component {
    /// Starts `program` with these arguments and keeps it running.
    pub fn start(traces: Traces, program: PathBuf, arguments: Vec<String>) -> Result<Self> {
        ensure!(program.exists(), "{} is missing", program.display());
        let stop = Arc::new(AtomicBool::new(false));
        let log = File::options().create(true).append(true).open(traces.log())?;
        let stopped = stop.clone();
        // The component dies with the thread that starts it, and therefore with this process, however that ends.
        let keeper = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if traces.hold_file().exists() {
                    thread::sleep(PAUSE);
                } else if let Err(error) = run_once(&traces, &program, &arguments, &log, &stopped) {
                    eprintln!("{}: {error:#}", traces.name);
                    thread::sleep(Duration::from_secs(1));
                }
            }
        });
        Ok(Self { stop, keeper: Some(keeper) })
    }
}

impl Drop for Component {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(keeper) = self.keeper.take() {
            // A panic in that thread has already been reported.
            let _ = keeper.join();
        }
    }
}

fn run_once(traces: &Traces, program: &Path, arguments: &[String], log: &File, stopped: &AtomicBool) -> Result<()> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program).args(arguments);
    command.envs([COLLECTOR]).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?).process_group(0);
    let mut child = command.spawn().context("start setpriv")?;
    fs::write(traces.pid_file(), child.id().to_string())?;
    while wait::ended(&mut child, LOOK)?.is_none() {
        if stopped.load(Ordering::Relaxed) {
            // Nothing that it stores has to outlive the run.
            child.kill()?;
        }
    }
    Ok(fs::remove_file(traces.pid_file())?)
}
