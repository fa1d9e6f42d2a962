//! `cargo xtask lint`: checks of the source that run none of it.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::cargo_tool::DENY;
use crate::packages;
use crate::process::run;
use crate::progress::say;
use crate::test::SHELLS;
use crate::workspace::{Architecture, Workspace, cargo};

/// What `lint` takes.
#[derive(Args)]
pub struct Arguments {
    /// Also look for known faults in the crates that are used. This fetches the database of advisories.
    #[arg(long)]
    advisories: bool,
}

/// Runs every check, and fails if any of them failed.
pub fn execute(workspace: &Workspace, arguments: &Arguments) -> Result<ExitCode> {
    let host = Architecture::host();
    packages::require_target(host.triple())?;
    packages::require_compiler(host)?;
    let mut failed = Vec::new();
    let mut check = |name: &'static str, result: Result<()>| {
        if let Err(error) = result {
            say(format_args!("{name}: {error:#}"));
            failed.push(name);
        }
    };
    check("format", run(cargo().args(["fmt", "--all", "--check"])));
    let mut shells = cargo();
    shells.args(["fmt", "--check", "--manifest-path"]).arg(workspace.root.join(SHELLS).join("Cargo.toml"));
    check("format of the shells for libFuzzer", run(&mut shells));
    let mut clippy = cargo();
    clippy.args(["clippy", "--locked", "--workspace", "--all-targets", "--target", host.triple()]);
    check("clippy", run(clippy.args(["--", "-D", "warnings"])));
    check("deny", deny(workspace, ".", arguments.advisories));
    check("deny of the shells for libFuzzer", deny(workspace, SHELLS, arguments.advisories));
    if failed.is_empty() {
        println!("lint: ok");
        return Ok(ExitCode::SUCCESS);
    }
    println!("lint: FAILED: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// Checks the crates of the workspace in a directory. The same rules are for all, and need not all apply to each.
fn deny(workspace: &Workspace, directory: &str, advisories: bool) -> Result<()> {
    let mut deny = DENY.command()?;
    deny.current_dir(&workspace.root).args(["--locked", "--manifest-path"]);
    deny.arg(workspace.root.join(directory).join("Cargo.toml")).arg("check");
    for of_another_workspace in ["license-exception-not-encountered", "unmatched-skip", "unnecessary-skip"] {
        deny.args(["--allow", of_another_workspace]);
    }
    deny.args(["bans", "licenses", "sources"]);
    if advisories {
        deny.arg("advisories");
    }
    run(&mut deny)
}
