//! What the benches share: a place that is removed afterwards, however they end, statistics, and reports.

pub mod compare;
pub mod plot;
pub mod report;
pub mod statistics;
pub mod table;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::keeper::{clean, end_processes, make_place};
use crate::run_options::RunOptions;

/// Tells a bench that it is the measuring process, and where to work.
const WORK: &str = "BULKHEAD_BENCH_WORK";

/// Calls `measure` with its options, a work directory and a directory for templates, and reports failures.
pub fn run(run_options: RunOptions, measure: impl FnOnce(&mut RunOptions, &Path, &Path) -> Result<()>) -> ExitCode {
    let done = match std::env::var_os(WORK) {
        Some(work) => in_place(run_options, &PathBuf::from(work), measure),
        None => keep(&run_options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn in_place(
    mut run_options: RunOptions,
    work: &Path,
    measure: impl FnOnce(&mut RunOptions, &Path, &Path) -> Result<()>,
) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // What it starts must hear when it is asked to end.
    SigSet::empty().thread_set_mask()?;
    let scratch = work.parent().context("a work directory without a parent")?;
    measure(&mut run_options, work, scratch)
}

/// Starts this program again to measure, and removes whatever that leaves behind, even if it is killed.
fn keep(run_options: &RunOptions) -> Result<()> {
    let mut signals = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| signals.add(signal));
    signals.thread_block()?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let scratch = run_options.place.make_scratch()?;
    let work = scratch.path().join("bench");
    std::fs::create_dir(&work)?;
    make_place(run_options.place, &work)?;
    let mut measuring = Command::new(std::env::current_exe()?);
    measuring.args(std::env::args_os().skip(1)).env(WORK, &work).process_group(0);
    let measured = wait(&mut measuring, &signals);
    // After a failure there is much to clean up, and errors in doing so must not hide the failure.
    let ended = end_processes(Duration::from_secs(if measured.is_ok() { 3 } else { 0 }));
    let cleaned = clean(&work, None);
    measured?;
    ended?;
    cleaned
}

fn wait(measuring: &mut Command, signals: &SignalFd) -> Result<()> {
    let mut child = measuring.spawn().context("start the process that measures")?;
    loop {
        if let Some(status) = child.try_wait()? {
            ensure!(status.success(), "the bench failed ({status})");
            return Ok(());
        }
        if let Some(signal) = signals.read_signal()? {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("ended by signal {}", signal.ssi_signo);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The time that `percent` of the sorted times do not exceed.
pub fn percentile(times: &[Duration], percent: usize) -> Duration {
    let last = times.len().saturating_sub(1);
    times.get(last * percent / 100).copied().unwrap_or_default()
}
