//! The texts in the sources of the programs: what they may print.

use proc_macro2::{TokenStream, TokenTree};
use syn::Lit;

use super::{files, read};

/// What stands for a value in a text.
const VALUE: char = '\0';

/// Where the unit tests of a file begin.
const UNIT_TESTS: &str = "\n#[cfg(test)]\nmod tests {";

/// Where the sources of the shipped programs are.
const SOURCES: [&str; 8] = [
    "frontend/api/src", "frontend/bulkheadctl/src", "frontend/console/src", "frontend/kubectl-bulkhead/src",
    "frontend/model/src", "frontend/src", "privhelper/src", "protocol/src",
];

/// Where the manifests of the admission policies are.
const MANIFESTS: &str = "deploy/kubernetes/base";

/// The texts in all sources of the shipped programs, with each placeholder as [`VALUE`], and what the API server says for
/// the admission policies.
pub fn texts() -> Vec<String> {
    let mut texts: Vec<_> = sources(&SOURCES).iter().flat_map(|source| texts_in(source)).collect();
    for manifest in files(MANIFESTS, ".yaml") {
        let manifest = read(manifest);
        let messages = manifest.lines().filter_map(|line| line.trim().strip_prefix("message: "));
        texts.extend(messages.map(str::to_owned));
    }
    texts
}

/// The contents of all Rust files below these directories, without unit tests.
pub fn sources(directories: &[&str]) -> Vec<String> {
    let files = directories.iter().flat_map(|directory| files(directory, ".rs"));
    let code = files.filter(|path| !path.ends_with("tests.rs")).map(read);
    let code: Vec<_> = code.map(|text| text.split(UNIT_TESTS).next().unwrap_or_default().to_owned()).collect();
    assert!(code.len() > 10, "only {} files were found below {directories:?}", code.len());
    code
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

/// The texts of a source file. Comments are none, although those of documentation are for the compiler.
fn texts_in(source: &str) -> Vec<String> {
    let code: Vec<&str> = source.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    literals(code.join("\n").parse().expect("Rust"))
}

fn literals(code: TokenStream) -> Vec<String> {
    let texts = code.into_iter().flat_map(|token| match token {
        TokenTree::Group(group) => literals(group.stream()),
        TokenTree::Literal(literal) => match Lit::new(literal) {
            Lit::Str(text) => vec![without_placeholders(&text.value())],
            Lit::ByteStr(bytes) => vec![without_placeholders(&String::from_utf8_lossy(&bytes.value()))],
            _ => Vec::new(),
        },
        _ => Vec::new(),
    });
    texts.collect()
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
