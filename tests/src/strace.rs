//! Faults at chosen system calls of a running process, injected with strace(1).

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::observe::processes;
use crate::{pace, wait};

/// How long attaching to many threads may take.
const ATTACHED_WITHIN: Duration = Duration::from_secs(60);

/// A system call of a thread: its name, and its number among the thread's calls of that name, starting from 1.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// As in the kernel's system call table.
    pub name: String,
    /// The first has number 1.
    pub number: usize,
}

/// What happens instead of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process is killed.
    Kill,
    /// The call fails with this error and does nothing.
    Error(&'static str),
}

impl fmt::Display for Call {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.name, self.number)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill => out.write_str("a kill"),
            Self::Error(name) => out.write_str(name),
        }
    }
}

/// The flags that make strace cause the fault.
fn injection(call: &Call, fault: Fault) -> [String; 4] {
    let fault = match fault {
        Fault::Kill => "signal=KILL".to_owned(),
        Fault::Error(name) => format!("error={name}"),
    };
    let Call { name, number } = call;
    ["-e".to_owned(), format!("trace={name}"), "-e".to_owned(), format!("inject={name}:{fault}:when={number}")]
}

/// strace, attached to threads until this value is dropped.
#[derive(Debug)]
pub struct Tracer {
    strace: Child,
    log: PathBuf,
}

impl Tracer {
    /// Follows a thread, and writes all of its calls to `log`.
    pub fn follow(threads: &[i32], log: &Path) -> Result<Self> {
        Self::attach(threads, log, &[])
    }

    /// Follows all threads of these processes, with additional flags for strace, and writes their calls to `log`.
    pub fn follow_processes(processes: &[i32], log: &Path, flags: &[&str]) -> Result<Self> {
        let mut command = Command::new("strace");
        command.arg("-f").args(flags).arg("-o").arg(log);
        for process in processes {
            command.args(["-p", &process.to_string()]);
        }
        let strace = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().context("start strace")?;
        let tracer = Self { strace, log: log.to_owned() };
        wait::until(pace::patience(ATTACHED_WITHIN), || {
            processes.iter().try_for_each(|process| is_followed(*process))
        })?;
        Ok(tracer)
    }

    /// Makes the calls of this name fail with this error in all threads of a process. `when` counts each thread's calls
    /// from now on.
    pub fn fail(process: i32, call: &str, error: &str, when: &str) -> Result<Self> {
        Self::disturb(process, call, &format!("error={error}:when={when}"))
    }

    /// Kills a process at the first call of this name in any of its threads.
    pub fn kill(process: i32, call: &str) -> Result<Self> {
        Self::disturb(process, call, "signal=KILL:when=1")
    }

    /// Delays each call of this name by this much in all threads of a process.
    pub fn delay(process: i32, call: &str, by: Duration) -> Result<Self> {
        Self::disturb(process, call, &format!("delay_enter={}", by.as_micros()))
    }

    fn disturb(process: i32, call: &str, how: &str) -> Result<Self> {
        let (trace, inject) = (format!("trace={call}"), format!("inject={call}:{how}"));
        Self::follow_processes(&of_helper(process), Path::new("/dev/null"), &["-e", &trace, "-e", &inject])
    }

    /// Follows a thread until the call, and causes the fault there.
    pub fn inject(threads: &[i32], log: &Path, call: &Call, fault: Fault) -> Result<Self> {
        Self::attach(threads, log, &injection(call, fault))
    }

    /// Follows a thread, and makes each of these calls and all later ones of its name fail with this error.
    pub fn inject_from(threads: &[i32], log: &Path, calls: &[Call], error: &str) -> Result<Self> {
        let names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
        let each = calls.iter().map(|Call { name, number }| format!("inject={name}:error={error}:when={number}+"));
        let all = [format!("trace={}", names.join(","))].into_iter().chain(each);
        Self::attach(threads, log, &all.flat_map(|flag| ["-e".to_owned(), flag]).collect::<Vec<_>>())
    }

    fn attach(threads: &[i32], log: &Path, flags: &[String]) -> Result<Self> {
        let mut command = Command::new("strace");
        for thread in threads {
            command.args(["-p", &thread.to_string()]);
        }
        command.arg("-o").arg(log).args(flags);
        let mut strace = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().context("start strace")?;
        let mut errors = BufReader::new(strace.stderr.take().context("strace's standard error")?);
        for thread in threads {
            let mut said = String::new();
            errors.read_line(&mut said)?;
            ensure!(said.contains("attached"), "strace does not follow thread {thread}: {said}");
        }
        Ok(Self { strace, log: log.to_owned() })
    }

    /// Detaches from the thread, and returns strace's output.
    pub fn end(mut self) -> Result<String> {
        self.let_go()?;
        fs::read_to_string(&self.log).context("read what strace has written")
    }

    fn let_go(&mut self) -> Result<()> {
        if self.strace.try_wait()?.is_none() {
            kill_process(Pid::from_child(&self.strace), Signal::TERM)?;
        }
        let ended = wait::until(pace::patience(Duration::from_secs(2)), || {
            ensure!(self.strace.try_wait()?.is_some(), "strace goes on");
            Ok(())
        });
        if ended.is_err() {
            // It may wait for what was killed when another process was. The kernel lets go of what it follows.
            self.strace.kill()?;
            self.strace.wait()?;
        }
        Ok(())
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.let_go();
    }
}

/// A process, and its placer if it is a helper.
pub fn of_helper(process: i32) -> Vec<i32> {
    [process].into_iter().chain(processes::placer(process).ok()).collect()
}

/// Whether strace has attached to every thread of a process.
fn is_followed(process: i32) -> Result<()> {
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let status = fs::read_to_string(task?.path().join("status"))?;
        ensure!(!status.contains("TracerPid:\t0\n"), "strace does not follow a thread of process {process}");
    }
    Ok(())
}

/// Wraps the command so that it starts under strace: with all of its calls, and those of its children, in `log`, or
/// with a fault in each thread that reaches the call. The process that is started is the command itself; strace is a
/// grandchild.
pub fn started(command: &Command, log: &Path, fault: Option<(&Call, Fault)>) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-D", "-o"]).arg(log);
    if let Some((call, fault)) = fault {
        strace.args(injection(call, fault));
    }
    strace.arg(command.get_program()).args(command.get_args()).current_dir("/");
    strace
}

/// Returns whether a fault was injected, according to strace's output.
pub fn was_injected(log: &str) -> bool {
    log.contains("(INJECTED)") || log.contains("+++ killed by SIGKILL +++")
}

/// The calls in strace's output, in order. Calls of several threads that have the same name and number count as one, as
/// they do for an injection. Calls that are newer than strace are left out, since it cannot make them fail.
pub fn calls(log: &str) -> Vec<Call> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut calls = Vec::new();
    for line in log.lines() {
        let (thread, line) = line
            .split_once(' ')
            .filter(|(first, _)| first.bytes().all(|byte| byte.is_ascii_digit()))
            .map_or(("", line), |(thread, rest)| (thread, rest.trim_start()));
        let Some((name, _)) = line.split_once('(').filter(|(name, _)| is_name(name)) else { continue };
        let count = counts.entry((thread, name)).or_default();
        *count += 1;
        let call = Call { name: name.to_owned(), number: *count };
        if !calls.contains(&call) {
            calls.push(call);
        }
    }
    calls
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with("syscall_")
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_name_and_thread() {
        let log = "12 openat2(5, \"a(b\", {}) = 6\n12  close(6) = 0\n13 close(6 <unfinished ...>\n12 close(7) = 0\n\
                   13 <... close resumed>) = 0\n12 --- SIGCHLD {si_signo=SIGCHLD} ---\n13 +++ exited with 0 +++\n\
                   12 syscall_0x1c9(0x7ffc, 0, 0, 0) = 0\n";
        let call = |name: &str, number| Call { name: name.to_owned(), number };
        assert_eq!(calls(log), [call("openat2", 1), call("close", 1), call("close", 2)]);
        assert_eq!(calls("recvfrom(5, \"x\", 4096) = 1\nexit_group(0) = ?\n").len(), 2);
    }
}
