//! A Kubernetes node with Bulkhead on it: tests that run pods there, or a shell beside it.

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use bulkhead_tests::node::Node;
use clap::{Parser, Subcommand};

/// Brings up a control plane, and a node on the machine that is lent on standard input.
#[derive(Debug, Parser)]
struct Options {
    /// The directory with what is deployed
    #[arg(long)]
    deploy: PathBuf,
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run a shell command that finds the cluster with kubectl
    Shell {
        /// The command
        command: String,
    },
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    let node = Node::start()?;
    match &options.task {
        Task::Shell { command } => shell(&node, command),
    }
}

fn shell(node: &Node, command: &str) -> Result<ExitCode> {
    let programs = node.kubectl.program.parent().context("kubectl has no directory")?;
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("PATH", path).env("KUBECONFIG", &node.kubectl.kubeconfig);
    let status = shell.status().context("start a shell")?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}
