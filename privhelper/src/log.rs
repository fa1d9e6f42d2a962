//! Log lines on standard error, with the priority prefix that journald reads (sd-daemon(3)).
//!
//! Whether standard error is read is up to others, and no operation may wait for them. Once a thread runs
//! [`write_out`], lines wait in a queue of limited length; those that find it full are dropped, and their number is
//! logged instead.

use std::fmt::Arguments;
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// The longest line in bytes: a pipe takes this much as a whole or not at all (`PIPE_BUF`, pipe(7)).
const MAX_LINE: usize = 4096;
/// How many lines may wait.
const MAX_WAITING: usize = 1024;
/// Ends a line that was cut.
const CUT: &str = "… (cut)\n";

/// How severe a line is, as in syslog(3).
#[derive(Clone, Copy, Debug)]
pub enum Level {
    /// Something is not served, or not as it should be.
    Error = 3,
    /// Something failed that will be retried, or that only its caller needs to know about.
    Warning = 4,
    /// Everything is as it should be.
    Info = 6,
}

/// Logs what is not served, or not as it should be: a sentence as for `format!`, then facts as `key=value`.
macro_rules! error {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Error, format_args!("bulkhead_privhelper: {}", format_args!($($line)*))) };
}

/// Logs what failed and will be retried, or what only its caller needs to know about.
macro_rules! warning {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Warning, format_args!("bulkhead_privhelper: {}", format_args!($($line)*))) };
}

/// Logs that everything is as it should be.
macro_rules! info {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Info, format_args!("bulkhead_privhelper: {}", format_args!($($line)*))) };
}

pub(crate) use {error, info, warning};

/// Where lines wait. At start and in the emptier there is no queue, and each line is written immediately.
static QUEUE: OnceLock<SyncSender<String>> = OnceLock::new();
/// How many lines wait or are being written.
static UNWRITTEN: AtomicUsize = AtomicUsize::new(0);
/// How many lines have found the queue full since that was last reported.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Logs one line.
pub fn write(level: Level, text: Arguments<'_>) {
    let line = line(level, text);
    let Some(queue) = QUEUE.get() else { return put(&line) };
    UNWRITTEN.fetch_add(1, Relaxed);
    if queue.try_send(line).is_err() {
        UNWRITTEN.fetch_sub(1, Relaxed);
        DROPPED.fetch_add(1, Relaxed);
    }
}

/// Logs why the process is about to end, and gives waiting lines a second to be written.
pub fn last_words(why: &str) {
    error!("{why}");
    for _ in 0..100 {
        if UNWRITTEN.load(Relaxed) == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Writes waiting lines, for as long as the process lives. Only one thread may do so.
pub fn write_out() {
    // Rust would write a panic's message itself, and wait for that.
    std::panic::set_hook(Box::new(|panic| last_words(&panic.to_string())));
    let (queue, lines) = sync_channel(MAX_WAITING);
    let _ = QUEUE.set(queue);
    while let Ok(line) = lines.try_recv().or_else(|_| {
        say_what_was_dropped();
        lines.recv()
    }) {
        put(&line);
        UNWRITTEN.fetch_sub(1, Relaxed);
    }
}

fn say_what_was_dropped() {
    match DROPPED.swap(0, Relaxed) {
        0 => {}
        dropped => put(&line(
            Level::Error,
            format_args!("bulkhead_privhelper: log lines were dropped, because nobody read them number={dropped}"),
        )),
    }
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
    // Standard error is the only place to report that standard error does not work.
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
}
