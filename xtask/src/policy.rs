//! What holds for the code that runs with privilege: how much of it there is, what it depends on, what it may not say.

mod code;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use self::code::{Code, Word};
use crate::process::capture;
use crate::test::Count;
use crate::workspace::{Architecture, Workspace, cargo};

/// The package with privilege, and the file that lists what its binary is made of.
const PACKAGE: &str = "bulkhead-privhelper";
const LIST: &str = "privhelper/dependencies.txt";
/// Where the code is that a reviewer reads.
const AUDITED: [&str; 2] = ["privhelper/src", "protocol/src"];
/// The only place for `unsafe`.
const UNSAFE_ALLOWED: &str = "privhelper/src/sys";
/// The crates in the tree that are audited themselves.
const OWN: [&str; 2] = [PACKAGE, "bulkhead-protocol"];

/// Checks all of it, with one line for each check.
pub fn check(workspace: &Workspace) -> Result<Count> {
    let root = &workspace.root;
    let mut count = Count::default();
    for (name, result) in [
        ("dependencies of privhelper", dependencies(root)),
        ("audited lines", audited_lines(root)),
        ("unsafe", unsafe_code(root)),
        ("panics", panics(root)),
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

/// The crates of the binary are exactly those of the list, each with a reason.
fn dependencies(root: &Path) -> Result<String> {
    let mut tree = cargo();
    tree.args(["tree", "--locked", "--package", PACKAGE, "--edges", "normal", "--prefix", "none"]);
    for architecture in [Architecture::Amd64, Architecture::Arm64] {
        tree.args(["--target", architecture.triple()]);
    }
    let output = capture(&mut tree).context("ask cargo for the tree")?;
    let names = output.lines().filter_map(|line| line.split_whitespace().next());
    let found: BTreeSet<String> = names.filter(|name| !OWN.contains(name)).map(str::to_owned).collect();
    let listed = listed(&read(&root.join(LIST))?)?;
    let only_in = |these: &BTreeSet<String>, those: &BTreeSet<String>| {
        these.difference(those).cloned().collect::<Vec<_>>().join(", ")
    };
    let (new, gone) = (only_in(&found, &listed), only_in(&listed, &found));
    ensure!(new.is_empty(), "{new}: not in {LIST}; a new crate needs a reason there");
    ensure!(gone.is_empty(), "{gone}: in {LIST} and no dependency any more");
    Ok(format!("{} crates, each with a reason in {LIST}", found.len()))
}

/// The names of a list whose lines are `name  reason`.
fn listed(text: &str) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, _) = line.split_once("  ").with_context(|| format!("{LIST}: {line:?} gives no reason"))?;
        ensure!(names.insert(name.to_owned()), "{LIST}: {name} is listed twice");
    }
    Ok(names)
}

fn audited_lines(root: &Path) -> Result<String> {
    let mut sums = Vec::new();
    for directory in AUDITED {
        let files = rust_files(&root.join(directory))?;
        let lines = files.iter().map(|file| Ok(Code::of(&read(file)?).lines())).sum::<Result<usize>>()?;
        sums.push((directory, lines));
    }
    let total: usize = sums.iter().map(|(_, lines)| lines).sum();
    let parts: Vec<String> = sums.iter().map(|(directory, lines)| format!("{directory} {lines}")).collect();
    Ok(format!("{total} without tests, comments and blank lines ({})", parts.join(", ")))
}

fn unsafe_code(root: &Path) -> Result<String> {
    let allowed = root.join(UNSAFE_ALLOWED);
    let mut inside = 0;
    let mut outside = Vec::new();
    for file in rust_files(root)? {
        let code = Code::of(&read(&file)?);
        let uses = code.words().filter(|word| word.text == "unsafe").map(|word| place(root, &file, &word));
        if file.starts_with(&allowed) {
            inside += uses.count();
        } else {
            outside.extend(uses);
        }
    }
    ensure!(outside.is_empty(), "outside {UNSAFE_ALLOWED}: {}", outside.join(", "));
    ensure!(inside > 0, "none found in {UNSAFE_ALLOWED}: is it still there?");
    Ok(format!("{inside} blocks, all in {UNSAFE_ALLOWED}"))
}

fn panics(root: &Path) -> Result<String> {
    const METHODS: [&str; 6] = ["unwrap", "expect", "unwrap_err", "expect_err", "unwrap_unchecked", "unwrap_none"];
    const MACROS: [&str; 7] = ["panic", "todo", "unimplemented", "unreachable", "assert", "assert_eq", "assert_ne"];
    let panics = |word: &Word<'_>| {
        METHODS.contains(&word.text) && matches!(word.before, Some('.' | ':'))
            || MACROS.contains(&word.text) && word.after == Some('!')
    };
    let mut found = Vec::new();
    for directory in AUDITED {
        for file in rust_files(&root.join(directory))? {
            let code = Code::of(&read(&file)?);
            found.extend(code.words().filter(panics).map(|word| place(root, &file, &word)));
        }
    }
    ensure!(found.is_empty(), "{}", found.join(", "));
    Ok(format!("no unwrap, expect, panic!, todo! or assert! in {}", AUDITED.join(" and ")))
}

fn place(root: &Path, file: &Path, word: &Word<'_>) -> String {
    format!("{}:{}: {}", file.strip_prefix(root).unwrap_or(file).display(), word.line, word.text)
}

/// Every Rust file below a directory, but not what cargo and git keep.
fn rust_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("list {}", next.display()))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default();
            if path.is_dir() && name != "target" && !name.as_encoded_bytes().starts_with(b".") {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    if files.is_empty() {
        bail!("no Rust file below {}", directory.display());
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_a_reason_for_each_crate() {
        let names = listed("# crates\n\nlibc  constants\nnix   fork\n").expect("a list");
        assert_eq!(names, BTreeSet::from(["libc".to_owned(), "nix".to_owned()]));
        assert!(listed("libc\n").is_err());
        assert!(listed("libc  one\nlibc  two\n").is_err());
    }
    #[test]
    fn unsafe_code_and_panics_are_found_where_they_must_not_be() {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            fs::write(path, text).expect("a file");
        };
        write("privhelper/src/sys/mount.rs", "fn a() { unsafe { b() } }\n");
        write("protocol/src/lib.rs", "fn a() { b().unwrap_or(0) } // .unwrap() and unsafe\n");
        assert_eq!(unsafe_code(root.path()).expect("good").split(' ').next(), Some("1"));
        panics(root.path()).expect("good");
        write("privhelper/src/main.rs", "\nfn a() { b().unwrap(); unsafe { c() } }\n");
        assert!(unsafe_code(root.path()).unwrap_err().to_string().contains("privhelper/src/main.rs:2"));
        assert_eq!(panics(root.path()).unwrap_err().to_string(), "privhelper/src/main.rs:2: unwrap");
    }
}
