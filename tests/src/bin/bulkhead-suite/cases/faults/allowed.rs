//! The filter's list of needed calls is accurate: the helper's operations make every one of them.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_protocol::{MountFlags, Request, Socket};
use bulkhead_tests::helper::{bind, create, delete, directory_spec, target, unbind, volume};
use bulkhead_tests::observe::processes;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::strace::Tracer;

use super::operations::{self, Operation, on_copies, on_directories, on_filesystems};
use super::points::emptied;
use super::session::{Session, threads, undo};
use crate::cases::filesystems;

/// The list. A unit test of the helper compares it with the filter: each row of the filter must be in it.
const NEEDED: &str = include_str!("../../../../../../privhelper/src/start/filter/needed.txt");

/// Their list takes several pages.
const TARGETS: usize = 150;

/// A call as strace shows it, with the numbers of its arguments.
struct Made {
    by: &'static str,
    number: u64,
    arguments: Vec<u64>,
}

/// Performs all operations under strace.
pub fn every_call_that_is_listed_is_made(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    operations::prepare(rig)?;
    rig.start_helper()?;
    let log = rig.work().join("calls");
    let server = rig.helper_pid()?;
    // It becomes another user only after it was started.
    let mounter = rig.eventually(10, || filesystems::mounter_of(server))?;
    let placer = processes::placer(server)?;
    let threads = threads(placer)?;
    let others: Vec<i32> = processes::descendants(server)?.iter().map(|process| process.pid).collect();
    let tracer = Tracer::follow_processes(&[&others[..], &[server]].concat(), &log, &["-n", "-e", "raw=all"])?;
    if only_quotas(rig) {
        perform(rig, &on_directories())?;
    } else {
        do_everything(rig)?;
    }
    let written = tracer.end()?;
    let children: BTreeSet<i32> = written.lines().filter_map(|line| forked(line, mounter)).collect();
    let by = |pid| match pid {
        _ if pid == mounter || children.contains(&pid) => "mounter",
        _ if threads.contains(&pid) => "placer",
        _ if others.contains(&pid) => "emptier",
        // Or a thread of its own.
        _ => "keeper",
    };
    let made: Vec<Made> = written.lines().filter_map(|line| Made::of(line, by)).collect();
    let not_made: Vec<&str> = needed(rig)
        .filter(|line| match is_made(line, &made) {
            Some(is_made) => !is_made,
            None => panic!("the list has the line {line:?}"),
        })
        .collect();
    ensure!(not_made.is_empty(), "no operation makes these calls: {not_made:#?}");
    check_raised(&written, if only_quotas(rig) { 20 } else { 100 })
}

/// Returns whether this is about no other calls: they are the same on the host, where following them takes less.
fn only_quotas(rig: &Rig) -> bool {
    rig.run_options.enforces_sizes() && !rig.run_options.everything
}

/// Checks that no thread has slept or received anything while it had a capability: each raises some and lowers them again,
/// more than `least` times in all.
fn check_raised(written: &str, least: usize) -> Result<()> {
    let mut raised: BTreeSet<&str> = BTreeSet::new();
    let (mut waits, mut number) = (Vec::new(), 0);
    for (thread, call) in written.lines().filter_map(|line| line.split_once(' ')) {
        let call = call.trim_start();
        let is = |names: &[&str]| names.iter().any(|name| call.contains(&format!("] {name}(")));
        if is(&["capset"]) && !raised.remove(thread) {
            raised.insert(thread);
            number += 1;
        }
        if is(&["nanosleep", "clock_nanosleep", "recvfrom", "recvmsg", "ppoll", "syncfs"]) && raised.contains(thread) {
            waits.push(call);
        }
    }
    ensure!(number > least && waits.is_empty(), "of {number} times a capability was raised, over these: {waits:#?}");
    Ok(())
}

/// The child that this process forks in a line, if it does.
fn forked(line: &str, parent: i32) -> Option<i32> {
    let call = line.strip_prefix(&parent.to_string())?.trim_start();
    let (call, child) = call.rsplit_once("= ")?;
    let child = i32::from_str_radix(child.trim().strip_prefix("0x")?, 16).ok()?;
    (call.contains("fork") || call.contains("clone")).then_some(child)
}

fn do_everything(rig: &mut Rig) -> Result<()> {
    perform(rig, &[on_filesystems(), on_copies(), super::all()].concat())?;
    // A socket that already exists is examined.
    let helper = rig.helper()?;
    for _ in 0..2 {
        helper.ask(&Request::Listen { socket: Socket::Csi })?;
    }
    many_targets(rig)?;
    deep_and_immutable(rig)
}

fn perform(rig: &mut Rig, operations: &[Operation]) -> Result<()> {
    for operation in operations {
        let session = Session::open(rig)?;
        session.prepare(rig, operation)?;
        session.send(rig, operation)?.map_err(|error| anyhow::anyhow!("{}: {error}", operation.name))?;
        drop(session);
        undo(rig, operation)?;
        emptied(rig)?;
    }
    Ok(())
}

/// A volume whose list of targets outgrows the memory that the helper already has, and gives it back.
fn many_targets(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask(&create("vol-a", directory_spec(16 << 20)))?;
    for number in 0..TARGETS {
        helper.ask(&bind("vol-a", &format!("many-{number}")))?;
    }
    for number in 0..TARGETS {
        helper.ask(&unbind("vol-a", &format!("many-{number}")))?;
    }
    Ok(())
}

/// What the emptier meets less often: a tree deeper than it descends, and files that cannot be removed as they are.
fn deep_and_immutable(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask(&create("vol-a", directory_spec(16 << 20)))?;
    let data = rig.pool().volume("vol-a").join("data");
    fs::create_dir_all(data.join("deep/".repeat(40)))?;
    fs::write(data.join("file"), "content")?;
    bulkhead_tests::pool::run(Command::new("chattr").arg("+i").arg(data.join("file")))?;
    let at = target("work", "late");
    let flags = MountFlags::default();
    helper.ask(&Request::BindMount { volume: volume("vol-a"), target: at.clone(), flags, exclusive: false })?;
    helper.ask(&Request::Unmount { volume: volume("vol-a"), target: at })?;
    helper.ask(&delete("vol-a"))?;
    emptied(rig)?;
    // The thread that releases what was emptied checks it again.
    thread::sleep(Duration::from_millis(200));
    Ok(())
}

/// The lines of the list that apply here: those about quotas need a kernel that enforces them.
fn needed(rig: &Rig) -> impl Iterator<Item = &'static str> {
    let (quotas, only_quotas) = (rig.run_options.enforces_sizes(), only_quotas(rig));
    let listed = NEEDED.lines().filter(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with("rare"));
    listed.filter(move |line| match line.contains("quotactl_fd") {
        true => quotas,
        false => !only_quotas,
    })
}

/// `PROCESS NUMBER NAME [INDEX[&MASK]=VALUE]...`; `None` if the line cannot be parsed.
fn is_made(line: &str, made: &[Made]) -> Option<bool> {
    let mut words = line.split_whitespace();
    let by = words.next().filter(|by| ["keeper", "placer", "emptier", "mounter"].contains(by))?;
    let number: u64 = words.next()?.parse().ok()?;
    words.next()?;
    let mut wanted: Vec<(usize, u64, u64)> = Vec::new();
    for word in words {
        let (argument, value) = word.split_once('=')?;
        let (index, mask) = argument.split_once('&').unwrap_or((argument, "0xffffffff"));
        wanted.push((index.parse().ok()?, hexadecimal(mask)?, hexadecimal(value)?));
    }
    let has = |call: &Made, (index, mask, value): &(usize, u64, u64)| {
        call.arguments.get(*index).is_some_and(|own| own & mask == *value)
    };
    Some(
        made.iter().any(|call| call.by == by && call.number == number && wanted.iter().all(|wanted| has(call, wanted))),
    )
}

/// A number in the format of strace and the list, reduced to its lower half, which is what the filter compares.
fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    Some(u64::from_str_radix(digits, 16).ok()? & u64::from(u32::MAX))
}

impl Made {
    /// `PID [NUMBER] NAME(ARGUMENTS...`.
    fn of(line: &str, by: impl Fn(i32) -> &'static str) -> Option<Self> {
        let (pid, rest) = line.split_once(' ')?;
        let (number, rest) = rest.trim_start().strip_prefix('[')?.split_once(']')?;
        let (_, arguments) = rest.split_once('(')?;
        let arguments = arguments.split([')', '<']).next().unwrap_or_default();
        let by = by(pid.parse().ok()?);
        let arguments = arguments.split(',').filter_map(|argument| hexadecimal(argument.trim())).collect();
        Some(Self { by, number: number.trim().parse().ok()?, arguments })
    }
}
