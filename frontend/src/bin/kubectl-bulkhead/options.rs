//! The command line.

use std::path::PathBuf;

use bulkhead_frontend::report::Format;
use clap::{Parser, Subcommand, ValueEnum};

/// Inspect Bulkhead's nodes and volumes in a cluster, and release what a lost node held.
///
/// It does what the user's own rights allow, with the kubeconfig that kubectl uses.
#[derive(Debug, Parser)]
#[command(name = "kubectl-bulkhead", bin_name = "kubectl bulkhead", version)]
pub struct Options {
    /// The kubeconfig, instead of $KUBECONFIG or ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The context in the kubeconfig, instead of the current one.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,

    /// The name of the CSI driver.
    #[arg(long, global = true, value_name = "NAME", default_value = "bulkhead.csi.local")]
    pub driver: String,

    /// How to print: json, yaml, or wide for more columns.
    #[arg(long, short, global = true, value_name = "FORMAT")]
    pub output: Option<Output>,

    #[command(subcommand)]
    pub command: Command,
}

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// JSON, with all sizes in bytes; a failure is JSON too, on standard error.
    Json,
    /// The same as YAML.
    Yaml,
    /// A table with more columns.
    Wide,
}

impl Options {
    /// How to print results and failures.
    pub fn format(&self) -> Format {
        match self.output {
            Some(Output::Json) => Format::Json,
            Some(Output::Yaml) => Format::Yaml,
            Some(Output::Wide) | None => Format::Text,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the nodes: whether the driver is registered, what they hold, and how much room is left.
    Nodes,
    /// List the pools of all nodes as their agents know them: room, volumes, condition.
    ///
    /// The agents' metrics are read through the API server's proxy to their pods, which takes the right to get pods/proxy.
    Pools,
    /// List the room that each node publishes for each storage class, by which the scheduler chooses.
    Capacity,
    /// List the volumes: node, claim, size, phase.
    Volumes {
        /// Go on printing volumes that change.
        #[arg(long, short)]
        watch: bool,
    },
    /// List what refers to nodes that no longer exist: volumes, and claims that wait for such a node.
    Orphans,
    /// Check what volumes depend on: driver object, policies, agents, registration, capacity, lost nodes.
    ///
    /// Each line says what was found and, where something fails, what to do. The exit status is 0 if nothing fails.
    Doctor,
    /// Give up the volumes of a node that is gone for good. Shows what is lost, and asks.
    ///
    /// Claims that wait for the node go back to the scheduler. Claims and PersistentVolumes that were on it are deleted: the
    /// data is on the node's disk.
    ReleaseNode {
        /// The name of the node, whose Node object must have been deleted.
        node: String,
        /// Do not ask. Required where there is no terminal.
        #[arg(long, short)]
        yes: bool,
    },
}
