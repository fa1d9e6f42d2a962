//! The inodes of a pool's filesystem.

use std::fmt;

/// When fewer of a hundred inodes are free, they are running out. The alert `BulkheadPoolInodesRunOut` says the same.
const FEW_PERCENT: u64 = 5;

/// The inodes of a filesystem. XFS makes them from free space, and those that it could still make are among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeCount {
    /// All of them.
    pub total: u64,
    /// Those that no file has.
    pub free: u64,
}

impl InodeCount {
    /// Returns how many of a hundred are free, rounded down.
    pub fn free_percent(self) -> u64 {
        let percent = u128::from(self.free.min(self.total)) * 100 / u128::from(self.total.max(1));
        u64::try_from(percent).unwrap_or(100)
    }

    /// Returns what to say if they are running out.
    pub fn shortage(self) -> Option<String> {
        let Self { total, free } = self;
        (self.free_percent() < FEW_PERCENT).then(|| {
            format!(
                "only {free} of the {total} inodes of its filesystem are free: delete files or volumes before none is"
            )
        })
    }
}

/// The share that is free, for a cell of a table.
impl fmt::Display for InodeCount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}%", self.free_percent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_told_greater_than_it_is() {
        let share = |free, total| InodeCount { total, free }.to_string();
        assert_eq!([share(0, 7), share(1, 1000), share(999, 1000), share(7, 7)], ["0%", "0%", "99%", "100%"]);
        assert_eq!([share(u64::MAX, u64::MAX), share(9, 7), share(0, 0)], ["100%", "100%", "0%"]);
    }

    #[test]
    fn they_run_out_before_the_last_one_is_taken() {
        let shortage = |free| InodeCount { total: 1000, free }.shortage();
        assert_eq!(shortage(50), None);
        assert!(shortage(49).is_some_and(|told| told.starts_with("only 49 of the 1000 inodes")));
    }
}
