//! What rustc and clippy check is not checked again here. That they are run, and that nothing silences them, is.

use std::path::Path;

use anyhow::{Result, ensure};

use super::files::{below, read};

/// The packages whose code must not panic, and the roots of their crates.
const AUDITED: [&str; 2] = ["protocol/src", "privhelper/src"];
const ROOTS: [&str; 4] = [
    "protocol/src/lib.rs",
    "privhelper/src/lib.rs",
    "privhelper/src/main.rs",
    "privhelper/src/bin/bulkhead-setup/main.rs",
];
/// What each root denies outside tests.
const PANICS: [&str; 6] =
    ["arithmetic_side_effects", "expect_used", "indexing_slicing", "panic", "unreachable", "unwrap_used"];
/// Panics that clippy has no lint for.
const ASSERTIONS: [&str; 3] = ["assert!(", "assert_eq!(", "assert_ne!("];
/// The packages that inherit the workspace's lints.
const MEMBERS: [&str; 10] = [
    "protocol", "privhelper", "frontend", "frontend/model", "frontend/console", "frontend/bulkheadctl",
    "frontend/kubectl-bulkhead", "tests", "tests/fuzz", "xtask",
];
/// The one place that may contain `unsafe`: all of `privhelper/src/sys`.
const UNSAFE: (&str, &str) = ("privhelper/src/lib.rs", "#[allow(unsafe_code)]\nmod sys;\n");

/// `unsafe` is denied everywhere, and allowed in one place.
pub fn check_unsafe(root: &Path) -> Result<String> {
    let workspace = read(&root.join("Cargo.toml"))?;
    ensure!(workspace.contains("\nunsafe_code = \"deny\"\n"), "Cargo.toml does not deny unsafe_code");
    let (place, exception) = UNSAFE;
    let text = read(&root.join(place))?;
    ensure!(text.contains(exception), "{place} does not allow unsafe_code for sys: has it moved?");
    let attribute = "(unsafe_code";
    ensure!(text.matches(attribute).count() == 1, "{place} allows unsafe_code more than once");
    for member in MEMBERS {
        let manifest = read(&root.join(member).join("Cargo.toml"))?;
        ensure!(manifest.contains("[lints]\nworkspace = true"), "{member} does not take the workspace's lints");
    }
    for directory in AUDITED {
        for source in below(root, directory)?.iter().filter(|source| source.path != Path::new(place)) {
            ensure!(!source.text.contains(attribute), "{} allows unsafe_code", source.path.display());
        }
    }
    Ok(format!("rustc denies it but for one place: sys, in {place}"))
}

/// Whatever can panic is denied in every audited crate, and nothing allows it again outside tests.
pub fn check_panics(root: &Path) -> Result<String> {
    for path in ROOTS {
        let text = read(&root.join(path))?;
        let denied = text.split_once("not(test),\n    deny(").and_then(|(_, rest)| rest.split_once(")\n)]"));
        let denied = denied.map_or("", |(denied, _)| denied);
        for lint in PANICS {
            ensure!(denied.contains(&format!("clippy::{lint}")), "{path} does not deny clippy::{lint} outside tests");
        }
    }
    for source in AUDITED.iter().map(|directory| below(root, directory)).collect::<Result<Vec<_>>>()?.iter().flatten() {
        let code = source.text.split("#[cfg(test)]").next().unwrap_or_default();
        let path = source.path.display();
        for lint in PANICS {
            for level in ["allow", "expect", "warn"] {
                let exception = format!("{level}(clippy::{lint}");
                ensure!(!code.contains(&exception), "{path} has {exception})");
            }
        }
        for assertion in ASSERTIONS {
            let has = code.lines().any(|line| !line.trim_start().starts_with("//") && line.contains(assertion));
            ensure!(!has, "{path} has {assertion})");
        }
    }
    Ok("clippy denies what can panic in protocol and privhelper, without exceptions".to_owned())
}
