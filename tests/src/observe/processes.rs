//! Processes, from `/proc`.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

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

/// Resident memory of a process in bytes.
pub fn resident(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in a process's status")?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes * 1024)
}

/// Memory of a process in bytes, with memory shared with others divided among them (`Pss`).
pub fn proportional(pid: u32) -> Result<u64> {
    let sums = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = sums.lines().find_map(|line| line.strip_prefix("Pss:")).context("no Pss in a process's memory")?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes * 1024)
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
