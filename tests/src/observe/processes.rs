//! Processes, from `/proc`.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

/// A process as described by its `stat` file (proc(5)).
#[derive(Clone, Debug)]
pub struct Process {
    /// Process id.
    pub pid: i32,
    /// The parent's process id.
    pub parent: i32,
    /// The program's name, truncated to 15 bytes.
    pub name: String,
    /// `R`, `S`, `Z`, ….
    pub state: char,
}

/// All descendants of `ancestor`, except zombies.
pub fn descendants(ancestor: i32) -> Result<Vec<Process>> {
    let mut others: Vec<Process> = Vec::new();
    for entry in std::fs::read_dir("/proc").context("read /proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.parse::<i32>().ok());
        others.extend(pid.and_then(read));
    }
    let mut family = BTreeSet::from([ancestor]);
    loop {
        let known = family.len();
        family.extend(
            others
                .iter()
                .filter(|process| family.contains(&process.parent))
                .map(|process| process.pid)
                .collect::<Vec<_>>(),
        );
        if family.len() == known {
            break;
        }
    }
    let is_descendant =
        |process: &Process| process.pid != ancestor && process.state != 'Z' && family.contains(&process.pid);
    others.retain(is_descendant);
    Ok(others)
}

/// Sends a signal to a process.
pub fn signal(pid: i32, signal: Signal) -> Result<()> {
    Ok(kill_process(Pid::from_raw(pid).context("a process id")?, signal)?)
}

/// Returns what its status file (proc(5)) says of a process under this key.
pub fn status(pid: impl Display, key: &str) -> Result<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    Ok(value.with_context(|| format!("no {key} in a process's status"))?.trim().to_owned())
}

/// Checks that a process has its filter of system calls, as the helper's children have soon after they were started.
pub fn check_filtered(pid: impl Display) -> Result<()> {
    ensure!(status(pid, "Seccomp")? == "2", "no filter yet");
    Ok(())
}

/// The capabilities of a placer: CAP_SYS_ADMIN and CAP_MKNOD (linux/capability.h).
const OF_A_PLACER: u64 = 1 << 21 | 1 << 27;

/// The child of a helper that mounts for it, makes nodes and sets limits.
pub fn placer(helper: i32) -> Result<i32> {
    let is_one = |pid: i32| status(pid, "CapPrm").is_ok_and(|found| u64::from_str_radix(&found, 16) == Ok(OF_A_PLACER));
    let found = descendants(helper)?.into_iter().map(|process| process.pid).find(|pid| is_one(*pid));
    found.context("there is no placer")
}

/// Checks that all children of a helper are confined: a filter, no way to gain anything, three capabilities at most, and
/// besides the standard descriptors a connection and what they have opened themselves.
pub fn check_children(helper: i32) -> Result<()> {
    let children = descendants(helper)?;
    ensure!(!children.is_empty(), "it has no children");
    for child in children {
        let pid = child.pid;
        check_filtered(pid).with_context(|| format!("{child:?}"))?;
        let set = |key: &str| Ok::<_, anyhow::Error>(u64::from_str_radix(&status(pid, key)?, 16)?);
        ensure!(set("CapBnd")? == 0 && status(pid, "NoNewPrivs")? == "1", "{child:?} can gain something");
        ensure!(set("CapPrm")?.count_ones() <= 3, "{child:?} has {:x}", set("CapPrm")?);
        // A placer has a line for each thread of the helper.
        let is_placer = set("CapPrm")? == OF_A_PLACER;
        ensure!(is_placer || descriptors(pid)? <= 6, "{child:?} has {} descriptors", descriptors(pid)?);
    }
    Ok(())
}

/// The number of descriptors that a process has open.
pub fn descriptors(pid: impl Display) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd")).context("list a process's descriptors")?.count())
}

/// Resident memory of a process in bytes.
pub fn resident(pid: impl Display) -> Result<u64> {
    let kibibytes: u64 = status(pid, "VmRSS")?.trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes * 1024)
}

/// Memory of a process in bytes, with memory shared with others divided among them (`Pss`).
pub fn proportional(pid: u32) -> Result<u64> {
    let sums = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = sums.lines().find_map(|line| line.strip_prefix("Pss:")).context("no Pss in a process's memory")?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes * 1024)
}

/// How long the threads that a process has now have run on a processor.
pub fn processor_time(pid: impl Display) -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).context("list a process's threads")? {
        let spent = std::fs::read_to_string(thread?.path().join("schedstat")).context("read a thread's time")?;
        sum += Duration::from_nanos(spent.split(' ').next().unwrap_or_default().parse()?);
    }
    Ok(sum)
}

/// How long this thread has run on a processor.
pub fn own_processor_time() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(spent.tv_sec).unwrap_or_default(), u32::try_from(spent.tv_nsec).unwrap_or_default())
}

fn read(pid: i32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything.
    let (head, tail) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let mut fields = tail.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(Process { pid, parent, name, state })
}
