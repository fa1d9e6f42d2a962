//! Claims: sentences that name the tests that show them. On the page for reviewers, a sentence that says *only*, *never* or
//! the like is one, or it is not written: most that were untrue had such a word and no test.

use std::path::Path;

use anyhow::{Result, ensure};
use fs_err as fs;

use super::Section;
use super::tests_by_name;
use crate::policy::files::PAGE;

/// The pages whose claims are listed, and one that only names tests.
const PAGES: [&str; 3] = [PAGE, "docs/why-it-holds.md", "docs/vulnerabilities.md"];
/// What nothing but a test can show.
const ABSOLUTE: [&str; 12] =
    ["all", "always", "any", "each", "every", "never", "no", "nobody", "none", "nothing", "nowhere", "only"];

/// Claims, each with the tests that it names.
///
/// # Errors
/// A sentence when one names no test that exists, or should name one and does not.
pub fn claims(root: &Path) -> Result<Section> {
    let tests = tests_by_name::all(root)?;
    let (mut rows, mut faults) = (Vec::new(), Vec::new());
    for page in PAGES {
        for sentence in sentences(&fs::read_to_string(root.join(page))?) {
            let (named, words) = parts(&sentence);
            let number = |name: &str| tests.iter().filter(|test| test.contains(name)).count();
            let unknown = named.iter().filter(|name| number(name) == 0);
            faults.extend(unknown.map(|name| format!("{page}: no test has {name:?} in its name")));
            let absolute =
                words.iter().find(|word| ABSOLUTE.contains(&&***word)).filter(|_| page == PAGE && named.is_empty());
            faults.extend(absolute.map(|word| format!("{page}: {word:?}, and no test is named: {sentence}")));
            if !named.is_empty() && page != PAGES[2] {
                let sum: usize = named.iter().map(|name| number(name)).sum();
                rows.push(vec![sum.to_string(), unlinked(&sentence)]);
            }
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    let note = format!(
        "{} sentences of {PAGE} and {} that name tests, and how many tests have these names.",
        rows.len(),
        PAGES[1]
    );
    Ok(Section { title: "Claims", note, columns: &["tests", "claim"], rows })
}

/// The sentences of a page, without headings and what is fenced. A cell of a table has its own, after the row's first.
fn sentences(page: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    for line in page.split("\n```").step_by(2).flat_map(str::lines).map(str::trim) {
        if let Some(row) = line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |")) {
            let (first, cells) = row.split_once(" | ").unwrap_or((row, ""));
            blocks.extend(cells.split(" | ").map(|cell| format!("{first}: {cell}")).chain([String::new()]));
        } else if line.is_empty() || line.starts_with('#') {
            blocks.push(String::new());
        } else if let Some(item) = line.strip_prefix("- ") {
            blocks.push(item.to_owned());
        } else if let Some(block) = blocks.last_mut() {
            *block = format!("{block} {line}");
        }
    }
    let sentences = blocks.iter().flat_map(|block| block.split_inclusive(". "));
    sentences.map(|sentence| sentence.trim().to_owned()).filter(|sentence| !sentence.is_empty()).collect()
}

/// The tests that a sentence names, and its words, in lower case.
fn parts(sentence: &str) -> (Vec<String>, Vec<String>) {
    let plain = unlinked(sentence);
    let (mut named, mut words) = (Vec::new(), Vec::new());
    for (index, part) in plain.split('`').enumerate() {
        if index % 2 == 0 {
            words.extend(part.split(|letter: char| !letter.is_alphabetic()).map(str::to_lowercase));
        } else if is_test(part) {
            named.push(part.to_owned());
        }
    }
    (named, words)
}

/// A sentence without the targets of its links.
fn unlinked(sentence: &str) -> String {
    let mut parts = sentence.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    let text = parts.fold(first, |text, part| text + "]" + part.split_once(')').map_or(part, |(_, rest)| rest));
    text.replace(['[', ']'], "")
}

/// Whether this is the name of a test: `theme::what_must_hold`, or one part of it alone if that is a sentence.
fn is_test(text: &str) -> bool {
    let is_name = text.chars().all(|part| part.is_ascii_lowercase() || part.is_ascii_digit() || "_:".contains(part));
    is_name && (text.contains("::") || text.matches('_').count() > 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_its_tests_and_is_told_by_its_words() {
        let page = "# All\n\nOne is [so](a.md#all) (`a::b_c`). Each `x` is\nso.\n- Never.\n\n| a | b |\n|---|---|\n| none | `one_two_three_four` |\n\n```\nno\n```\n";
        let found: Vec<_> = sentences(page).iter().map(|sentence| parts(sentence)).collect();
        let absolute = |(_, words): &(_, Vec<String>)| words.iter().any(|word| ABSOLUTE.contains(&&**word));
        let told = found.iter().map(|one| (one.0.join(" "), absolute(one)));
        let told: Vec<_> = told.filter(|(tests, absolute)| *absolute || !tests.is_empty()).collect();
        let expected = [("a::b_c", false), ("", true), ("", true), ("one_two_three_four", true)];
        assert_eq!(told, expected.map(|(tests, absolute)| (tests.to_owned(), absolute)));
        assert!(!is_test("hostUsers: false") && !is_test("SO_PASSRIGHTS") && !is_test("file_setattr"));
    }
}
