//! `--mutants`: cargo-mutants changes the code in small ways, one at a time, and runs the unit tests against each
//! change. A change that no test notices shows that a test is missing.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use crate::cargo_tool::MUTANTS;
use crate::packages;
use crate::workspace::{Architecture, Workspace};

/// The modules and directories to change: those whose faults the unit tests alone must notice. The rest of the helper
/// makes system calls, and is tested by the suites.
const MODULES: [&str; 12] = [
    "protocol/src", "privhelper/src/bookkeeping/release", "privhelper/src/bookkeeping/room",
    "privhelper/src/capabilities", "privhelper/src/start/config", "privhelper/src/start/marker",
    "privhelper/src/place/shape", "privhelper/src/place/vol_data", "privhelper/src/state/layout",
    "privhelper/src/state/locks", "privhelper/src/state/volumes", "privhelper/src/sys/mountinfo",
];

/// The packages, what `cargo test` is told about each, and how much the compiler optimizes it. The helper's programs have
/// no tests for these modules, and one test waits for two seconds, a third of what a change takes. The protocol's tests
/// try many inputs; the helper's take less time than their compilation.
const TESTS: [(&str, &[&str], &str); 2] = [
    ("bulkhead-protocol", &["--lib", "--tests"], "1"),
    ("bulkhead-privhelper", &["--lib", "--", "--skip=bookkeeping::cached"], "0"),
];

/// What is not changed in those modules, by cargo-mutants' own descriptions: code that only makes system calls, or
/// limits the size of a file, and is tested by the suites.
const LEFT_TO_THE_SUITES: [&str; 4] =
    [r"vol_data\.rs.*replace << with >>$", "open_volume$", "open_content$", "Below::check_vol_data"];

/// Changes that are not tried, as they are none: cargo-mutants does not know what `SysResult` is, and nothing that it
/// makes of one compiles; and flags that are joined have no bit in common.
const NONE_AT_ALL: [&str; 2] = ["SysResult::", r"replace \| with \^"];

/// Runs it, and prints how many changes were caught and which ones were missed.
pub fn mutants(workspace: &Workspace) -> Result<ExitCode> {
    let triple = Architecture::host().triple();
    packages::require_target(triple)?;
    packages::require_compiler(Architecture::host())?;
    let mut directories = Vec::new();
    for (package, tests, optimized) in TESTS {
        let mut mutants = MUTANTS.command()?;
        let output = workspace.target.join("mutants").join(package);
        mutants.current_dir(&workspace.root).args(["mutants", "--no-shuffle", "--colors=never", "--package", package]);
        for argument in ["--locked", &format!("--target={triple}")] {
            mutants.arg(format!("--cargo-arg={argument}"));
        }
        for module in MODULES {
            mutants.args(["--file", &format!("{module}.rs"), "--file", &format!("{module}/**/*.rs")]);
        }
        for left in LEFT_TO_THE_SUITES.iter().chain(&NONE_AT_ALL) {
            mutants.args(["--exclude-re", left]);
        }
        mutants.arg("--output").arg(&output).arg("--").args(tests);
        // A change is to a few lines of one crate. Nobody looks at a backtrace.
        mutants.env("CARGO_INCREMENTAL", "1").env("CARGO_PROFILE_DEV_DEBUG", "none");
        mutants.env("CARGO_PROFILE_DEV_OPT_LEVEL", optimized);
        fs::create_dir_all(&output)?;
        // Its exit code is 2 if changes were missed and 3 if tests timed out. Both are reported below.
        let status = mutants.status().context("start cargo-mutants")?;
        ensure!(matches!(status.code(), Some(0 | 2 | 3)), "cargo-mutants: {status}");
        directories.push(output.join("mutants.out"));
    }
    report(&directories)
}

fn report(directories: &[PathBuf]) -> Result<ExitCode> {
    let mut counts = [0; 4];
    for (kind, count) in ["caught", "missed", "timeout", "unviable"].into_iter().zip(&mut counts) {
        for directory in directories {
            let text = fs::read_to_string(directory.join(kind).with_extension("txt"))?;
            *count += text.lines().count();
            let title = if kind == "timeout" { "not ended in time" } else { kind };
            if ["missed", "timeout"].contains(&kind) {
                text.lines().for_each(|mutant| println!("{title}: {mutant}"));
            }
        }
    }
    let [caught, missed, timeout, unviable] = counts;
    println!("mutants: {caught} caught, {missed} missed, {timeout} not ended in time, {unviable} that do not compile");
    ensure!(caught > 0, "no change was tested: look at log/ in {directories:?}");
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_module_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for module in MODULES {
            let there = root.join(module).exists() || root.join(module).with_extension("rs").exists();
            assert!(there, "{module} does not exist: put what has become of it into the list");
        }
    }
}
