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

/// What somebody who has no command of their own may want to try. The machine has the pool's disk, and no registry: its
/// images are busybox:1 and bulkhead-shell:test.
const TO_TRY: &str = "\
This shell has kubectl, and kubectl bulkhead, for a cluster of one node. To try:
  kubectl bulkhead doctor                     whether all is well
  kubectl bulkhead capacity                   where how much room is left
  kubectl apply -f FILE                       the first claim: docs/kubernetes.md has it, and what to look at
  kubectl bulkhead volumes                    the volumes, with their claims
  kubectl debug node/127.0.0.1 -it --image=busybox:1 --profile=sysadmin -- chroot /host sh
                                              a shell on the node; the pool is in /srv/bulkhead/default
Leave the shell, and everything is taken down again.
";

/// What `node` takes.
#[derive(Args)]
pub struct NodeArguments {
    /// Use the programs from an earlier build.
    #[arg(long)]
    no_build: bool,
    /// The command, run on this host with kubectl and kubectl bulkhead in its PATH; several words are one shell command line. Without a
    /// command, a shell.
    #[arg(last = true)]
    command: Vec<String>,
}

/// Brings up the cluster, runs the command, and takes everything down again.
pub fn node(workspace: &Workspace, arguments: &NodeArguments) -> Result<ExitCode> {
    require_packages(Architecture::host())?;
    let programs = match arguments.no_build {
        true => Programs::built(workspace, PROGRAMS, Profile::Dev)?,
        false => timed("building", || Programs::build(workspace, PROGRAMS, Profile::Dev))?,
    };
    let command = match arguments.command.is_empty() {
        true => format!("cat >/dev/tty <<'END'\n{TO_TRY}END\nexec sh -i </dev/tty >/dev/tty 2>&1"),
        false => arguments.command.join(" "),
    };
    let arguments = ["shell".to_owned(), command];
    Ok(exit_code(node::run(workspace, &programs, Equipment::usual(workspace)?, &arguments, |program| {
        program.status().context("start the program beside the node")
    })?))
}
