//! What rustc and clippy check is not checked again here. That they are run, and that nothing silences them, is.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use super::files::audited;

/// The roots of the crates whose code must not panic.
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
/// The one place that may contain `unsafe`: all of `privhelper/src/sys`.
const UNSAFE: (&str, &str) = ("privhelper/src/lib.rs", "#[allow(unsafe_code)]\nmod sys;\n");

/// `unsafe` is denied everywhere, and allowed in one place.
pub fn check_unsafe(root: &Path) -> Result<String> {
    let workspace = fs::read_to_string(root.join("Cargo.toml"))?;
    ensure!(workspace.contains("\nunsafe_code = \"deny\"\n"), "Cargo.toml does not deny unsafe_code");
    let (place, exception) = UNSAFE;
    let text = fs::read_to_string(root.join(place))?;
    ensure!(text.contains(exception), "{place} does not allow unsafe_code for sys: has it moved?");
    let attribute = "(unsafe_code";
    ensure!(text.matches(attribute).count() == 1, "{place} allows unsafe_code more than once");
    let members = workspace.split_once("members = [").and_then(|(_, rest)| rest.split_once(']'));
    let (members, _) = members.context("Cargo.toml lists no members")?;
    for member in members.split('"').skip(1).step_by(2) {
        let manifest = fs::read_to_string(root.join(member).join("Cargo.toml"))?;
        ensure!(manifest.contains("[lints]\nworkspace = true"), "{member} does not take the workspace's lints");
    }
    for source in audited(root)?.iter().filter(|source| source.path != Path::new(place)) {
        ensure!(!source.text.contains(attribute), "{} allows unsafe_code", source.path.display());
    }
    Ok(format!("rustc denies it but for one place: sys, in {place}"))
}

/// Whatever can panic is denied in every audited crate, and nothing allows it again outside tests.
pub fn check_panics(root: &Path) -> Result<String> {
    for path in ROOTS {
        let text = fs::read_to_string(root.join(path))?;
        let denied = text.split_once("not(test),\n    deny(").and_then(|(_, rest)| rest.split_once(")\n)]"));
        let denied = denied.map_or("", |(denied, _)| denied);
        for lint in PANICS {
            ensure!(denied.contains(&format!("clippy::{lint}")), "{path} does not deny clippy::{lint} outside tests");
        }
    }
    for source in audited(root)? {
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
