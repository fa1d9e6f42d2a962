//! How many tests passed and failed, read from what a test program writes.

use std::fmt;
use std::process::ExitStatus;

use anyhow::{Context, Result, ensure};

/// Passed and failed tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Passed.
    pub passed: u64,
    /// Failed.
    pub failed: u64,
}

impl fmt::Display for Count {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} passed, {} failed", self.passed, self.failed)
    }
}

impl Count {
    /// Adds another count.
    pub fn add(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// The count that a line tells: `3 passed, 0 failed`, `test result: ok. 3 passed; 0 failed`, `3 Passed | 0 Failed`.
    fn of_line(line: &str) -> Option<Count> {
        let line = line.to_ascii_lowercase();
        let words: Vec<&str> =
            line.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
        let before = |name| words.windows(2).find_map(|pair| (pair[1] == name).then(|| pair[0].parse().ok())?);
        Some(Count { passed: before("passed")?, failed: before("failed")? })
    }
}

/// Collects the counts in an output that comes in pieces.
#[derive(Default)]
pub struct Counter {
    line: Vec<u8>,
    seen: Vec<Count>,
}

impl Counter {
    /// Adds output.
    pub fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            self.seen.extend(Count::of_line(&String::from_utf8_lossy(&self.line)));
            self.line.clear();
        }
    }

    /// The count that is meant, which must agree with how the program ended.
    pub fn verdict(&self, status: ExitStatus, meant: fn(&Self) -> Option<Count>) -> Result<Count> {
        let count = meant(self).with_context(|| format!("told no number of tests; it ended with {status}"))?;
        ensure!(status.success() || count.failed > 0, "ended with {status} after {count}");
        Ok(count)
    }

    /// All counts together, for a program that tells one for each of its parts; none if there was none.
    pub fn sum(&self) -> Option<Count> {
        self.seen.iter().copied().reduce(|mut sum, count| {
            sum.add(count);
            sum
        })
    }

    /// The last count, for a program that ends with its total.
    pub fn last(&self) -> Option<Count> {
        self.seen.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_several_programs() {
        let mut counter = Counter::default();
        counter
            .push(b"running 3 tests\ntest result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; finished in 0.01s\n");
        counter.push(b"FAIL! -- 70 Passed | 2 Failed | 1 Pending | 20 Skipped\nnothing passed");
        counter.push(b"\n5 passed, 1 fa");
        counter.push(b"iled\n");
        let counts = [(3, 0), (70, 2), (5, 1)].map(|(passed, failed)| Count { passed, failed });
        assert_eq!(counter.seen, counts);
        assert_eq!(counter.last(), Some(counts[2]));
        assert_eq!(counter.sum(), Some(Count { passed: 78, failed: 3 }));
    }
}
