//! A Kubernetes node with Bulkhead on it: tests that run pods there, or a shell beside it.

mod deployment;
mod pods;
mod restarts;
mod story;
mod traces;
mod volumes;

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use bulkhead_tests::node::Node;
use clap::{Parser, Subcommand};

use self::deployment::Deployment;
use self::story::{Check, Story};

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
    /// Run the tests, in both deployments
    Test,
    /// Run a shell command that finds the cluster with kubectl
    Shell {
        /// The command
        command: String,
    },
}

/// The story of a deployment. Later checks go on with the volumes and pods of the earlier ones.
const CHECKS: [(&str, Check); 13] = [
    ("the node is registered and tells its room", deployment::is_installed),
    ("a filesystem claim and a block claim are written and read", volumes::claims_are_bound_and_written),
    ("the quota is felt inside the pod", volumes::the_quota_is_felt),
    ("read-only volumes", volumes::read_only_is_read_only),
    ("a pod is deleted and created again", volumes::a_new_pod_has_the_data),
    ("expansion is seen inside the running pod", volumes::expansion_is_seen_in_the_pod),
    ("a stateful set", volumes::a_stateful_set),
    ("the kubelet is restarted", restarts::the_kubelet),
    ("both programs are killed", restarts::both_programs_are_killed),
    ("the agent is upgraded in place", restarts::the_agent_is_upgraded),
    ("the node is rebooted", restarts::the_node_is_rebooted),
    ("the node is cut off", restarts::the_node_is_cut_off),
    ("nothing is left of deleted claims", traces::nothing_is_left),
];

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    let node = Node::start()?;
    match &options.task {
        Task::Test => test(&node, options),
        Task::Shell { command } => {
            Deployment::Container.install(&node, &options.deploy)?;
            shell(&node, command)
        }
    }
}

fn test(node: &Node, options: &Options) -> Result<ExitCode> {
    let (mut passed, mut failed) = (0, 0);
    for deployment in [Deployment::Container, Deployment::HostService] {
        let told = deployment.install(node, &options.deploy).and_then(|()| {
            let mut story = Story::new(node, deployment)?;
            story.tell(&CHECKS);
            passed += story.passed;
            failed += story.failed;
            deployment.remove(node)
        });
        if let Err(error) = told {
            println!("{deployment:?}: {error:#}");
            node.tell_logs();
            failed += 1;
            // The other deployment finds a node in an unknown state.
            break;
        }
    }
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn shell(node: &Node, command: &str) -> Result<ExitCode> {
    let programs = node.kubectl.program.parent().context("kubectl has no directory")?;
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("PATH", path).env("KUBECONFIG", &node.kubectl.kubeconfig);
    let status = shell.status().context("start a shell")?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}
