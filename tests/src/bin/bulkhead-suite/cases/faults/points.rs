//! The points of the matrices: each system call of each operation, found by tracing every operation once.

use anyhow::{Context, Result, ensure};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::Place;
use bulkhead_tests::strace::{Call, Tracer, calls};

use super::operations::{Actor, Operation};
use super::session::{Session, undo};

/// The errors that each call fails with, one at a time.
pub const ERRORS: [&str; 7] = ["ENOSPC", "EIO", "EMFILE", "ENOMEM", "EBUSY", "EROFS", "EINTR"];

/// Calls that get no injected error. The runtime makes them, and the process ends if the kernel refuses one of them,
/// which amounts to a kill; or the kernel never refuses them; or, like close, they take effect whatever they return,
/// while strace would skip them.
const NEVER: [&str; 36] = [
    "arch_prctl", "brk", "clock_gettime", "clock_nanosleep", "close", "close_range", "execve", "exit", "exit_group",
    "futex", "getegid", "geteuid", "getgid", "getpid", "getppid", "getrandom", "gettid", "getuid", "madvise", "mmap",
    "mprotect", "mremap", "munmap", "nanosleep", "poll", "prlimit64", "restart_syscall", "rt_sigaction",
    "rt_sigprocmask", "rt_sigreturn", "sched_getaffinity", "sched_yield", "set_tid_address", "sigaltstack", "umask",
    "uname",
];

/// Returns whether the kernel can fail this call with errors that the helper can handle.
pub fn can_fail(call: &Call) -> bool {
    !NEVER.contains(&call.name.as_str())
}

/// Calls at which nothing is killed. The allocator and the locks make them when they like, so that one of this number need not
/// be come to; and a kill there is one between the calls beside it.
const UNSTEADY: [&str; 9] =
    ["brk", "clock_nanosleep", "futex", "madvise", "mmap", "mprotect", "mremap", "munmap", "restart_syscall"];

/// Returns whether this call is made each time that its operation is.
pub fn is_steady(call: &Call) -> bool {
    !UNSTEADY.contains(&call.name.as_str())
}

/// An operation and one of its system calls.
pub struct Point<'a> {
    /// The operation.
    pub operation: &'a Operation,
    /// The call.
    pub call: Call,
    /// All that were made before it.
    pub before: Vec<Call>,
}

/// The calls that write to a pool, or change what will be written.
const WRITING: [&str; 11] = [
    "fallocate", "fchmod", "fsetxattr", "fsync", "ftruncate", "mkdirat", "pwrite64", "quotactl_fd", "renameat2",
    "syncfs", "unlinkat",
];

/// If the call of a point writes: the first call of each name that writes, from there on.
pub fn lasting(point: &Point<'_>) -> Option<Vec<Call>> {
    let made = |name: &str| point.before.iter().filter(|call| call.name == name).count();
    let next = |name: &str| Call { name: name.to_owned(), number: made(name) + 1 };
    WRITING.contains(&point.call.name.as_str()).then(|| WRITING.map(next).into())
}

/// Performs each operation once, and returns all of their system calls.
pub fn of<'a>(rig: &mut Rig, operations: &'a [Operation]) -> Result<Vec<Point<'a>>> {
    let mut points = Vec::new();
    for operation in operations {
        let found = follow(rig, operation).with_context(|| format!("follow {}", operation.name))?;
        // Not each operation needs the placer, and some only where there are quotas.
        ensure!(!found.is_empty() || operation.actor == Actor::Placer, "{} makes no system call", operation.name);
        let before = |index: usize| found[..index].to_vec();
        let each = found.iter().enumerate();
        points.extend(each.map(|(index, call)| Point { operation, call: call.clone(), before: before(index) }));
    }
    Ok(points)
}

fn follow(rig: &mut Rig, operation: &Operation) -> Result<Vec<Call>> {
    let session = Session::open(rig)?;
    session.prepare(rig, operation)?;
    let tracer = Tracer::follow(&session.threads(operation.actor)?, &rig.work().join("trace"))?;
    session.send(rig, operation)?.map_err(|error| anyhow::anyhow!("{}: {error}", operation.name))?;
    if operation.is_in_background() {
        emptied(rig)?;
    }
    let found = calls(&tracer.end()?);
    drop(session);
    undo(rig, operation)?;
    emptied(rig)?;
    Ok(found)
}

/// Waits until nothing is left in the pool, and everything its volumes used is released.
pub fn emptied(rig: &Rig) -> Result<()> {
    rig.eventually(15, || {
        let left = rig.pool().entries()?;
        ensure!(left.is_empty(), "the pool still holds {left:?}");
        let status = rig.helper()?.pool_status("default")?;
        ensure!(status.emptying == 0, "something is not released: {status:?}");
        Ok(())
    })
}

/// How many points to try.
#[derive(Clone, Copy, Debug)]
pub enum Extent {
    /// A few, evenly spaced: this many on the host, and a sixth of that in the machine.
    Sample(usize),
    /// All of them on the host; in the machine, where a point takes many times as long, the size of a sample on the
    /// host.
    All(usize),
}

impl Extent {
    /// Every point, or some of them at equal intervals: the same ones in each run of the same code.
    pub fn of<T>(self, rig: &Rig, points: Vec<T>) -> Vec<T> {
        let all = points.len();
        let wanted = match (self, rig.run_options.place) {
            (Self::All(_), Place::Host) => all,
            (Self::All(number), Place::Vm) | (Self::Sample(number), Place::Host) => number.min(all),
            (Self::Sample(number), Place::Vm) => number.div_ceil(6).min(all),
        };
        let chosen = |index: usize| (index + 1) * wanted / all > index * wanted / all;
        points.into_iter().enumerate().filter(|(index, _)| chosen(*index)).map(|(_, point)| point).collect()
    }
}

/// The outcome of a matrix.
#[derive(Debug, Default)]
pub struct Tally {
    tried: usize,
    missed: Vec<String>,
    failed: usize,
}

impl Tally {
    /// Adds the outcome of a point: whether the fault occurred, or what is wrong. Returns whether to continue.
    pub fn add(&mut self, point: &str, outcome: &Result<bool>) -> bool {
        self.tried += 1;
        match outcome {
            Ok(true) => {}
            Ok(false) => self.missed.push(point.to_owned()),
            Err(error) => {
                self.failed += 1;
                // Immediately: the run may reach its time limit before its end.
                println!("{point}: {error:#}");
            }
        }
        self.failed < 20
    }

    /// The verdict.
    pub fn judge(self) -> Result<()> {
        let Self { tried, missed, failed } = self;
        println!("{tried} points were tried, {} of which were not come to: {missed:?}", missed.len());
        ensure!(failed == 0, "{failed} of {tried} points failed; they are listed above");
        let number = missed.len();
        // Where few are tried, a few more than a fifth may be among them by chance.
        ensure!(
            number <= tried / 5 + 2,
            "{number} of {tried} calls were not come to: the operations differ from run to run"
        );
        Ok(())
    }
}
