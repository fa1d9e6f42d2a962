//! `cargo xtask bench`: what the services cost, measured on this host with what is shipped.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;

use super::exit_code;
use crate::packages;
use crate::process::command;
use crate::programs::Programs;
use crate::progress::timed;
use crate::workspace::{Profile, Workspace};

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
    let programs = timed("building", || Programs::build(workspace, Profile::Release))?;
    Ok(exit_code(command("env").arg(programs.path(BENCH)).args(&arguments.arguments).status()?))
}
