//! How many lines a reviewer of the helper has to read: those that stay resident and serve, and those that run only at
//! start.

use std::path::Path;

use anyhow::{Result, ensure};

use super::AUDITED;
use super::files::{Source, below};

/// The part of the helper that runs once, before requests are served.
const START: &str = "privhelper/src/start";
/// The programs shipped with the helper, which neither serve nor run at its start.
const BESIDE: &str = "privhelper/src/bin";

/// A figure that may not grow: what it counts, and its goal.
struct Budget {
    name: &'static str,
    /// The check fails above this. It is lowered along with the figure.
    limit: usize,
    goal: usize,
}

const RESIDENT: Budget = Budget { name: "stay resident", limit: 4_396, goal: 3_000 };
const AT_START: Budget = Budget { name: "run only at start", limit: 1_763, goal: 1_100 };

/// Counts both, and fails if either is above its limit.
pub fn check(root: &Path) -> Result<String> {
    let [(_, resident, _), (_, start, _)] = count(root)?;
    Ok(format!("{}, {} (tests, comments and blank lines aside)", RESIDENT.judge(resident)?, AT_START.judge(start)?))
}

/// The two figures: which lines they count, how many there are, and the goal.
pub fn count(root: &Path) -> Result<[(&'static str, usize, usize); 2]> {
    let (mut resident, mut start) = (0, 0);
    for directory in AUDITED {
        for Source { path, text } in below(root, directory)? {
            if path.starts_with(START) {
                start += lines(&text);
            } else if !path.starts_with(BESIDE) {
                resident += lines(&text);
            }
        }
    }
    Ok([(RESIDENT.name, resident, RESIDENT.goal), (AT_START.name, start, AT_START.goal)])
}

impl Budget {
    fn judge(&self, lines: usize) -> Result<String> {
        let Budget { name, limit, goal } = self;
        ensure!(lines <= *limit, "{lines} lines {name}, and the limit is {limit}: a reviewer has to read them all");
        Ok(format!("{lines} lines {name} (goal {goal})"))
    }
}

/// The lines of code up to the first test, without comments and blank lines.
fn lines(text: &str) -> usize {
    let code = text.lines().map(str::trim_start).take_while(|line| !line.starts_with("#[cfg(test)]"));
    code.filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_above_its_limit_fails_and_its_neighbour_does_not() {
        let budget = Budget { name: "stay resident", limit: 40, goal: 30 };
        assert_eq!(budget.judge(40).expect("at the limit"), "40 lines stay resident (goal 30)");
        assert!(budget.judge(41).is_err());
        assert!(AT_START.judge(AT_START.limit + 1).unwrap_err().to_string().contains("run only at start"));
    }

    #[test]
    fn comments_blank_lines_and_tests_are_not_counted() {
        let file = "//! A file.\n\nuse a;\n\n    // why\nfn b() {} // here\n#[cfg(test)]\nmod tests {\n}\nfn c() {}\n";
        assert_eq!(lines(file), 2);
        assert_eq!(lines("#[cfg(unix)]\nfn a() {\n\n    \n}\n"), 3);
        assert_eq!(lines(""), 0);
    }
}
