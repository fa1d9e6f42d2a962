//! The process around one test: it gives the test a place of its own, ends what the test leaves running, and removes
//! that place.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::process::{Pid, Signal, WaitOptions, kill_process};

use crate::case::{Case, Need};
use crate::fixture::Fixture;
use crate::observe::{loops, mounts, processes};
use crate::pace::{self, Allowance};
use crate::pool::Pool;
use crate::run_options::{Phase, Place, RunOptions};
use crate::wait;

/// How often it is looked whether a test may still go on.
const LOOK: Duration = Duration::from_millis(200);

/// The directory, below a work directory, that holds the stands of several nodes.
pub const NODES: &str = "nodes";

/// Runs `body`, which is this program in the role of the test itself, below `work`.
pub(crate) fn keep<S: Fixture>(case: &Case<S>, run_options: &RunOptions, work: &Path, mut body: Command) -> Result<()> {
    // Whatever the test leaves running becomes a child of this process, wherever it was started.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    make_place(run_options.place, work)?;
    let verdict = run(&mut body, case.limit());
    if case.needs(Need::Reboot(Phase::BeforeReboot)) && verdict.is_ok() {
        return Ok(());
    }
    if verdict.is_err() {
        print_logs(work);
    }
    // The emptier of a helper that was just stopped ends a moment later. After a failure there is no point in waiting.
    let grace = if verdict.is_ok() { pace::patience(Duration::from_secs(3)) } else { Duration::ZERO };
    let left = end_processes(grace);
    let cleaned = clean(work, run_options.shared_pool.as_deref());
    verdict?;
    let left = left?;
    ensure!(left.is_empty(), "processes are left over: {left:?}");
    cleaned
}

/// For how long this process, and all of its descendants that have ended, had a processor.
pub(crate) fn processors() -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for who in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
        let usage = getrusage(who).context("ask what processes have taken")?;
        for part in [usage.user_time(), usage.system_time()] {
            sum += Duration::from_micros(u64::try_from(part.num_microseconds()).unwrap_or_default());
        }
    }
    Ok(sum)
}

/// Makes the work directory a shared mount, on the host in a mount namespace of its own. Must be called while the
/// process has only one thread.
pub fn make_place(place: Place, work: &Path) -> Result<()> {
    if place == Place::Host {
        leave_the_hosts_mounts()?;
        mount_bind(work, work)?;
        mount_change(work, MountPropagationFlags::SHARED)?;
    }
    Ok(())
}

/// Moves this process to a mount namespace of its own. Must be called while the process has only one thread.
pub(crate) fn leave_the_hosts_mounts() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("make a mount namespace: run this as root")?;
    Ok(mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?)
}

fn run(body: &mut Command, limit: Duration) -> Result<()> {
    let mut child = body.spawn()?;
    let (begun, mut allowance) = (Instant::now(), Allowance::new(limit));
    let runner = rustix::process::getppid();
    loop {
        if let Some(status) = wait::ended(&mut child, LOOK)? {
            ensure!(status.success(), "the test failed ({status})");
            return Ok(());
        }
        if allowance.is_spent() {
            bail!("the test is not done after {} s", begun.elapsed().as_secs());
        }
        ensure!(rustix::process::getppid() == runner, "the run was ended");
    }
}

/// Waits `grace` for all descendants of this process to end, then kills the others and returns their names.
pub(crate) fn end_processes(grace: Duration) -> Result<Vec<String>> {
    let mut left = BTreeSet::new();
    let grace = Instant::now() + grace;
    loop {
        let found = processes::descendants(rustix::process::getpid().as_raw_nonzero().get())?;
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        if found.is_empty() {
            return Ok(left.into_iter().collect());
        }
        if Instant::now() < grace {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        for process in found {
            left.insert(format!("{} ({})", process.name, process.pid));
            if let Some(pid) = Pid::from_raw(process.pid) {
                // It may have ended in the meantime.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Removes the mounts, loop devices and files of a work directory, and the loop devices of a pool outside it.
pub fn clean(work: &Path, shared_pool: Option<&Path>) -> Result<()> {
    let left = mounts::below(work)?;
    let mut devices: BTreeSet<String> = left.iter().map(|mount| mount.device.clone()).collect();
    if let Some(directory) = shared_pool {
        devices.insert(Pool::existing(directory, "shared").device()?);
    }
    let is_ours = |device: &loops::Loop| {
        devices.contains(&device.backing_device) || Path::new(&device.backing_file).starts_with(work)
    };
    // The pool's own device is released together with its mount.
    let (looped, others): (Vec<_>, Vec<_>) =
        loops::all()?.into_iter().partition(|device| is_ours(device) && !device.autoclear);
    // A helper that was killed leaves a second device on top of each, which keeps it attached.
    let is_hold = |device: &loops::Loop| {
        let below = Path::new(&device.backing_file).file_name();
        below.is_some() && looped.iter().any(|device| device.path.file_name() == below)
    };
    let holds: Vec<loops::Loop> = others.into_iter().filter(is_hold).collect();
    for mount in left.iter().filter(|mount| !mount.point.starts_with(work.join("pools"))).rev() {
        rustix::mount::unmount(&mount.point, rustix::mount::UnmountFlags::DETACH)?;
    }
    for device in holds.iter().chain(&looped) {
        loops::detach(&device.path)?;
    }
    mounts::unmount_all(work)?;
    fs::remove_dir_all(work).with_context(|| format!("remove {}", work.display()))?;
    ensure!(left.is_empty(), "mounts are left over: {left:?}");
    ensure!(looped.is_empty(), "loop devices are left over: {looped:?}");
    Ok(())
}

/// Prints the last lines of what both processes have logged below a work directory.
pub fn print_logs(work: &Path) {
    // A case with several nodes has their stands below this directory.
    let stands = fs::read_dir(work.join(NODES)).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    for rig in std::iter::once(work.to_owned()).chain(stands) {
        for name in ["helper", "frontend"] {
            let path = rig.join(format!("log/{name}.log"));
            if let Ok(log) = fs::read(&path) {
                let log = String::from_utf8_lossy(&log);
                let lines: Vec<&str> = log.lines().collect();
                println!("--- the last lines of {}", path.display());
                lines[lines.len().saturating_sub(60)..].iter().for_each(|line| println!("{line}"));
            }
        }
    }
}
