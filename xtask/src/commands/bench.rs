//! `cargo xtask bench`: the cost of the services, or of storage agents, measured on this host with optimized programs.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;

use super::exit_code;
use crate::kubernetes;
use crate::packages;
use crate::process::command;
use crate::programs::Programs;
use crate::progress::timed;
use crate::workspace::{Profile, Selection, Workspace};

const BENCH: [&str; 1] = ["bulkhead-bench"];
/// It times loop devices: their ioctls need unsafe code in Rust.
const LOOP_TIMER: [&str; 1] = ["python3"];
const CLUSTER_BENCH: [&str; 1] = ["bulkhead-cluster-bench"];

/// What `bench` takes.
#[derive(Args)]
pub struct BenchArguments {
    /// Measure storage agents on a real control plane instead of the CSI services.
    #[arg(long)]
    kubernetes: bool,
    /// Passed on to the measuring program: `--help` after `--` lists what it takes.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds the shipped programs and the measuring one, and runs the latter.
pub fn bench(workspace: &Workspace, arguments: &BenchArguments) -> Result<ExitCode> {
    let bench = if arguments.kubernetes { &CLUSTER_BENCH } else { &BENCH };
    ensure!(rustix::process::geteuid().is_root(), "measuring needs root: run it with sudo");
    packages::require(&packages::FILESYSTEM_TOOLS)?;
    packages::require(&LOOP_TIMER)?;
    let programs = timed("building", || Programs::build(workspace, Selection::ShippedWith(bench), Profile::Release))?;
    let mut measure = command("env");
    if arguments.kubernetes {
        measure.env(kubernetes::ASSETS, kubernetes::control_plane(workspace)?);
    }
    measure.arg(programs.path(bench[0]));
    if !arguments.kubernetes {
        measure.arg("--output").arg(workspace.target.join("bench"));
    }
    Ok(exit_code(measure.args(&arguments.arguments).status()?))
}
