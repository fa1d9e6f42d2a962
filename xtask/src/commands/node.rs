//! `cargo xtask node`: a Kubernetes node running Bulkhead, for trying things by hand.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use super::exit_code;
use crate::node::{self, Equipment};
use crate::programs::Programs;
use crate::progress::timed;
use crate::vm::{AGENT, require_packages};
use crate::workspace::{Architecture, Profile, Selection, Workspace};

const PROGRAMS: Selection = Selection::ShippedWith(&[node::PROGRAM, AGENT]);

/// What `node` takes.
#[derive(Args)]
pub struct Arguments {
    /// Use the programs from an earlier build.
    #[arg(long)]
    no_build: bool,
    /// Run the machine under QEMU, with Debian's own kernel, even if user-mode Linux would do.
    #[arg(long)]
    qemu: bool,
    /// The command, run on this host with kubectl and kubectl bulkhead in its PATH; several words are one shell command line. Without a
    /// command, a shell, which says what to try.
    #[arg(last = true)]
    command: Vec<String>,
}

/// Brings up the cluster, runs the command, and takes everything down again.
pub fn execute(workspace: &Workspace, arguments: &Arguments) -> Result<ExitCode> {
    require_packages(Architecture::host())?;
    let programs = match arguments.no_build {
        true => Programs::built(workspace, PROGRAMS, Profile::Dev)?,
        false => timed("building", || Programs::build(workspace, PROGRAMS, Profile::Dev))?,
    };
    let equipment = Equipment::usual(workspace, &programs, arguments.qemu)?;
    let command = Some(arguments.command.join(" ")).filter(|command| !command.is_empty());
    let arguments: Vec<_> = ["shell".to_owned()].into_iter().chain(command).collect();
    Ok(exit_code(node::run(workspace, &programs, equipment, &arguments, |program| {
        program.status().context("start the program beside the node")
    })?))
}
