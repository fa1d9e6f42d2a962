//! How much a reviewer of the helper has to read, by what its process can do: what serves with the capability to mount (the
//! placer), what empties, and makes mounts, in processes of its own (the workers), what serves without any (the keeper), and
//! what runs only at start, with every privilege. And how many rules hold only because everybody keeps to them.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use super::files::{PAGE, Source, audited, table};

/// What the placer runs, with what that is made of.
const PLACER: [&str; 20] = [
    "privhelper/src/capabilities.rs", "privhelper/src/errors.rs", "privhelper/src/place",
    "privhelper/src/sys/capability.rs", "privhelper/src/sys/error.rs", "privhelper/src/sys/file.rs",
    "privhelper/src/sys/loopdevice.rs", "privhelper/src/sys/mod.rs", "privhelper/src/sys/mount.rs",
    "privhelper/src/sys/packet.rs", "privhelper/src/sys/quota.rs", "privhelper/src/sys/thread.rs",
    "privhelper/src/threads.rs", "protocol/src/bounded.rs", "protocol/src/checked.rs", "protocol/src/codec.rs",
    "protocol/src/error.rs", "protocol/src/name.rs", "protocol/src/target.rs", "protocol/src/volume_id.rs",
];
/// What the emptiers and the mounters run besides.
const WORKERS: [&str; 3] = ["privhelper/src/emptier.rs", "privhelper/src/mounter.rs", "privhelper/src/sys/xfs.rs"];
/// The part of the helper that runs once, before requests are served.
const START: [&str; 6] = [
    "privhelper/src/start", "privhelper/src/main.rs", "privhelper/src/lib.rs", "privhelper/src/sys/landlock.rs",
    "privhelper/src/sys/namespace.rs", "privhelper/src/sys/process.rs",
];
/// What the keeper runs before it serves, when it has dropped everything.
const RECOVERY: [&str; 4] = [
    "privhelper/src/start/recover.rs",
    "privhelper/src/start/recover/published.rs",
    "privhelper/src/start/recover/volumes.rs",
    "privhelper/src/start/welcome.rs",
];
/// The programs shipped with the helper, which neither serve nor run at its start.
const BESIDE: &str = "privhelper/src/bin";
/// Where the rules that only a comment holds are listed.
const RULES: &str = "privhelper/src/state/mod.rs";

/// This file, which has the limits.
const LIMITS: &str = "xtask/src/policy/lines.rs";

/// A figure: what it counts, and its goal. It may not grow, unless it is of what can do nothing to the host.
struct Budget {
    name: &'static str,
    /// The check fails above this. It is lowered along with the figure.
    limit: usize,
    goal: usize,
    /// The files and directories whose lines are counted, unless an earlier budget has them.
    places: &'static [&'static str],
}

/// The rooms as the page has them, the first of which also has what is in no other; and the rules.
const BUDGETS: [Budget; 5] = [
    Budget { name: "keeper", limit: usize::MAX, goal: 5_000, places: &RECOVERY },
    Budget { name: "placer", limit: 2_212, goal: 1_600, places: &PLACER },
    Budget { name: "workers", limit: 367, goal: 350, places: &WORKERS },
    Budget { name: "start", limit: 2_253, goal: 1_800, places: &START },
    Budget { name: "rules kept by a comment only", limit: 13, goal: 8, places: &[] },
];

/// Counts all, and fails if one is above its limit, or if reviewers are told another figure.
pub fn check(root: &Path) -> Result<String> {
    let (counted, page) = (count(root)?, fs::read_to_string(root.join(PAGE))?);
    let budgets = BUDGETS.iter().zip(counted);
    let (judged, above): (Vec<_>, Vec<_>) =
        budgets.map(|(budget, (_, number, _))| budget.judge(number)).partition(Result::is_ok);
    let above = above.into_iter().filter_map(Result::err).map(|error| error.to_string());
    let told = counted[..4].iter().map(|(name, number, _)| format!("**{name}**, {} lines", grouped(*number)));
    let untold = told.filter(|told| !page.contains(told)).map(|told| format!("{PAGE} does not say {told:?}"));
    let (rooms, rows) = (counted[..4].iter().map(|(_, number, _)| number).sum::<usize>(), in_rows(root)?);
    let sum = format!("{PAGE}: the rows of what to read, in order, add up to {rows}, and the rooms to {rooms}");
    let faults: Vec<_> = above.chain(untold).chain((rooms != rows).then_some(sum)).collect();
    ensure!(faults.is_empty(), "{}", faults.join("; "));
    let judged: Vec<_> = judged.into_iter().filter_map(Result::ok).collect();
    Ok(format!("{} (tests, comments, blank lines and lines of text aside)", judged.join(", ")))
}

/// The sum of the lines in the page's table of what to read.
fn in_rows(root: &Path) -> Result<usize> {
    let rows = table(root, "| read, in this order |")?;
    let figures = rows.iter().map(|row| row.get(1).map_or("", String::as_str).replace(',', "").parse::<usize>());
    Ok(figures.sum::<Result<usize, _>>()?)
}

/// The figures: what they count, how many there are, and the goal.
pub fn count(root: &Path) -> Result<[(&'static str, usize, usize); 5]> {
    let mut figures = BUDGETS.map(|Budget { name, goal, .. }| (name, 0, goal));
    for Source { path, text } in audited(root)? {
        let has = |budget: &Budget| budget.places.iter().any(|place| path.starts_with(place));
        if !path.starts_with(BESIDE) {
            figures[BUDGETS.iter().position(has).unwrap_or(0)].1 += lines(&text);
        }
    }
    figures[4].1 = rules(&fs::read_to_string(root.join(RULES))?)?;
    Ok(figures)
}

impl Budget {
    fn judge(&self, number: usize) -> Result<String> {
        let Budget { name, limit, goal, .. } = self;
        ensure!(
            number <= *limit,
            "{name}: {number}, and the limit is {limit} ({LIMITS}): a reviewer has to read them all"
        );
        Ok(format!("{name} {number} (goal {goal})"))
    }
}

/// A number as it is written in the pages.
fn grouped(number: usize) -> String {
    match (number / 1000, number % 1000) {
        (0, rest) => rest.to_string(),
        (thousands, rest) => format!("{thousands},{rest:03}"),
    }
}

/// The lines of code, without tests, comments, blank lines, and lines that are nothing but text: reasons and messages.
fn lines(text: &str) -> usize {
    let mut number = 0;
    let mut rest = text.lines();
    while let Some(line) = rest.next() {
        let code = line.trim_start();
        if code.starts_with("#[cfg(test)]") {
            // The item that follows, to the end of its block.
            let end = format!("{}}}", &line[..line.len() - code.len()]);
            let Some(item) = rest.by_ref().find(|line| !line.trim_start().starts_with(['#', '/'])) else { break };
            if !item.ends_with([';', ',']) && !item.ends_with('}') {
                rest.by_ref().find(|line| *line == end);
            }
        } else if !code.is_empty() && !code.starts_with("//") && !is_text(code) {
            number += 1;
        }
    }
    number
}

/// Returns whether a line is a string and nothing else.
fn is_text(code: &str) -> bool {
    let inner = code.trim_end_matches([',', ')', ';', ' ']).strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.is_some_and(|inner| !inner.replace("\\\"", "").contains('"'))
}

/// The rules in the list, which is numbered without a gap.
fn rules(text: &str) -> Result<usize> {
    let (_, list) = text.split_once("hold by a comment only").with_context(|| format!("{RULES} lists no rules"))?;
    let numbers = list.lines().filter_map(|line| line.strip_prefix("//! ")?.split_once(". ")?.0.parse().ok());
    let numbers: Vec<usize> = numbers.collect();
    ensure!(numbers.iter().copied().eq(1..=numbers.len()), "{RULES} numbers its rules {numbers:?}");
    Ok(numbers.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_above_its_limit_fails_and_its_neighbour_does_not() {
        let budget = Budget { name: "core", limit: 40, goal: 30, places: &[] };
        assert_eq!(budget.judge(40).expect("at the limit"), "core 40 (goal 30)");
        assert!(budget.judge(41).unwrap_err().to_string().contains("core: 41"));
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!([999, 1000, 4_061].map(grouped), ["999", "1,000", "4,061"]);
    }

    #[test]
    fn comments_blank_lines_tests_and_texts_are_not_counted() {
        let file =
            "//! A file.\n\nuse a;\n\n    // why\nfn b() {} // here\n#[cfg(test)]\nmod tests {\n    x\n}\nfn c() {}\n";
        assert_eq!(lines(file), 3);
        assert_eq!(lines("impl A {\n    #[cfg(test)]\n    fn a() {\n        b\n    }\n    fn c() {}\n}\n"), 3);
        assert_eq!(lines("#[cfg(test)]\nmod tests;\nfn a() {}\n"), 1);
        assert_eq!(lines("#[cfg(unix)]\nfn a() {\n\n    \n}\n"), 3);
        assert_eq!(
            lines("f(\n    \"a text, and \\\"more\\\"\",\n    \"another\"\n);\ng(\"a\", \"b\")\n\"a\".b()\n"),
            4
        );
        assert_eq!(lines(""), 0);
    }

    #[test]
    fn rules_are_numbered_without_a_gap() {
        assert_eq!(
            rules("//! These hold by a comment only:\n//!\n//! 1. One.\n//!    More.\n//! 2. Two.\n").unwrap(),
            2
        );
        assert!(rules("//! These hold by a comment only:\n//! 1. One.\n//! 3. Three.\n").is_err());
        assert!(rules("//! Nothing.\n").is_err());
    }
}
