//! The documentation quotes what the programs print: the messages in docs/errors.md, and the headings of tables in
//! samples of output.

use std::collections::BTreeSet;

use super::read;
use super::texts::{is_in, sources, texts};

const INDEX: &str = "docs/errors.md";

/// Pages with samples of output.
const SAMPLES: [&str; 2] = ["docs/operate.md", "docs/kubernetes.md"];

/// The shortest part of a quote that tells where it comes from.
const TELLING: usize = 5;

#[test]
fn messages_in_the_index_are_in_the_sources() {
    let page = read(INDEX);
    // A single word is the name of something.
    let quotes: Vec<_> = quoted(&page).into_iter().filter(|quote| quote.contains(' ')).collect();
    assert!(quotes.len() > 200, "only {} messages were found", quotes.len());
    let texts = texts();
    let is_vague = |quote: &str| quote.split('…').all(|part| part.trim().len() < TELLING);
    let is_known = |quote: &&str| !is_vague(quote) && texts.iter().any(|text| is_in(quote, text));
    let unknown: Vec<_> = quotes.into_iter().filter(|quote| !is_known(quote)).collect();
    assert!(unknown.is_empty(), "{INDEX} quotes what no program says:\n{}", unknown.join("\n"));
}

/// Operators look for what `kubectl describe` shows.
#[test]
fn every_reason_of_an_event_is_in_the_index() {
    let source = read("frontend/src/kubernetes/api/events.rs");
    let (_, after) = source.split_once("pub enum Reason {\n").expect("the reasons");
    let (reasons, _) = after.split_once('}').expect("the end of the reasons");
    let names: Vec<_> = reasons.lines().filter_map(|line| line.trim().strip_suffix(',')).collect();
    assert!(names.len() > 10 && !names.iter().any(|name| name.contains(' ')), "{names:?}");
    let page = read(INDEX);
    let quoted = quoted(&page);
    let missing: Vec<_> = names.into_iter().filter(|name| !quoted.contains(name)).collect();
    assert!(missing.is_empty(), "{INDEX} lacks these reasons of events: {missing:?}");
}

#[test]
fn headings_of_samples_are_those_of_the_tools() {
    let printed = headings();
    assert!(printed.len() > 5, "{printed:?}");
    let mut seen = 0;
    for page in SAMPLES {
        for heading in read(page).lines().filter(|line| is_heading(line)) {
            let columns: Vec<_> = heading.split_whitespace().map(str::to_lowercase).collect();
            assert!(printed.iter().any(|known| known.starts_with(&columns)), "{page}: no tool prints {heading}");
            seen += 1;
        }
    }
    assert!(seen > 5, "only {seen} headings were found");
}

/// Returns what is quoted where messages are: before the colon of each entry of a list, in the first cell of each row,
/// and in sentences if `…` stands for the rest.
fn quoted(page: &str) -> Vec<&str> {
    let mut quoted = Vec::new();
    for line in page.lines() {
        let entry = line.strip_prefix("- `").and_then(|_| line.split("`: ").next());
        let row = line.strip_prefix("| ").and_then(|row| row.split(" | ").next());
        let index = entry.or(row);
        let spans = index.unwrap_or(line).split('`').skip(1).step_by(2);
        quoted.extend(spans.filter(|span| index.is_some() || span.contains('…')));
    }
    quoted
}

/// A line of at least three words in capitals, above the rows of a table.
fn is_heading(line: &str) -> bool {
    let words: Vec<_> = line.split_whitespace().collect();
    let is_name = |word: &&str| word.chars().all(|letter| letter.is_ascii_uppercase() || letter == '-');
    words.len() > 2 && words.iter().all(is_name)
}

/// All lists of names in the sources of the tools: among them are the headings of their tables.
fn headings() -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    for source in sources(&["frontend/bulkheadctl/src", "frontend/kubectl-bulkhead/src"]) {
        for list in source.split('[').skip(1).filter_map(|rest| rest.split_once(']').map(|(list, _)| list)) {
            let names: Option<Vec<_>> = list.trim().trim_end_matches(',').split(',').map(name).collect();
            found.extend(names.filter(|names| names.len() > 2));
        }
    }
    found
}

fn name(item: &str) -> Option<String> {
    let name = item.trim().strip_prefix('"')?.strip_suffix('"')?;
    (!name.is_empty() && !name.contains('"')).then(|| name.to_owned())
}
