//! How long each test took, and how much of the processors.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How many of the slowest tests are printed.
const PRINTED: usize = 10;

/// How long the tests of a run took.
#[derive(Debug, Default)]
pub struct Times {
    taken: Mutex<Vec<(Duration, String)>>,
    calculated: Mutex<Vec<(Duration, String)>>,
}

impl Times {
    /// Adds the time of one test.
    pub fn add(&self, name: &str, time: Duration) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).push((time, name.to_owned()));
    }

    /// Adds for how long the processes of one test have had a processor.
    pub fn add_processors(&self, name: &str, time: Duration) {
        self.calculated.lock().unwrap_or_else(PoisonError::into_inner).push((time, name.to_owned()));
    }

    /// Prints a line `slowest: 12.34 s theme::case` for each of the ten slowest, and the total time of all tests.
    pub fn print_slowest(&self) {
        let taken = self.slowest_first();
        for (time, name) in taken.iter().take(PRINTED) {
            println!("slowest: {:.2} s {name}", time.as_secs_f64());
        }
        let sum: Duration = taken.iter().map(|(time, _)| *time).sum();
        println!("{} tests took {:.1} s", taken.len(), sum.as_secs_f64());
    }

    /// Prints a line `time: 12.34 s theme::case` for each, and one with `processors`, which `cargo xtask test` collects.
    pub fn print_each(&self) {
        for (time, name) in self.slowest_first() {
            println!("time: {:.2} s {name}", time.as_secs_f64());
        }
        for (time, name) in self.calculated.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            println!("processors: {:.2} s {name}", time.as_secs_f64());
        }
    }

    fn slowest_first(&self) -> Vec<(Duration, String)> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone();
        taken.sort_by(|left, right| right.cmp(left));
        taken
    }
}
