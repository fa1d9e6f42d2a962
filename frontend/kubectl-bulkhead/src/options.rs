//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use bulkhead_console::manual::{self, EXIT_STATUS, Section};
use bulkhead_console::report::Format;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// What the manual pages and `--help` say besides.
pub const SECTIONS: &[Section] = &[
    EXIT_STATUS,
    Section {
        title: "Environment",
        entries: &[(
            "KUBECONFIG",
            "The kubeconfig, or several separated by colons, on Windows by semicolons, as for kubectl.",
        )],
    },
    Section { title: "Files", entries: &[("~/.kube/config", "The kubeconfig, if nothing else names one.")] },
    Section {
        title: "Examples",
        entries: &[
            ("kubectl bulkhead doctor", "Finds out what is wrong in the cluster."),
            ("kubectl bulkhead nodes", "Shows which nodes are ready, and how much room is left."),
            ("kubectl bulkhead pools -o wide", "Shows all that the agents know of their pools."),
            ("kubectl bulkhead capacity", "Shows by which figures the scheduler chooses."),
            ("kubectl bulkhead capacity --by-namespace", "Shows how much of their shares namespaces have."),
            ("kubectl bulkhead volumes --namespace shop -o wide", "Shows what a namespace uses, and which pods do."),
            ("kubectl bulkhead volumes --node worker-1 -o yaml", "Shows the volumes of one node."),
            ("kubectl bulkhead volumes --watch", "Shows all volumes, and then each that changes."),
            ("kubectl bulkhead nodes --as alice", "Shows what alice may see."),
            ("kubectl bulkhead bundle --since 2h", "Gathers what those need who are asked for help."),
            ("kubectl bulkhead ui", "Shows all of it in a browser."),
            ("kubectl bulkhead orphans", "Shows what refers to nodes that are gone, and volumes that nobody needs."),
            ("kubectl bulkhead adopt", "Shows which volumes could be brought back after etcd was lost."),
            ("kubectl bulkhead adopt --apply --with-claims", "Brings them back, with their claims."),
            ("kubectl bulkhead release-node worker-1", "Gives up what was on a node that is gone for good."),
            (
                "kubectl bulkhead completion > /usr/local/bin/kubectl_complete-bulkhead",
                "Lets kubectl complete this plugin's commands, once the file is executable.",
            ),
        ],
    },
];

/// Inspect Bulkhead's nodes and volumes in a cluster, and release what a lost node held.
///
/// It does what the user's own rights allow, with the kubeconfig that kubectl uses.
#[derive(Debug, Parser)]
#[command(name = "kubectl-bulkhead", bin_name = "kubectl bulkhead", version, after_long_help = manual::help(SECTIONS))]
pub struct Options {
    /// The kubeconfig, instead of $KUBECONFIG or ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The context in the kubeconfig, instead of the current one.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,

    /// The user to act as, if your rights allow it: what may somebody else see?
    #[arg(long = "as", global = true, value_name = "USER")]
    pub user: Option<String>,

    /// A group to act as, beside --as; may be repeated.
    #[arg(long = "as-group", global = true, value_name = "GROUP", requires = "user")]
    pub groups: Vec<String>,

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

/// Which volumes are listed.
#[derive(Args, Debug)]
pub struct Filter {
    /// Only volumes on this node.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Only volumes of claims in this namespace.
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Only volumes of this storage class.
    #[arg(long, value_name = "NAME")]
    pub class: Option<String>,
    /// Only volumes in this phase: Available, Bound, Released, Failed, Terminating.
    #[arg(long, value_name = "PHASE")]
    pub phase: Option<String>,
}

/// Which volumes are brought back, and how.
#[derive(Args, Debug)]
pub struct Adopt {
    /// Only volumes on this node; with --from, the node that the volumes in the file are on now.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Only this volume, and for this claim, whatever is recorded on it.
    #[arg(long, num_args = 2, value_names = ["NAMESPACE/NAME", "VOLUME"])]
    pub claim: Option<Vec<String>>,
    /// Read what `bulkheadctl volume export` printed, where agents are not pods.
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Act on a file that is older than an hour, too: volumes that were deleted since get objects without data.
    #[arg(long, requires = "from")]
    pub allow_old: bool,
    /// Do it. Without this it says what it would do.
    #[arg(long)]
    pub apply: bool,
    /// Make the claims as well, if they are gone. Usually a StatefulSet or GitOps does.
    #[arg(long)]
    pub with_claims: bool,
    /// Include volumes that were never published, which hold no data.
    #[arg(long)]
    pub include_unused: bool,
    /// The storage class, instead of the recorded one.
    #[arg(long, value_name = "NAME")]
    pub class: Option<String>,
    /// The disk was in this node before: replace the PersistentVolumes that say so. Their claims stay.
    #[arg(long, value_name = "NODE", requires = "node")]
    pub replace_from: Option<String>,
}

/// What a bundle has.
#[derive(Args, Debug)]
pub struct Bundle {
    /// The archive, which must not exist yet [default: bulkhead-bundle-DATE.tar.gz in this directory]
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Of logs only what is not older: 30m, 2h, 7d.
    #[arg(long, value_name = "AGE", value_parser = age)]
    pub since: Option<Duration>,
    /// How long it may take, in all: 30m, 2h. What has not answered by then is missing, and MANIFEST.json says so.
    #[arg(long, value_name = "TIME", value_parser = age, default_value = "30m")]
    pub within: Duration,
    /// Keep the names of namespaces, claims, snapshots and pods, instead of a pseudonym for each.
    #[arg(long)]
    pub names: bool,
}

/// An age, or another span of time: a whole number of seconds, minutes, hours or days.
fn age(text: &str) -> Result<Duration, String> {
    let seconds = |unit| match unit {
        's' => Some(1_u64),
        'm' => Some(60),
        'h' => Some(3600),
        'd' => Some(86_400),
        _ => None,
    };
    let age = text.chars().next_back().and_then(seconds).and_then(|unit| {
        let number: u64 = text.get(..text.len().checked_sub(1)?)?.parse().ok()?;
        number.checked_mul(unit).filter(|&seconds| seconds > 0 && i64::try_from(seconds).is_ok())
    });
    age.map(Duration::from_secs).ok_or_else(|| "it is a number and one of s, m, h, d, as in 2h".to_owned())
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the nodes: whether the driver is registered, what they hold, and how much room is left.
    Nodes,
    /// List the pools of all nodes as their agents know them: room, volumes, condition.
    ///
    /// The agents' metrics are read through the API server's proxy to their pods, which takes the right to get
    /// pods/proxy.
    Pools,
    /// List the room that each node publishes for each storage class, by which the scheduler chooses.
    Capacity {
        /// List instead what namespaces have of each pool, and how much of their share that is, where --namespace-share of
        /// bulkhead-frontend limits it. Reading it takes the right to get pods/proxy.
        #[arg(long)]
        by_namespace: bool,
    },
    /// List the volumes: node, claim, size, phase, condition.
    ///
    /// The condition is what the agents have found: a volume that needs attention is abnormal, and one that does not
    /// exist is missing. Reading it takes the right to get pods/proxy.
    ///
    /// With -o wide, json or yaml also what is used of each, as its kubelet measures it (which takes the right to get
    /// nodes/proxy, or nodes/stats), and the pods that have it.
    Volumes {
        #[command(flatten)]
        filter: Filter,
        /// Go on printing volumes that change.
        #[arg(long, short)]
        watch: bool,
    },
    /// List the snapshots: node, VolumeSnapshot, size, state.
    Snapshots,
    /// List what nobody needs any more, or nobody can have: what refers to nodes that no longer exist (volumes, and
    /// claims that wait for such a node), and volumes on nodes that no PersistentVolume names.
    Orphans,
    /// Check what volumes depend on: driver object, policies, agents, registration, capacity, lost nodes.
    ///
    /// Each line says what was found and, where something fails, what to do. The exit status is 0 if nothing fails.
    Doctor,
    /// Gather what those need to know who are asked for help in one archive: what these commands say, objects, metrics, logs.
    ///
    /// It has no Secret, and the names of tenants' namespaces, claims, snapshots and pods are replaced: MANIFEST.json in it
    /// lists each entry and what could not be read, LEFT-OUT.txt what was left out. Logs take the right to get pods/log,
    /// metrics that to get pods/proxy; what your rights do not allow is missing, and the rest is there.
    Bundle(Bundle),
    /// List what is on a node, and which pods use it: what stands still while it is away, and is lost if it does not come
    /// back.
    Impact {
        /// The name of the node.
        node: String,
    },
    /// Serve a page on this machine that shows nodes, pools, volumes and what doctor says, until interrupted.
    ///
    /// It shows what your rights allow, to whoever knows the address that is printed, and changes nothing.
    Ui {
        /// The port on 127.0.0.1; any that is free, unless it is given.
        #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
        port: u16,
    },
    /// Have a pool take no new volumes, until uncordon.
    ///
    /// Its node is published as one without room for classes of the pool, and claims go to other nodes. What the pool
    /// has is used, grows and is deleted as before, and snapshots are taken. The node's agent goes by it within 70
    /// seconds, after restarts too, until the Node object is deleted. It takes the right to get and patch leases in the
    /// agents' namespace.
    Cordon {
        /// The pool.
        #[arg(value_name = "NODE/POOL")]
        pool: String,
    },
    /// Have a cordoned pool take new volumes again.
    Uncordon {
        /// The pool.
        #[arg(value_name = "NODE/POOL")]
        pool: String,
    },
    /// Give up the volumes of a node that is gone for good. Shows them, and asks.
    ///
    /// Claims that wait for the node go back to the scheduler. Claims, PersistentVolumes and VolumeSnapshots that were
    /// on it are deleted, whatever their policy. The data stays on the node's disk; if that is found again, adopt
    /// brings it back.
    ReleaseNode {
        /// The name of the node, whose Node object must have been deleted.
        node: String,
        /// Do not ask. Required where there is no terminal.
        #[arg(long, short)]
        yes: bool,
        /// Give up also what is known to be on another node, as its disk was moved there or the node was renamed.
        #[arg(long)]
        abandon_moved: bool,
    },
    /// Bring volumes back whose PersistentVolumes are gone: etcd was lost, a disk is in another node, an object was
    /// deleted.
    ///
    /// Each volume carries a note of whose it was. This reads the notes from the agents (which takes the right to get
    /// pods/proxy) or from a file, and says what it would do with each volume; with --apply it makes a PersistentVolume
    /// for each, with the policy Retain, that no claim but the recorded one can have. Existing objects are never
    /// changed, and it may be repeated. Run it before workloads are restored: a claim that is made first gets a new,
    /// empty volume.
    Adopt(Adopt),
    /// Print the program by which kubectl completes this plugin's commands.
    ///
    /// Save it as kubectl_complete-bulkhead in a directory of the PATH, and make it executable; on Windows, save it as
    /// kubectl_complete-bulkhead.cmd.
    Completion,
    /// Print what could stand in the place of the last word.
    #[command(hide = true)]
    Complete {
        /// The words after `kubectl bulkhead`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Write the manual pages into a directory.
    #[command(hide = true)]
    Man {
        /// The directory, which must exist.
        directory: PathBuf,
    },
}
