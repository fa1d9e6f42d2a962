//! What runs at the moment: steps that run side by side show their output at their end, and a line now and then says
//! how far they are.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::step::Step;
use crate::progress::say;

const INTERVAL: Duration = Duration::from_secs(60);
const LINE: usize = 100;

/// The steps that run, each with its start and what it wrote last.
#[derive(Default)]
pub struct Progress {
    running: Mutex<BTreeMap<Step, (Instant, String)>>,
}

impl Progress {
    /// Notes that a step begins.
    pub fn begins(&self, step: Step) {
        self.lock().insert(step, (Instant::now(), String::new()));
    }

    /// Notes that a step wrote a line.
    pub fn wrote(&self, step: Step, line: &str) {
        if let (Some((_, last)), false) = (self.lock().get_mut(&step), line.trim().is_empty()) {
            *last = line.trim().chars().take(LINE).collect();
        }
    }

    /// Notes that a step has ended.
    pub fn ended(&self, step: Step) {
        self.lock().remove(&step);
    }

    /// Says once a minute what runs, until the sender is dropped.
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
