//! Lines on their way to standard error. Whether that is read is up to others, and no call may wait for them: a thread
//! writes the lines, and lines that find the queue full are dropped and counted.
//!
//! `tracing-appender` limits how many lines wait and not how many bytes, so that long ones could fill the memory.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::warn;

use super::LogFormat;
use super::line::fit;
use crate::metrics::METRICS;

/// How much may wait, in bytes.
const LONGEST: usize = 256 << 10;

/// How long the thread rests after writing: waking it for each line would cost a call more than the line itself does.
const REST: Duration = Duration::from_millis(5);

/// How much memory the thread keeps for later lines.
const MEMORY: usize = 64 << 10;

/// How long the process waits, as it ends, for the last lines to be written.
const PATIENCE: Duration = Duration::from_secs(1);

/// The log's writer, which never blocks.
#[derive(Clone, Debug)]
pub struct Queue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    format: LogFormat,
    waiting: Mutex<Waiting>,
    /// Notified when lines are added and the thread is idle.
    added: Condvar,
    /// Notified when lines are written.
    written: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    text: Vec<u8>,
    /// Whether the thread waits to be notified.
    idle: bool,
    /// Whether the thread is writing lines that it has taken.
    writing: bool,
    dropped: u64,
}

impl Queue {
    /// A queue for lines in this format.
    pub(super) fn new(format: LogFormat) -> Self {
        let (added, written) = (Condvar::new(), Condvar::new());
        Self(Arc::new(Shared { format, waiting: Mutex::default(), added, written }))
    }

    /// Starts the thread that writes the lines.
    pub(super) fn start(&self) -> io::Result<()> {
        let queue = self.clone();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || queue.write_out(&mut io::stderr())).map(drop)
    }

    /// Waits until all lines so far have been written, but not for long.
    pub fn flush(&self) {
        let unwritten = |waiting: &mut Waiting| waiting.writing || !waiting.text.is_empty();
        let _ = self.0.written.wait_timeout_while(self.waiting(), PATIENCE, unwritten);
    }

    fn write_out(&self, output: &mut impl Write) {
        let mut text = Vec::new();
        loop {
            let dropped = self.take(&mut text);
            // Standard error is the only place that could report that it does not work.
            let _ = output.write_all(&text);
            if dropped > 0 {
                warn!(dropped, "log lines were dropped because nobody read them");
            }
            text.clear();
            text.shrink_to(MEMORY);
            std::thread::sleep(REST);
        }
    }

    /// Waits for lines and takes them all into `text`, which is empty; returns the number of those dropped after them.
    fn take(&self, text: &mut Vec<u8>) -> u64 {
        let mut waiting = self.waiting();
        waiting.writing = false;
        waiting.idle = true;
        self.0.written.notify_all();
        let waiting = self.0.added.wait_while(waiting, |waiting| waiting.text.is_empty());
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        waiting.idle = false;
        waiting.writing = true;
        std::mem::swap(text, &mut waiting.text);
        std::mem::take(&mut waiting.dropped)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The logger passes each line in a single write.
impl Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let fitted = fit(self.0.format, line);
        let mut waiting = self.waiting();
        if waiting.text.len() + fitted.len() < LONGEST {
            waiting.text.extend_from_slice(fitted.as_bytes());
            waiting.text.push(b'\n');
            if std::mem::take(&mut waiting.idle) {
                self.0.added.notify_one();
            }
        } else {
            waiting.dropped += 1;
            METRICS.log_lines_dropped.with([]).inc();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::LONGEST as LINE;
    use super::*;

    #[test]
    fn lines_that_find_the_queue_full_are_dropped_and_counted_once() {
        let mut queue = Queue::new(LogFormat::Text);
        let line = [&[b'x'; 1023], b"\n".as_slice()].concat();
        for _ in 0..LONGEST / 1024 + 3 {
            queue.write_all(&line).unwrap();
        }
        let mut text = Vec::new();
        assert_eq!(queue.take(&mut text), 3);
        assert!(text.len() <= LONGEST && text.chunks(1024).all(|kept| kept == line), "{}", text.len());
        text.clear();
        queue.write_all(b"later\n").unwrap();
        assert_eq!((queue.take(&mut text), text.as_slice()), (0, b"later\n".as_slice()));
    }

    #[test]
    fn a_line_is_a_line_whatever_is_in_it() {
        let mut queue = Queue::new(LogFormat::Text);
        queue.write_all(format!("first{}\n", "\nforged".repeat(150_000)).as_bytes()).unwrap();
        queue.write_all(b"second\n").unwrap();
        let mut text = Vec::new();
        assert_eq!(queue.take(&mut text), 0);
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(matches!(lines[..], [first, "second"] if first.starts_with("first\\nforged\\n")), "{}", lines.len());
        assert!(lines.iter().all(|line| line.len() < LINE), "{}", text.len());
    }

    #[test]
    fn the_end_does_not_wait_for_ever() {
        let mut queue = Queue::new(LogFormat::Text);
        let begun = std::time::Instant::now();
        queue.write_all(b"nobody writes this").unwrap();
        Queue::flush(&queue);
        assert!(begun.elapsed() >= PATIENCE && begun.elapsed() < 10 * PATIENCE);
    }
}
