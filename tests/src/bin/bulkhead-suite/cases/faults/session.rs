//! A connection to the helper, with the thread that serves it, and the other actors of an operation.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Condition, ErrorKind, Request, Response};
use bulkhead_tests::helper::HelperClient;
use bulkhead_tests::observe::processes;
use bulkhead_tests::pace::patience;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::{leaks, wait};

use super::operations::{Actor, Operation};
use crate::cases::filesystems;

/// A connection past its hello.
pub struct Session {
    /// The client's end.
    pub client: HelperClient,
    helper: i32,
    socket: String,
}

impl Session {
    /// Connects.
    pub fn open(rig: &mut Rig) -> Result<Self> {
        let helper = rig.helper_pid()?;
        let before: BTreeSet<String> = sockets(helper)?.into_iter().map(|(_, socket)| socket).collect();
        let client = rig.helper()?;
        let new = sockets(helper)?.into_iter().map(|(_, socket)| socket).find(|socket| !before.contains(socket));
        Ok(Self { client, helper, socket: new.context("the helper has no new socket after a hello")? })
    }

    /// Does what precedes an operation. Space is measured at most once a second: it is measured here, so that an
    /// operation makes the same calls each time, but not where the measuring is the operation.
    pub fn prepare(&self, rig: &Rig, operation: &Operation) -> Result<()> {
        operation.before.iter().try_for_each(|request| self.client.ask(request).map(drop))?;
        operation.fill(rig)?;
        match &operation.request {
            Request::PoolStatus { .. } => std::thread::sleep(Duration::from_millis(1100)),
            _ => drop(self.client.ask(&Request::PoolStatus { pool: "default".parse()? })?),
        }
        Ok(())
    }

    /// Sends the request of an operation, on a new connection if the operation is about connections.
    pub fn send(&self, rig: &Rig, operation: &Operation) -> Result<Response> {
        match operation.actor {
            Actor::Accepting => rig.helper()?.request(&operation.request),
            _ => self.client.request(&operation.request),
        }
    }

    /// The threads or the process whose calls are in question. Whoever has waited longest accepts a connection.
    pub fn threads(&self, actor: Actor) -> Result<Vec<i32>> {
        match actor {
            Actor::Accepting => all_accepting(self.helper),
            Actor::Serving => waiting_threads(self.helper, RECEIVING, |socket| socket == self.socket),
            Actor::Releasing => waiting_threads(self.helper, RECEIVING, |socket| socket != self.socket),
            Actor::Placer => waiting_threads(processes::placer(self.helper)?, RECEIVING, |_| true),
            Actor::Emptier => Ok(vec![processes::descendants(self.helper)?.first().context("no emptier")?.pid]),
            Actor::Mounter => Ok(vec![filesystems::mounter_of(self.helper)?]),
        }
    }
}

/// The threads of a process.
pub fn threads(process: i32) -> Result<Vec<i32>> {
    let threads = fs::read_dir(format!("/proc/{process}/task"))?;
    threads.map(|thread| Ok(thread?.file_name().to_string_lossy().parse()?)).collect()
}

/// The descriptors of a process that are sockets, and which sockets those are.
fn sockets(process: i32) -> Result<Vec<(String, String)>> {
    let mut sockets = Vec::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd")).context("list the helper's descriptors")? {
        let entry = entry?;
        // It may have been closed in the meantime.
        let Ok(link) = fs::read_link(entry.path()) else { continue };
        let link = link.to_string_lossy().into_owned();
        if link.starts_with("socket:") {
            sockets.push((entry.file_name().to_string_lossy().into_owned(), link));
        }
    }
    Ok(sockets)
}

/// The number of accept4(2).
const ACCEPTING: &[&str] = if cfg!(target_arch = "x86_64") { &["288"] } else { &["242"] };
/// recvfrom(2) and recvmsg(2).
const RECEIVING: &[&str] = if cfg!(target_arch = "x86_64") { &["45", "47"] } else { &["207", "212"] };

/// All threads that accept. One that has just closed a connection is about to: it is waited for.
fn all_accepting(process: i32) -> Result<Vec<i32>> {
    let mut before = Vec::new();
    wait::until(patience(Duration::from_secs(5)), || {
        let found = waiting_threads(process, ACCEPTING, |_| true)?;
        let is_settled = found == before;
        before = found;
        std::thread::sleep(Duration::from_millis(50));
        ensure!(is_settled, "the number of threads that accept keeps changing");
        Ok(())
    })?;
    Ok(before)
}

/// The threads that wait in one of these system calls on a wanted socket.
fn waiting_threads(process: i32, calls: &[&str], wanted: impl Fn(&str) -> bool) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    wait::until(patience(Duration::from_secs(5)), || {
        let sockets = sockets(process)?;
        for entry in fs::read_dir(format!("/proc/{process}/task"))? {
            let thread: i32 = entry?.file_name().to_string_lossy().parse()?;
            let made = fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall"))?;
            let mut words = made.split(' ');
            if !words.next().is_some_and(|number| calls.contains(&number)) {
                continue;
            }
            let descriptor = words.next().and_then(|word| word.strip_prefix("0x"));
            let Some(number) = descriptor.and_then(|digits| u32::from_str_radix(digits, 16).ok()) else { continue };
            let is_wanted = |(name, socket): &(String, String)| *name == number.to_string() && wanted(socket);
            if sockets.iter().any(is_wanted) {
                found.push(thread);
            }
        }
        anyhow::ensure!(!found.is_empty(), "no thread of the helper waits there");
        Ok(())
    })?;
    Ok(found)
}

/// What must be as before once an operation is undone, in addition to what [`leaks::check`] checks.
#[derive(Debug, PartialEq, Eq)]
pub struct Figures {
    promised: u64,
    volumes: u32,
    emptying: u32,
    conditions: Vec<Condition>,
    descriptors: usize,
}

impl Figures {
    /// The current figures, with one connection.
    pub fn now(rig: &Rig) -> Result<Self> {
        let client = rig.helper()?;
        let descriptors = processes::descriptors(rig.helper_pid()?)?;
        let pool = client.pool_status("default")?;
        let conditions = pool.conditions.as_slice().to_vec();
        let (promised, volumes, emptying) = (pool.promised, pool.volumes, pool.emptying);
        Ok(Self { promised, volumes, emptying, conditions, descriptors })
    }

    /// Checks that the figures are as before. The emptier receives a job that could not be sent at first after some
    /// seconds.
    pub fn check(&self, rig: &Rig) -> Result<()> {
        rig.eventually(15, || {
            let now = Self::now(rig)?;
            // A helper that has started since may not have been asked for its sockets yet.
            let fewer = Self { descriptors: now.descriptors.max(self.descriptors), ..now };
            ensure!(fewer == *self, "before it was {self:?}, and now it is {fewer:?}");
            Ok(())
        })?;
        leaks::check(rig)
    }
}

/// Sends the request until it is no longer `Busy`; it must be granted.
pub fn granted(rig: &Rig, request: &Request) -> Result<()> {
    rig.eventually(2, || match rig.helper()?.request(request)? {
        Err(error) if error.kind == ErrorKind::Busy => anyhow::bail!("busy: {error}"),
        _ => Ok(()),
    })?;
    rig.helper()?.ask(request).map(drop)
}

/// Undoes an operation.
pub fn undo(rig: &Rig, operation: &Operation) -> Result<()> {
    let client = rig.helper()?;
    for request in &operation.undo {
        // What a mounter was asked for before goes on, and is waited for.
        rig.eventually(10, || match client.request(request)? {
            Err(error) if error.kind != ErrorKind::NotFound => anyhow::bail!("undone with {request:?}: {error}"),
            _ => Ok(()),
        })?;
    }
    Ok(())
}
