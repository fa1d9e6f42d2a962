//! The names of all tests, read from their source.
//!
//! `--list` of each program says the same, but takes a build of all of them, and a rule about a page is checked in a second.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::policy::files::{Source, sources};

/// Where there are tests.
const PLACES: [&str; 5] = ["frontend", "privhelper", "protocol", "tests", "xtask"];

/// `theme::what_must_hold` for every case of a suite and every unit test.
pub fn all(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for place in PLACES {
        for Source { path, text } in sources(root, place, |entry| entry.file_name() != "target")? {
            let found = if text.contains("\ncases! {\n") { cases(&text) } else { units(&text) };
            names.extend(found.into_iter().map(|name| format!("{}::{name}", theme(&path))));
        }
    }
    ensure!(names.len() > 1000, "only {} tests were found", names.len());
    Ok(names)
}

/// The path of a file in its suite or crate.
fn theme(path: &Path) -> String {
    let path = path.with_extension("").to_string_lossy().into_owned();
    let path =
        ["/cases/", "/src/", "/tests/"].iter().find_map(|from| path.split_once(from)).map_or(&*path, |(_, path)| path);
    ["/mod", "/tests"].iter().fold(path, |path, end| path.strip_suffix(end).unwrap_or(path)).replace('/', "::")
}

/// The names in a file's `cases!` block.
fn cases(text: &str) -> Vec<&str> {
    let Some((_, block)) = text.split_once("cases! {\n") else { return Vec::new() };
    let block = block.split("\n}").next().unwrap_or_default();
    let names = block.lines().map(str::trim).filter(|line| !line.starts_with("//") && !line.starts_with("on "));
    names.filter_map(|line| line.split([':', ',']).next()).filter(|name| !name.is_empty()).collect()
}

/// The names of functions that are marked as tests, or are parts of a node's story.
fn units(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if let Some(attribute) = line.strip_prefix("#[") {
            is_test |= attribute.contains("test") && !attribute.starts_with("cfg");
        } else {
            let is_one = is_test || line.contains("(story: &mut Story");
            let function = line.split_once("fn ").filter(|_| is_one).map(|(_, function)| function);
            names.extend(function.and_then(|function| function.split('(').next()));
            is_test = false;
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_called_by_its_file_and_its_name() {
        let path = |path: &str| theme(Path::new(path));
        assert_eq!(path("tests/src/bin/suite/cases/faults/mod.rs"), "faults");
        assert_eq!(path("tests/src/bin/suite/cases/attacks/devices.rs"), "attacks::devices");
        assert_eq!(path("privhelper/src/start/filter/tests.rs"), "start::filter");
        assert_eq!(path("frontend/tests/memory.rs"), "memory");
        let text = "use a;\n\ncases! {\n    on Cluster;\n    // Why.\n    one_holds: Bare + Alone(\"x, y\"),\n    two_holds,\n}\n\nfn one_holds() {}\n";
        assert_eq!(cases(text), ["one_holds", "two_holds"]);
        let text = "fn a() {}\n#[cfg(test)]\nfn b() {}\n#[test]\n#[ignore]\nfn c() {}\nfn d() {}\n#[tokio::test]\nasync fn e() {}\n";
        assert_eq!(units(text), ["c", "e"]);
    }
}
