//! The names of the suites' cases, read from their source.
//!
//! `--list` of each suite says the same, but takes a build of all suites, and a rule about a page is checked in a second.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::policy::files::{Source, below};

/// Where the suites are.
const SUITES: &str = "tests/src/bin";

/// `theme::what_must_hold` for every case of every suite.
pub fn all(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for Source { path, text } in below(root, SUITES)? {
        let Some(theme) = theme(&path) else { continue };
        names.extend(listed(&text).into_iter().map(|name| format!("{theme}::{name}")));
    }
    ensure!(names.len() > 100, "only {} cases are below {SUITES}", names.len());
    Ok(names)
}

/// The path of a module below `cases`.
fn theme(path: &Path) -> Option<String> {
    let mut parts = path.components().map(|part| part.as_os_str().to_string_lossy()).skip_while(|part| part != "cases");
    let path: PathBuf = parts.by_ref().skip(1).map(|part| part.into_owned()).collect();
    let theme = path.with_extension("").to_string_lossy().replace('/', "::");
    let theme = theme.strip_suffix("::mod").unwrap_or(&theme).to_owned();
    (!theme.is_empty()).then_some(theme)
}

/// The names in a file's `cases!` block.
fn listed(text: &str) -> Vec<&str> {
    let Some((_, block)) = text.split_once("cases! {\n") else { return Vec::new() };
    let block = block.split("\n}").next().unwrap_or_default();
    let names = block.lines().map(str::trim).filter(|line| !line.starts_with("//") && !line.starts_with("on "));
    names.filter_map(|line| line.split([':', ',']).next()).filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_called_by_its_file_and_its_name() {
        let path = |path: &str| theme(Path::new(path));
        assert_eq!(path("tests/src/bin/suite/cases/faults/mod.rs").as_deref(), Some("faults"));
        assert_eq!(path("tests/src/bin/suite/cases/attacks/devices.rs").as_deref(), Some("attacks::devices"));
        assert_eq!(path("tests/src/bin/suite/main.rs"), None);
        let text = "use a;\n\ncases! {\n    on Cluster;\n    // Why.\n    one_holds: Bare + Alone(\"x, y\"),\n    two_holds,\n}\n\nfn one_holds() {}\n";
        assert_eq!(listed(text), ["one_holds", "two_holds"]);
    }
}
