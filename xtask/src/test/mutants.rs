//! `--mutants`: cargo-mutants changes the code in small ways, one at a time, and runs the unit tests against each
//! change. A change that no test notices is missing a test.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo_tool::MUTANTS;
use crate::packages;
use crate::workspace::{Architecture, Workspace};

/// The files that are changed: those whose unit tests alone must notice. The rest of the helper is system calls, which
/// the suites test.
const FILES: [&str; 11] = [
    "protocol/src/", "privhelper/src/capabilities.rs", "privhelper/src/start/config.rs",
    "privhelper/src/start/marker.rs", "privhelper/src/start/mountinfo.rs", "privhelper/src/state/layout.rs",
    "privhelper/src/state/ledger.rs", "privhelper/src/state/locks.rs", "privhelper/src/state/targets.rs",
    "privhelper/src/state/vol_data.rs", "privhelper/src/state/volumes.rs",
];

/// Runs it, and prints how many changes were caught and which were missed.
pub fn mutants(workspace: &Workspace) -> Result<ExitCode> {
    let triple = Architecture::host().triple();
    packages::require_target(triple)?;
    packages::require_compiler(Architecture::host())?;
    let mut mutants = MUTANTS.command()?;
    let output = workspace.target.join("mutants");
    mutants.current_dir(&workspace.root).args(["mutants", "--no-shuffle", "--colors=never", "--output"]).arg(&output);
    for argument in ["--locked", &format!("--target={triple}")] {
        mutants.arg(format!("--cargo-arg={argument}"));
    }
    for file in FILES {
        ensure!(
            workspace.root.join(file).exists(),
            "{file} is not there: name its successor in xtask/src/test/mutants.rs"
        );
        let glob = if file.ends_with('/') { format!("{file}**/*.rs") } else { file.to_owned() };
        mutants.args(["--file", &glob]);
    }
    fs::create_dir_all(&output)?;
    // Its exit code says how it ended: 2 for missed changes and 3 for tests that did not end, which are reported below.
    let status = mutants.status().context("start cargo-mutants")?;
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        bail!("cargo-mutants: {status}");
    }
    report(&output.join("mutants.out"))
}

fn report(directory: &Path) -> Result<ExitCode> {
    let list = |name: &str| -> Result<Vec<String>> {
        let path = directory.join(name).with_extension("txt");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(text.lines().map(str::to_owned).collect())
    };
    let (caught, missed, timeout) = (list("caught")?, list("missed")?, list("timeout")?);
    let unviable = list("unviable")?;
    for (title, mutants) in [("missed", &missed), ("not ended in time", &timeout)] {
        for mutant in mutants {
            println!("{title}: {mutant}");
        }
    }
    println!(
        "mutants: {} caught, {} missed, {} not ended in time, {} that do not compile",
        caught.len(),
        missed.len(),
        timeout.len(),
        unviable.len()
    );
    Ok(if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
