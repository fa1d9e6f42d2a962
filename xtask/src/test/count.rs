//! Passed and failed tests, as test programs report them.

use std::fmt;

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

    /// The count in a line such as `3 passed, 0 failed`, `test result: ok. 3 passed; 0 failed` or `3 Passed | 0
    /// Failed`.
    pub fn of_line(line: &str) -> Option<Count> {
        let line = line.to_ascii_lowercase();
        let words: Vec<&str> =
            line.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
        let before = |name| words.windows(2).find_map(|pair| (pair[1] == name).then(|| pair[0].parse().ok())?);
        Some(Count { passed: before("passed")?, failed: before("failed")? })
    }
}
