//! What is running: steps that run in parallel show their output only at the end, so a line now and then reports how
//! far they are.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::step::Step;
use crate::progress::say;

const INTERVAL: Duration = Duration::from_secs(60);
const LINE: usize = 100;

/// The steps that are running, each with its start time and the last line it wrote.
#[derive(Default)]
pub struct Progress {
    running: Mutex<BTreeMap<Step, (Instant, String)>>,
}

impl Progress {
    /// Records that a step has started.
    pub fn begins(&self, step: Step) {
        self.lock().insert(step, (Instant::now(), String::new()));
    }

    /// Records that a step has written a line.
    pub fn wrote(&self, step: Step, line: &str) {
        if let (Some((_, last)), false) = (self.lock().get_mut(&step), line.trim().is_empty()) {
            *last = line.trim().chars().take(LINE).collect();
        }
    }

    /// Records that a step has ended.
    pub fn ended(&self, step: Step) {
        self.lock().remove(&step);
    }

    /// Prints once a minute what is running, until the sender is dropped.
    pub fn say_until_closed(&self, closed: &Receiver<()>) {
        while closed.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            for (step, (start, last)) in self.lock().iter() {
                say(format_args!("{} has run for {} s: {last}", step.name(), start.elapsed().as_secs()));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Step, (Instant, String)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
