//! `cargo xtask bench`: what the services cost, measured on this host with what is shipped.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;

use super::exit_code;
use crate::packages;
use crate::process::command;
use crate::progress::timed;
use crate::workspace::{Architecture, Profile, Workspace};

const BENCH: &str = "bulkhead-bench";

/// What `bench` takes.
#[derive(Args)]
pub struct BenchArguments {
    /// Handed on to the measuring program.
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Builds what is shipped and runs the measuring program.
pub fn bench(workspace: &Workspace, arguments: &BenchArguments) -> Result<ExitCode> {
    ensure!(workspace.has_program(BENCH), "the workspace has no program {BENCH}");
    ensure!(rustix::process::geteuid().is_root(), "measuring needs root: run it with sudo");
    packages::require(&packages::FILESYSTEM_TOOLS)?;
    timed("building", || workspace.build(Architecture::host(), Profile::Release))?;
    let program = workspace.program(BENCH, Architecture::host(), Profile::Release);
    Ok(exit_code(command("env").arg(program).args(&arguments.arguments).status()?))
}
