//! `--miri`: Miri interprets the tests of the protocol, and of what the helper works out without the kernel, and notices
//! undefined behaviour. There is no unsafe code of ours in either; there is in the crates that they use.

use std::process::ExitCode;

use anyhow::Result;

use crate::process::{command, run};
use crate::progress::timed;
use crate::workspace::Workspace;

/// Miri is part of no other toolchain.
const TOOLCHAIN: &str = "nightly";

/// Packages, and the words that a test's name has one of, if not all are run: others make system calls that Miri does not know, or
/// would take hours.
const TESTS: [(&str, &[&str]); 2] = [
    ("bulkhead-protocol", &[]),
    (
        "bulkhead-privhelper",
        &[
            "audit", "bookkeeping::cached", "capabilities", "state::layout", "state::locks", "place::vol_data",
            "state::volumes",
        ],
    ),
];

/// How many cases each property is tried with. The interpreter takes a thousand times as long as the processor.
const CASES: &str = "4";

/// Runs it.
pub fn miri(workspace: &Workspace) -> Result<ExitCode> {
    timed("providing Miri", || {
        let mut install = command("rustup");
        run(install.args(["toolchain", "install", TOOLCHAIN, "--profile", "minimal", "--component", "miri"]))
    })?;
    for (package, tests) in TESTS {
        let mut miri = command("rustup");
        miri.args(["run", TOOLCHAIN, "cargo", "miri", "test", "--locked", "--package", package]);
        // Those of the package's documentation are no code of the helper's.
        miri.args(if tests.is_empty() { ["--lib", "--tests"].as_slice() } else { &["--lib"] });
        miri.arg("--").args(tests).current_dir(&workspace.root);
        miri.env("CARGO_TARGET_DIR", workspace.target.join("miri")).env_remove("RUSTUP_TOOLCHAIN");
        // The tests read the clock and the files beside them.
        miri.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", CASES);
        miri.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true").env("BULKHEAD_FUZZ_SECONDS", "5");
        run(&mut miri)?;
    }
    Ok(ExitCode::SUCCESS)
}
