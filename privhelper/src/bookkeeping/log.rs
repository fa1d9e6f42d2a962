//! Log lines on standard error: for the journal with the priority prefix that it reads (sd-daemon(3)), for anybody else
//! with the time and the priority in words.
//!
//! Whether standard error is read is up to others, and no operation may wait for them. Once a thread runs [`write_out`],
//! lines wait in a queue of limited length. What changes something has its place in the queue before it is done; other
//! lines are dropped when the queue is half full, and their number is logged instead. Only a log that nobody reads loses
//! lines of the former kind too: it may not stop the service.
//!
//! The other processes that the keeper forks do not write to it: [the keeper hears them](fork).

mod heard;

use std::collections::VecDeque;
use std::fmt::{Arguments, Display};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use heard::fork;

use crate::sys::clock;
use crate::threads;

/// The longest line in bytes: a pipe takes this much as a whole or not at all (`PIPE_BUF`, pipe(7)).
const MAX_LINE: usize = 4096;
/// How many lines may wait.
const MAX_WAITING: usize = 1024;
/// How many others may wait before a line without a place of its own is dropped.
const MAX_BEFORE_OTHERS: usize = MAX_WAITING / 2;
/// A log is not read if a line could not be written for this long.
const UNREAD: Duration = Duration::from_secs(5);
/// How often at most it is said that lines were dropped.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
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

/// Where lines wait. At start and in the emptier there is no thread that writes them, and each is written immediately.
static QUEUE: LazyLock<Mutex<Queue>> = LazyLock::new(Mutex::default);
/// Whether standard error is the journal (systemd.exec(5)).
pub static IS_JOURNAL: LazyLock<bool> = LazyLock::new(|| {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    rustix::fs::fstat(rustix::stdio::stderr()).is_ok_and(|own| stream == format!("{}:{}", own.st_dev, own.st_ino))
});
/// Whether this process was forked by one that hears it.
static IS_HEARD: AtomicBool = AtomicBool::new(false);
/// Notified when a line waits.
static WAITING: Condvar = Condvar::new();

#[derive(Default)]
struct Queue {
    is_written_out: bool,
    /// Whether the thread that does so runs.
    has_writer: bool,
    lines: VecDeque<String>,
    /// How many places are taken for lines that are yet to come.
    taken: usize,
    /// Since when the present line has been being written.
    writing: Option<Instant>,
    /// How many lines without a place of their own were dropped since that was last reported.
    dropped: u64,
    /// How many lines were lost because nobody read the log.
    lost: u64,
}

/// A place in the log for one line.
#[derive(Debug)]
pub struct Slot {
    is_taken: bool,
}

/// Takes a place in the log; `None` if there is none just now.
pub fn slot() -> Option<Slot> {
    let mut queue = queue();
    let is_taken = queue.waiting() < MAX_WAITING;
    queue.taken = queue.taken.saturating_add(usize::from(is_taken));
    (is_taken || queue.is_unread()).then_some(Slot { is_taken })
}

impl Slot {
    /// Logs the line for which the place was taken.
    pub fn write(mut self, level: Level, text: Arguments<'_>) {
        let (line, mut queue) = (line(level, text), queue());
        if std::mem::take(&mut self.is_taken) {
            queue.taken = queue.taken.saturating_sub(1);
            queue.add(line);
        } else {
            queue.lost = queue.lost.saturating_add(1);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.is_taken {
            let mut queue = queue();
            queue.taken = queue.taken.saturating_sub(1);
        }
    }
}

/// Logs one line, if there is room for it.
pub fn write(level: Level, text: Arguments<'_>) {
    let (line, mut queue) = (line(level, text), queue());
    if !queue.is_written_out {
        put(&line);
    } else if queue.waiting() < MAX_BEFORE_OTHERS {
        queue.add(line);
    } else {
        queue.dropped = queue.dropped.saturating_add(1);
    }
}

/// Logs why the process is about to end, and gives waiting lines a second to be written.
pub fn last_words(why: &str) {
    queue().taken = 0;
    heard::hear_last_words();
    error!("{why}");
    for _ in 0..100 {
        let queue = queue();
        if queue.lines.is_empty() && queue.writing.is_none() {
            break;
        }
        drop(queue);
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut queue = queue();
    if !queue.has_writer {
        // It could not be started.
        let left = std::mem::take(&mut queue.lines);
        drop(queue);
        left.iter().for_each(|line| put(line));
    }
}

/// Makes lines wait from now on, and starts the threads that write them and hear the other processes.
///
/// # Errors
/// A sentence when one cannot be started.
pub fn begin() -> Result<(), String> {
    queue().is_written_out = true;
    threads::spawn(write_out)?;
    if heard::is_anybody() { threads::spawn(heard::hear) } else { Ok(()) }
}

/// Writes waiting lines, for as long as the process lives. Only one thread may do so.
fn write_out() {
    // Rust would write a panic's message itself, and wait for that.
    std::panic::set_hook(Box::new(|panic| last_words(&panic.to_string())));
    let mut reported = None;
    let mut queue = queue();
    queue.has_writer = true;
    loop {
        let next = queue.report(&mut reported, Instant::now()).or_else(|| queue.lines.pop_front());
        queue = match next {
            None => WAITING.wait(queue).unwrap_or_else(PoisonError::into_inner),
            Some(line) => {
                queue.writing = Some(Instant::now());
                drop(queue);
                put(&line);
                let mut queue = self::queue();
                queue.writing = None;
                queue
            }
        };
    }
}

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    fn waiting(&self) -> usize {
        self.lines.len().saturating_add(self.taken)
    }

    fn add(&mut self, line: String) {
        self.lines.push_back(line);
        WAITING.notify_one();
    }

    fn is_unread(&self) -> bool {
        self.writing.is_some_and(|since| since.elapsed() > UNREAD)
    }

    /// The line that says what the log lacks, once in a while.
    fn report(&mut self, reported: &mut Option<Instant>, now: Instant) -> Option<String> {
        let is_due = reported.is_none_or(|last| now.saturating_duration_since(last) >= REPORT_INTERVAL);
        if (self.dropped, self.lost) == (0, 0) || !is_due && !self.lines.is_empty() {
            return None;
        }
        *reported = Some(now);
        let (dropped, lost) = (std::mem::take(&mut self.dropped), std::mem::take(&mut self.lost));
        let what = "bulkhead_privhelper: log lines are missing: those of reads and connections came too fast, or nobody read the log";
        Some(line(Level::Error, format_args!("{what} reads_and_connections={dropped} others={lost}")))
    }
}

/// A path as it may be shown: what anybody may have named is escaped.
pub fn shown(path: &Path) -> impl Display {
    path.to_string_lossy().escape_debug().to_string()
}

fn line(level: Level, text: Arguments<'_>) -> String {
    let begin = if *IS_JOURNAL || IS_HEARD.load(Relaxed) {
        format!("<{}>", level as u8)
    } else {
        format!("{} {level:?} ", clock::now())
    };
    let mut line = format!("{begin}{text}\n");
    if line.len() > MAX_LINE {
        line.truncate(line.floor_char_boundary(MAX_LINE.saturating_sub(CUT.len())));
        line.push_str(CUT);
    }
    line
}

/// Writes one line, in one system call.
#[expect(
    clippy::disallowed_methods,
    reason = "nothing else writes there, and this only before there is a thread for it"
)]
fn put(line: &str) {
    // Standard error is the only place to report that standard error does not work.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_at_its_limit_and_says_so() {
        // The test's own standard error may be the journal.
        let begin = if *IS_JOURNAL { "<6>".len() } else { "2026-01-31T23:59:59.999Z Info ".len() };
        let serving = line(Level::Info, format_args!("serving"));
        assert!(serving.len() == begin + "serving\n".len() && serving.ends_with("serving\n"), "{serving}");
        let longest = "x".repeat(MAX_LINE - 1 - begin);
        assert!(line(Level::Info, format_args!("{longest}")).ends_with(&format!("{longest}\n")));
        for character in ["x", "ü", "𝄞"] {
            let cut = line(Level::Error, format_args!("{}", character.repeat(MAX_LINE)));
            assert!(cut.len() <= MAX_LINE && cut.len() > MAX_LINE - 4 && cut.ends_with("… (cut)\n"), "{cut}");
        }
    }
}
