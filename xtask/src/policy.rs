//! Rules for the code that runs with privilege: how much of it there may be, what it depends on, what it must not
//! contain.

pub mod files;
pub mod lines;
mod lints;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use crate::process::capture;
use crate::templates;
use crate::test::Count;
use crate::workspace::{Architecture, Workspace, cargo};

/// The privileged package, and the file that lists what its binary is made of.
pub const PACKAGE: &str = "bulkhead-privhelper";
pub const LIST: &str = "privhelper/dependencies.txt";
/// The crates in the dependency tree that are part of the audited code.
const OWN: [&str; 2] = [PACKAGE, "bulkhead-protocol"];

/// Checks all rules, and prints one line for each; `page` is whether reviewers are told what is so.
pub fn check(workspace: &Workspace, page: Result<String>) -> Result<Count> {
    let root = &workspace.root;
    let mut count = Count::default();
    for (name, result) in [
        ("dependencies of privhelper", dependencies(root)),
        ("audited lines", lines::check(root)),
        ("unsafe", lints::check_unsafe(root)),
        ("panics", lints::check_panics(root)),
        ("compiler", compiler(root)),
        ("templates of filesystems", templates::check(workspace)),
        ("page for reviewers", page),
    ] {
        match result {
            Ok(found) => {
                println!("policy: {name}: ok: {found}");
                count.passed += 1;
            }
            Err(error) => {
                println!("policy: {name}: FAILED: {error:#}");
                count.failed += 1;
            }
        }
    }
    Ok(count)
}

/// The binary's crates are exactly those on the list, each with a reason.
fn dependencies(root: &Path) -> Result<String> {
    let mut tree = cargo();
    tree.args(["tree", "--locked", "--package", PACKAGE, "--edges", "normal", "--prefix", "none"]);
    for architecture in [Architecture::Amd64, Architecture::Arm64] {
        tree.args(["--target", architecture.triple()]);
    }
    let output = capture(&mut tree).context("ask cargo for the tree")?;
    let names = output.lines().filter_map(|line| line.split_whitespace().next());
    let found: BTreeSet<String> = names.filter(|name| !OWN.contains(name)).map(str::to_owned).collect();
    let listed = listed(&fs::read_to_string(root.join(LIST))?)?.into_keys().collect();
    let only_in = |these: &BTreeSet<String>, those: &BTreeSet<String>| {
        these.difference(those).cloned().collect::<Vec<_>>().join(", ")
    };
    let (new, gone) = (only_in(&found, &listed), only_in(&listed, &found));
    ensure!(new.is_empty(), "{new}: not in {LIST}; a new crate needs a reason there");
    ensure!(gone.is_empty(), "{gone}: in {LIST} and no dependency any more");
    Ok(format!("{} crates, each with a reason in {LIST}", found.len()))
}

/// The names of a list whose lines are `name  reason`, with the reasons.
pub fn listed(text: &str) -> Result<BTreeMap<String, String>> {
    let mut names = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, reason) = line.split_once("  ").with_context(|| format!("{LIST}: {line:?} gives no reason"))?;
        let before = names.insert(name.to_owned(), reason.trim().to_owned());
        ensure!(before.is_none(), "{LIST}: {name} is listed twice");
    }
    Ok(names)
}

/// The compiler that the project declares is the one that builds it.
fn compiler(root: &Path) -> Result<String> {
    let (declared, toolchain) = (env!("CARGO_PKG_RUST_VERSION"), fs::read_to_string(root.join("rust-toolchain.toml"))?);
    ensure!(
        is_pinned(&toolchain, declared),
        "Cargo.toml declares Rust {declared}, and nothing proves that: rust-toolchain.toml builds with another\n{toolchain}"
    );
    Ok(format!("Rust {declared} is declared and used"))
}

/// Returns whether a file for rustup names this version, whose last number may be left out if it is 0.
fn is_pinned(toolchain: &str, version: &str) -> bool {
    [version, &format!("{version}.0")].iter().any(|one| toolchain.contains(&format!("\nchannel = \"{one}\"\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_a_reason_for_each_crate() {
        let names = listed("# crates\n\nlibc  constants\nnix   fork\n").expect("a list");
        assert_eq!(
            names.into_iter().collect::<Vec<_>>(),
            [("libc", "constants"), ("nix", "fork")].map(|(name, why)| (name.to_owned(), why.to_owned()))
        );
        assert!(listed("libc\n").is_err());
        assert!(listed("libc  one\nlibc  two\n").is_err());
    }

    #[test]
    fn another_compiler_than_the_declared_one_is_found() {
        let versions = |declared: &str, pinned: &str| {
            is_pinned(&format!("[toolchain]\nchannel = \"{pinned}\"\nprofile = \"minimal\"\n"), declared)
        };
        assert!(versions("1.95", "1.95.0") && versions("1.95.1", "1.95.1"));
        assert!(!versions("1.95", "1.95.1") && !versions("1.94", "1.95.0") && !versions("1.9", "1.95.0"));
    }
}
