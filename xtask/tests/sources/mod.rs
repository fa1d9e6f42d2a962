//! The texts in the sources of the programs: what they may print.

use std::fs;
use std::path::{Path, PathBuf};

/// What stands for a value in a text.
const VALUE: char = '\0';

/// Where the unit tests of a file begin.
const UNIT_TESTS: &str = "\n#[cfg(test)]\nmod tests {";

/// A file of the project, from its root.
pub fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()))
}

/// Where the sources of the shipped programs are.
const SOURCES: [&str; 7] = [
    "frontend/bulkheadctl/src", "frontend/console/src", "frontend/kubectl-bulkhead/src", "frontend/model/src",
    "frontend/src", "privhelper/src", "protocol/src",
];

/// Where the manifests of the admission policies are.
const MANIFESTS: &str = "deploy/kubernetes/base";

/// The texts between double quotes in all sources of the shipped programs, with each placeholder as [`VALUE`], and what
/// the API server says for the admission policies.
pub fn texts() -> Vec<String> {
    let sources = files(&SOURCES);
    let mut texts: Vec<_> = sources.iter().flat_map(|source| texts_in(source)).collect();
    for entry in fs::read_dir(root().join(MANIFESTS)).expect("list the manifests") {
        let manifest = fs::read_to_string(entry.expect("an entry").path()).expect("a manifest");
        let messages = manifest.lines().filter_map(|line| line.trim().strip_prefix("message: "));
        texts.extend(messages.map(str::to_owned));
    }
    texts
}

/// The contents of all Rust files below these directories, without unit tests.
pub fn files(directories: &[&str]) -> Vec<String> {
    let mut waiting: Vec<PathBuf> = directories.iter().map(|directory| root().join(directory)).collect();
    let mut contents = Vec::new();
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).unwrap_or_else(|error| panic!("list {}: {error}", directory.display())) {
            let path = entry.expect("an entry").path();
            let is_code = path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs");
            if path.is_dir() {
                waiting.push(path);
            } else if is_code {
                let source = fs::read_to_string(&path).expect("a source file");
                contents.push(source.split(UNIT_TESTS).next().unwrap_or_default().to_owned());
            }
        }
    }
    assert!(contents.len() > 10, "only {} files were found below {directories:?}", contents.len());
    contents
}

/// Returns whether `quote`, in which `…` stands for anything, is in `text`. Nothing else may stand for a value.
pub fn is_in(quote: &str, text: &str) -> bool {
    let mut rest = text;
    quote.split('…').all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The texts of a source file. Comments may contain an odd number of quotes, so their lines are left out.
fn texts_in(source: &str) -> Vec<String> {
    let mut texts = Vec::new();
    let code: Vec<&str> = source.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    let mut rest = code.as_str();
    while let Some(start) = rest.find(['"', '\'']) {
        let (before, found) = rest.split_at(start);
        if let Some(quoted) = found.strip_prefix('"') {
            let hashes = before.len() - before.trim_end_matches('#').len();
            let is_raw = before.trim_end_matches('#').ends_with('r');
            let (text, after) = if is_raw { raw(quoted, hashes) } else { unescaped(quoted) };
            texts.push(without_placeholders(&text));
            rest = after;
        } else {
            rest = after_character(&found[1..]);
        }
    }
    texts
}

/// Returns what follows a single quote: a character, which may be a double quote, or a lifetime.
fn after_character(rest: &str) -> &str {
    let is_escape = rest.starts_with('\\');
    let length = rest.chars().next().map_or(0, char::len_utf8);
    let end = if is_escape { rest[2..].find('\'').map(|end| end + 2) } else { Some(length) };
    end.and_then(|end| rest[end..].strip_prefix('\'')).unwrap_or(rest)
}

fn raw(quoted: &str, hashes: usize) -> (String, &str) {
    let end = format!("\"{}", "#".repeat(hashes));
    let (text, after) = quoted.split_once(&end).expect("the end of a raw text");
    (text.to_owned(), after)
}

/// A text up to its closing quote, as the compiler reads it.
fn unescaped(quoted: &str) -> (String, &str) {
    let mut text = String::new();
    let mut rest = quoted.chars();
    while let Some(character) = rest.next() {
        match character {
            '"' => return (text, rest.as_str()),
            '\\' => match rest.next() {
                // The next line goes on where its first word begins.
                Some('\n') => rest = rest.as_str().trim_start().chars(),
                Some('n') => text.push('\n'),
                Some(other) => text.push(other),
                None => break,
            },
            other => text.push(other),
        }
    }
    panic!("a text has no end: {:?}", &text[..text.len().min(80)]);
}

fn without_placeholders(text: &str) -> String {
    let mut parts = text.split('{');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push(VALUE);
        plain.push_str(part.split_once('}').map_or(part, |(_, after)| after));
    }
    plain
}

#[test]
fn texts_are_found_in_code() {
    let source = r####"
        // Isn't this "a comment"?
        fn f<'a>() { g('"', '\'', "pool {name} is \"full\": {}; \
            delete", r#"raw "text""#) }
    "####;
    let found = texts_in(source);
    assert_eq!(found, ["pool \0 is \"full\": \0; delete", "raw \"text\""]);
    assert!(is_in("pool … is \"full\"", &found[0]) && is_in("… is", &found[0]) && is_in("full…delete", &found[0]));
    assert!(!is_in("pool is", &found[0]) && !is_in("full … pool", &found[0]) && !is_in("pool x is", &found[0]));
}
