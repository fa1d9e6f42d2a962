//! Lines on their way to standard error. Others decide whether that is read, and no call may wait for them: a thread
//! writes the lines, and those that find the queue full are dropped and counted.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::warn;

use crate::metrics::METRICS;

/// The maximum number of lines that wait.
const LONGEST: usize = 1024;

/// How long the process waits at its end for the last lines to be written.
const PATIENCE: Duration = Duration::from_secs(1);

/// The log's writer, which never blocks.
#[derive(Clone, Debug, Default)]
pub struct Queue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Notified when lines are added, and when they are written.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<Vec<u8>>,
    /// Whether the thread is writing lines that it has taken.
    writing: bool,
    dropped: u64,
}

impl Queue {
    /// Starts the thread that writes the lines.
    pub(super) fn start(&self) -> io::Result<()> {
        let queue = self.clone();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || queue.write_out(&mut io::stderr())).map(drop)
    }

    /// Waits until the lines so far are written, but not for long.
    pub fn flush(&self) {
        let unwritten = |waiting: &mut Waiting| waiting.writing || !waiting.lines.is_empty();
        let _ = self.0.changed.wait_timeout_while(self.waiting(), PATIENCE, unwritten);
    }

    fn write_out(&self, output: &mut impl Write) {
        loop {
            let (lines, dropped) = self.take();
            for line in lines {
                // Standard error is the only place that could report that it does not work.
                let _ = output.write_all(&line);
            }
            if dropped > 0 {
                warn!(dropped, "log lines were dropped because nobody read them");
            }
        }
    }

    /// Waits for lines and takes them all, with the number of those dropped after them.
    fn take(&self) -> (Vec<Vec<u8>>, u64) {
        let mut idle = self.waiting();
        idle.writing = false;
        self.0.changed.notify_all();
        let waiting = self.0.changed.wait_while(idle, |waiting| waiting.lines.is_empty());
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        waiting.writing = true;
        (std::mem::take(&mut waiting.lines), std::mem::take(&mut waiting.dropped))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The log writes each line at once.
impl Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut waiting = self.waiting();
        if waiting.lines.len() < LONGEST {
            waiting.lines.push(line.to_vec());
            self.0.changed.notify_all();
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
    use super::*;

    #[test]
    fn lines_that_find_the_queue_full_are_dropped_and_counted_once() {
        let mut queue = Queue::default();
        for number in 0..LONGEST + 3 {
            queue.write_all(number.to_string().as_bytes()).unwrap();
        }
        let (lines, dropped) = queue.take();
        assert_eq!((lines.len(), dropped), (LONGEST, 3));
        assert_eq!(lines[0], b"0", "the oldest lines stay");
        queue.write_all(b"later").unwrap();
        assert_eq!(queue.take(), (vec![b"later".to_vec()], 0));
    }

    #[test]
    fn the_end_does_not_wait_for_ever() {
        let mut queue = Queue::default();
        let begun = std::time::Instant::now();
        queue.write_all(b"nobody writes this").unwrap();
        Queue::flush(&queue);
        assert!(begun.elapsed() >= PATIENCE && begun.elapsed() < 10 * PATIENCE);
    }
}
