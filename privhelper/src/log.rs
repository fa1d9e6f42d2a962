//! Log lines on standard error, with the priority prefix that journald reads (sd-daemon(3)).
//!
//! Others decide whether standard error is read, and no operation may wait for them. Once a thread runs [`write_out`],
//! lines wait in a queue of limited length; those that find it full are dropped, and their number is logged instead.

use std::fmt::Arguments;
use std::io::Write as _;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The longest line in bytes: what a pipe takes as a whole or not at all (`PIPE_BUF`, pipe(7)).
const MAX_LINE: usize = 4096;
/// How many lines wait at most.
const MAX_WAITING: usize = 1024;
/// Ends a line that was cut.
const CUT: &str = "… (cut)\n";

/// How much a line matters, as in syslog(3).
#[derive(Clone, Copy, Debug)]
pub enum Level {
    /// Something is not served, or not as it should be.
    Error = 3,
    /// Something failed that is repeated, or that only its caller has to know.
    Warning = 4,
    /// All is as it should be.
    Info = 6,
}

/// Logs what is not served, or not as it should be: a sentence as for `format!`, then facts as `key=value`.
macro_rules! error {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Error, format_args!("bulkhead_privhelper: {}", format_args!($($line)*))) };
}

/// Logs what failed and is repeated, or what only its caller has to know.
macro_rules! warning {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Warning, format_args!("bulkhead_privhelper: {}", format_args!($($line)*))) };
}

/// Logs that all is as it should be.
macro_rules! info {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Info, format_args!("bulkhead_privhelper: {}", format_args!($($line)*))) };
}

pub(crate) use {error, info, warning};

/// The lines that wait.
static WAITING: Mutex<Waiting> = Mutex::new(Waiting { writer: Writer::Nobody, lines: Vec::new(), dropped: 0 });
/// Notified when lines are added, and when they are written.
static CHANGED: Condvar = Condvar::new();

#[derive(Debug)]
struct Waiting {
    writer: Writer,
    lines: Vec<String>,
    /// Lines since then that are not in the queue.
    dropped: u64,
}

/// What the thread that writes the lines does.
#[derive(Debug, PartialEq, Eq)]
enum Writer {
    /// It does not exist: at start and in the emptier, each line is written at once.
    Nobody,
    /// It waits for lines.
    Idle,
    /// It writes.
    Busy,
}

/// Logs one line.
pub fn write(level: Level, text: Arguments<'_>) {
    let line = line(level, text);
    let mut waiting = waiting();
    match waiting.writer {
        Writer::Nobody => {
            drop(waiting);
            put(&line);
        }
        Writer::Idle | Writer::Busy => {
            waiting.add(line);
            CHANGED.notify_all();
        }
    }
}

/// Logs why the process is about to end, and gives the lines that wait a moment to be written.
pub fn last_words(why: &str) {
    error!("{why}");
    let unwritten = |waiting: &mut Waiting| waiting.writer == Writer::Busy || !waiting.lines.is_empty();
    let _ = CHANGED.wait_timeout_while(waiting(), Duration::from_secs(1), unwritten);
}

/// Writes the lines that wait, for as long as the process lives.
pub fn write_out() {
    // Rust would write the message of a panic itself, and wait.
    std::panic::set_hook(Box::new(|panic| last_words(&panic.to_string())));
    loop {
        let mut idle = waiting();
        idle.writer = Writer::Idle;
        CHANGED.notify_all();
        let mut waiting =
            CHANGED.wait_while(idle, |waiting| waiting.lines.is_empty()).unwrap_or_else(PoisonError::into_inner);
        waiting.writer = Writer::Busy;
        let lines = waiting.take();
        drop(waiting);
        lines.iter().for_each(|line| put(line));
    }
}

impl Waiting {
    fn add(&mut self, line: String) {
        if self.lines.len() < MAX_WAITING {
            self.lines.push(line);
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// Takes all lines, the last of which says how many others were dropped after them.
    fn take(&mut self) -> Vec<String> {
        let mut lines = std::mem::take(&mut self.lines);
        match std::mem::take(&mut self.dropped) {
            0 => {}
            dropped => {
                let text = format_args!(
                    "bulkhead_privhelper: log lines were dropped, because nobody read them number={dropped}"
                );
                lines.push(line(Level::Error, text));
            }
        }
        lines
    }
}

fn waiting() -> MutexGuard<'static, Waiting> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn line(level: Level, text: Arguments<'_>) -> String {
    let mut line = format!("<{}>{text}\n", level as u8);
    if line.len() > MAX_LINE {
        line.truncate(line.floor_char_boundary(MAX_LINE.saturating_sub(CUT.len())));
        line.push_str(CUT);
    }
    line
}

/// Writes one line, in one system call.
fn put(line: &str) {
    // Standard error is the only place that could say that standard error does not work.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_at_its_limit_and_says_so() {
        assert_eq!(line(Level::Info, format_args!("serving")), "<6>serving\n");
        let longest = "x".repeat(MAX_LINE - 4);
        assert_eq!(line(Level::Info, format_args!("{longest}")), format!("<6>{longest}\n"));
        for character in ["x", "ü", "𝄞"] {
            let cut = line(Level::Error, format_args!("{}", character.repeat(MAX_LINE)));
            assert!(cut.len() <= MAX_LINE && cut.len() > MAX_LINE - 4 && cut.ends_with("… (cut)\n"), "{cut}");
        }
    }

    #[test]
    fn lines_that_find_the_queue_full_are_dropped_and_counted() {
        let mut waiting = Waiting { writer: Writer::Busy, lines: Vec::new(), dropped: 0 };
        for number in 0..MAX_WAITING + 3 {
            waiting.add(number.to_string());
        }
        let lines = waiting.take();
        assert_eq!(lines.len(), MAX_WAITING + 1);
        assert_eq!(lines[MAX_WAITING - 1], (MAX_WAITING - 1).to_string(), "the oldest lines stay");
        assert!(lines[MAX_WAITING].starts_with("<3>") && lines[MAX_WAITING].ends_with("number=3\n"), "{lines:?}");
        waiting.add("later".to_owned());
        assert_eq!(waiting.take(), ["later"], "it is said once");
    }
}
