//! A flaw of Linux that administrators are told of by the programs of both halves. The helper itself does not ask.

use std::ops::RangeInclusive;

/// The first release with the fix of CVE-2026-80530, of each series that got it.
const FIXED: [((u32, u32), u32); 3] = [((6, 12), 105), ((6, 18), 46), ((7, 1), 10)];
/// The series that began with the flaw.
const FLAWED: RangeInclusive<(u32, u32)> = (6, 10)..=(7, 1);

/// What administrators are told where [`changes_shared_blocks`].
pub const SHARED_BLOCKS: &str = "a pod that writes to a volume may change its snapshots and copies (CVE-2026-80530): run Linux 6.12.105, 6.18.46, 7.1.10 or later, unless your distribution has mended this one";

/// Returns whether Linux of this release (uname(2)) may let a file's writes change blocks that it shares with others on XFS,
/// unless its distribution has mended it.
pub fn changes_shared_blocks(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    let (series, patch) = ((next(), next()), next());
    let fixed = FIXED.iter().find(|(of, _)| *of == series).is_some_and(|(_, first)| patch >= *first);
    FLAWED.contains(&series) && !fixed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_flawed_from_6_10_until_the_fix_of_its_series() {
        for release in
            ["6.10", "6.12.104", "6.12.48+deb13-amd64", "6.17.13", "6.18.44", "6.19.1", "7.0.12", "7.1.9-arch1-1"]
        {
            assert!(changes_shared_blocks(release), "{release}");
        }
        for release in ["5.14.0-611.el9", "6.9.12", "6.12.105", "6.18.46-1", "7.1.10", "7.2.0-rc1", "8.0", "", "next"] {
            assert!(!changes_shared_blocks(release), "{release}");
        }
    }
}
