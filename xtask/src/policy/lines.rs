//! How much a reviewer of the helper has to read, by what its process can do: what serves with the capability to mount (the
//! placer), what empties, and makes mounts, in processes of its own (the workers), what runs without any (the keeper, and what
//! children of the start judge), and what runs only at start, with every privilege. And how many rules hold only because everybody keeps to them.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use super::files::{PAGE, Source, audited};

/// What is read together.
#[derive(Default)]
pub struct Part {
    /// Which process runs it: the name of a budget, or else none of the helper's.
    pub process: String,
    /// What to look for.
    pub question: String,
    /// The files and directories.
    pub places: Vec<String>,
    /// How much it is.
    pub lines: usize,
}

/// What is read together, and in which order.
const ORDER: &str = "privhelper/reading.txt";
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
}

/// The processes, and the rules.
const BUDGETS: [Budget; 5] = [
    Budget { name: "keeper", limit: usize::MAX, goal: 5_000 },
    Budget { name: "placer", limit: 1_788, goal: 1_600 },
    Budget { name: "workers", limit: 379, goal: 350 },
    Budget { name: "start", limit: 1_794, goal: 1_800 },
    Budget { name: "rules kept by a comment only", limit: 4, goal: 4 },
];

/// Counts all, and fails if one is above its limit, or if reviewers are told other sums.
pub fn check(root: &Path) -> Result<String> {
    let (parts, page) = (count(root)?, fs::read_to_string(root.join(PAGE))?);
    let of =
        |process: &str| -> usize { parts.iter().filter(|part| part.process == process).map(|part| part.lines).sum() };
    let mut figures = BUDGETS.map(|Budget { name, .. }| of(name));
    figures[4] = rules(root)?.len();
    let judged = BUDGETS.iter().zip(figures).map(|(budget, number)| budget.judge(number));
    let (judged, above): (Vec<_>, Vec<_>) = judged.partition(Result::is_ok);
    let above = above.into_iter().filter_map(Result::err).map(|error| error.to_string());
    let told = [("host", figures[1..4].iter().sum()), ("tenants", figures[0])];
    let told = told.map(|(sum, lines)| format!("**{sum}**, {} lines", grouped(lines)));
    let untold = told.iter().filter(|told| !page.contains(*told)).map(|told| format!("{PAGE} does not say {told:?}"));
    let faults: Vec<_> = above.chain(untold).collect();
    ensure!(faults.is_empty(), "{}", faults.join("; "));
    let judged: Vec<_> = judged.into_iter().filter_map(Result::ok).collect();
    Ok(format!("{} (tests, comments, blank lines and lines of text aside)", judged.join(", ")))
}

/// All parts, with how many lines each is. Each file is in the one that names it most exactly.
pub fn count(root: &Path) -> Result<Vec<Part>> {
    let mut parts = Vec::<Part>::new();
    for line in fs::read_to_string(root.join(ORDER))?.lines().filter(|line| !line.starts_with('#')) {
        if let Some((process, question)) = line.split_once(": ") {
            let is_known = process == "none" || BUDGETS.iter().any(|budget| budget.name == process);
            ensure!(is_known, "{ORDER}: the helper has no process {process:?}");
            let (process, question) = (process.to_owned(), question.to_owned());
            parts.push(Part { process, question, ..Part::default() });
        } else if let Some(part) = parts.last_mut() {
            part.places.extend(line.split_whitespace().map(str::to_owned));
        }
    }
    for Source { path, text } in audited(root)? {
        let exactly = |part: &Part| part.places.iter().filter(|place| path.starts_with(place)).map(String::len).max();
        let part = parts.iter_mut().max_by_key(|part| exactly(part)).filter(|part| exactly(part).is_some());
        let part = part.with_context(|| format!("{ORDER} does not say which process runs {}", path.display()))?;
        part.lines += lines(&text);
    }
    Ok(parts)
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
pub fn grouped(number: usize) -> String {
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

/// A rule that only a comment holds.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// What holds.
    pub rule: String,
    /// Why the compiler cannot see to it.
    pub reason: String,
}

/// The rules that only a comment holds.
pub fn rules(root: &Path) -> Result<Vec<Rule>> {
    listed(&fs::read_to_string(root.join(RULES))?)
}

/// What stands between a rule and its reason.
const BECAUSE: &str = " Not a type because ";

/// The rules in a list, which is numbered without a gap, and gives a reason for each.
fn listed(text: &str) -> Result<Vec<Rule>> {
    let (_, list) = text.split_once("hold by a comment only").with_context(|| format!("{RULES} lists no rules"))?;
    let mut rules = Vec::<String>::new();
    for line in list.lines().skip(1).map_while(|line| line.strip_prefix("//!")).map(str::trim) {
        let numbered = line.split_once(". ").and_then(|(number, rule)| Some((number.parse::<usize>().ok()?, rule)));
        if let Some((number, rule)) = numbered {
            ensure!(number == rules.len() + 1, "{RULES} has no rule before its rule {number}");
            rules.push(rule.to_owned());
        } else if let Some(rule) = rules.last_mut().filter(|_| !line.is_empty()) {
            *rule += &format!(" {line}");
        }
    }
    let with_reason = |(number, rule): (usize, String)| {
        let (rule, reason) = rule
            .split_once(BECAUSE)
            .with_context(|| format!("{RULES} does not say of its rule {number}:{BECAUSE}..."))?;
        Ok(Rule { rule: rule.to_owned(), reason: reason.trim_end_matches('.').to_owned() })
    };
    (1..).zip(rules).map(with_reason).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_above_its_limit_fails_and_its_neighbour_does_not() {
        let budget = Budget { name: "core", limit: 40, goal: 30 };
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
    fn rules_are_numbered_without_a_gap_and_each_has_its_reason() {
        let one = "//! These hold by a comment only, so keep\n//! them in mind:\n//!\n//! 1. One.\n//!    More.\n//!    Not a type\n//!    because so.\n";
        let two = format!("{one}//! 2. Two. Not a type because not.\n\nmod a;\n");
        let rule = |rule: &str, reason: &str| Rule { rule: rule.to_owned(), reason: reason.to_owned() };
        assert_eq!(listed(&two).expect("two"), [rule("One. More.", "so"), rule("Two.", "not")]);
        let refused = |more: &str| listed(&format!("{one}{more}")).expect_err("a fault").to_string();
        assert!(refused("//! 3. Three. Not a type because not.\n").contains("before its rule 3"));
        assert!(refused("//! 2. Two.\n").contains("of its rule 2"));
        assert!(listed("//! Nothing.\n").is_err());
    }
}
