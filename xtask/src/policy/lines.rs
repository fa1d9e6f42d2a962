//! How many lines a reviewer of the helper reads: those that stay resident and serve, and those that run only at start.

use std::path::Path;

use anyhow::Result;

use super::files::{Source, below};

/// Where the audited code is.
const AUDITED: [&str; 2] = ["privhelper/src", "protocol/src"];
/// The part of it that runs once, before requests are served.
const START: &str = "privhelper/src/start";
/// The programs beside the helper, which neither serve nor run at its start.
const BESIDE: &str = "privhelper/src/bin";

/// Lines that stay resident and serve, with the protocol's.
const RESIDENT_LIMIT: usize = 3_000;
/// Lines that run only at start.
const START_LIMIT: usize = 1_100;

/// The two figures. One that is above its limit is said to be, and does not fail the check yet.
pub fn check(root: &Path) -> Result<String> {
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
    let figures = format!(
        "{resident} of {RESIDENT_LIMIT} lines stay resident, {start} of {START_LIMIT} run only at start \
         (tests, comments and blank lines aside)"
    );
    let verdict = if resident <= RESIDENT_LIMIT && start <= START_LIMIT { "" } else { ": ABOVE THE LIMIT" };
    Ok(format!("{figures}{verdict}"))
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
    fn comments_blank_lines_and_tests_are_not_counted() {
        let file = "//! A file.\n\nuse a;\n\n    // why\nfn b() {} // here\n#[cfg(test)]\nmod tests {\n}\nfn c() {}\n";
        assert_eq!(lines(file), 2);
        assert_eq!(lines("#[cfg(unix)]\nfn a() {\n\n    \n}\n"), 3);
        assert_eq!(lines(""), 0);
    }
}
