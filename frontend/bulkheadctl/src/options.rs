//! The command line.

mod copies;

use std::convert::Infallible;
use std::path::PathBuf;

use bulkhead_console::manual::{self, EXIT_STATUS, Section};
use bulkhead_console::report::Format;
use bulkhead_frontend::endpoint::Endpoint;
use bulkhead_model::quantity::Quantity;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub use copies::{Copy, SnapshotCommand};

/// How long the uid of a claim is.
const UID_LENGTH: usize = 36;

/// What the manual pages and `--help` say besides.
pub const SECTIONS: &[Section] = &[
    EXIT_STATUS,
    Section {
        title: "Environment",
        entries: &[
            ("BULKHEAD_ENDPOINT", "The socket of bulkhead-frontend, as with --endpoint."),
            ("BULKHEAD_HELPER_SOCKET", "The socket of bulkhead-privhelper, as with --helper-socket."),
        ],
    },
    Section {
        title: "Files",
        entries: &[
            (
                "/etc/bulkhead/privhelper.conf",
                "The helper's configuration, which names the socket of bulkhead-frontend.",
            ),
            ("/var/lib/kubelet/plugins/bulkhead.csi.local/csi.sock", "That socket, if there is no configuration."),
            ("/run/bulkhead/csi.sock", "The same without a kubelet."),
        ],
    },
    Section {
        title: "Examples",
        entries: &[
            ("bulkheadctl doctor", "Finds out what is wrong on this node."),
            ("bulkheadctl pool list", "Shows how much room is left."),
            ("bulkheadctl volume show pvc-1", "Shows one volume, where it is published, and the claim it belongs to."),
            ("bulkheadctl volume create data --size 10Gi", "Creates a volume of 10 GiB."),
            (
                "bulkheadctl volume create mail --size 10Gi --backing image",
                "The same with a filesystem of its own, in an image.",
            ),
            ("bulkheadctl volume publish data /run/bulkhead/volumes/data", "Mounts it."),
            ("bulkheadctl volume unpublish data /run/bulkhead/volumes/data", "Unmounts it."),
            ("bulkheadctl volume expand data --size 20Gi", "Makes it larger, while it is in use."),
            (
                "bulkheadctl snapshot create data before-upgrade",
                "Takes a snapshot of it: of a volume that has an image.",
            ),
            ("bulkheadctl snapshot restore before-upgrade data-2", "Makes a new volume from the snapshot."),
            ("bulkheadctl snapshot delta monday tuesday", "Shows which parts of the volume a backup has to read."),
            ("bulkheadctl volume delete data", "Deletes it, if no claim needs it and the answer is yes."),
            (
                "bulkheadctl volume export > node-1.jsonl",
                "Saves whose the volumes are, for the day on which etcd is lost.",
            ),
            ("bulkheadctl --json volume list", "Lists all volumes for a script."),
        ],
    },
];

/// Inspect this node's pools and volumes, and find out what is wrong; create, publish, expand and delete volumes.
///
/// It asks bulkhead-frontend, on the socket that the helper's configuration names. Run it as root on the node, or in
/// the frontend's container, where it asks bulkhead-privhelper.
#[derive(Debug, Parser)]
#[command(name = "bulkheadctl", version, after_long_help = manual::help(SECTIONS))]
pub struct Options {
    /// Socket served by bulkhead-frontend: unix:///PATH. By default the one that /etc/bulkhead/privhelper.conf leads
    /// to.
    #[arg(long, global = true, value_name = "ENDPOINT", env = "BULKHEAD_ENDPOINT")]
    pub endpoint: Option<Endpoint>,

    /// Socket of bulkhead-privhelper, to ask it instead: in the frontend's container, which sees no other.
    #[arg(long, global = true, value_name = "PATH", env = "BULKHEAD_HELPER_SOCKET")]
    pub helper_socket: Option<PathBuf>,

    /// Print JSON instead of text; a failure is JSON too, on standard error.
    #[arg(long, global = true)]
    pub json: bool,

    #[command(subcommand)]
    pub command: Command,
}

impl Options {
    /// How to print results and failures.
    pub fn format(&self) -> Format {
        if self.json { Format::Json } else { Format::Text }
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Inspect the pools of this node.
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Manage the volumes of this node.
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Manage the snapshots of this node's volumes.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Inspect the node.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Show the space available for new volumes.
    Capacity {
        /// Pool to inspect; defaults to the pool that new volumes are created in.
        #[arg(long)]
        pool: Option<String>,
    },
    /// Check what volumes depend on: helper, pools, API server, policies, releases.
    ///
    /// Each line says what was found and, where something fails, what to do. The exit status is 0 if nothing fails.
    Doctor,
    /// Print a script that completes commands in a shell, such as: source <(bulkheadctl completion bash).
    Completion {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual pages into a directory.
    #[command(hide = true)]
    Man {
        /// The directory, which must exist.
        directory: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// List the pools with their space and their condition.
    List,
}

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Show the node's name, its topology, and whether it is ready.
    Info,
}

#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Create a volume, or find the one with this name.
    Create(Create),
    /// Create a volume that begins as a copy of another one, as that is at this moment. They share what neither writes
    /// to.
    ///
    /// It is in the same pool and of the same kind. Only block volumes and filesystems in images can be copied, in
    /// pools on XFS with reflink.
    Clone {
        /// Id of the volume to copy.
        #[arg(value_parser = volume_id)]
        id: String,
        #[command(flatten)]
        copy: Copy,
    },
    /// List all volumes: pool, kind, size, what is used, at how many targets each is published, and its condition.
    List,
    /// Show all that is known of a volume.
    Show {
        /// Volume id.
        #[arg(value_parser = volume_id)]
        id: String,
    },
    /// List the volumes that no PersistentVolume names. This needs a frontend that is the node's storage agent.
    Orphans,
    /// Print all volumes with what is recorded on each about whose it is: a JSON object for each volume, one a line,
    /// which also says when it was printed, on which node, and by which release.
    ///
    /// Whoever has these lines can bring the volumes back into a cluster that has lost its objects, with
    /// `kubectl bulkhead adopt --from FILE`.
    Export {
        /// Only volumes of this pool.
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
    },
    /// Publish a volume at a path below one of the publish directories.
    Publish(Publish),
    /// Unpublish a volume from a path.
    ///
    /// If it is not published there, this says so and succeeds: a script may repeat it.
    Unpublish {
        /// Volume id, as shown by "volume list".
        #[arg(value_parser = volume_id)]
        id: String,
        /// Absolute path at which it is published.
        target: String,
    },
    /// Expand a volume while it is in use.
    Expand {
        /// Volume id.
        #[arg(value_parser = volume_id)]
        id: String,
        /// Minimum size, such as 20Gi.
        #[arg(long)]
        size: Quantity,
        /// Path at which it is published: use the Node service instead of the Controller service.
        #[arg(long)]
        path: Option<String>,
    },
    /// Change attributes of a volume while it is in use.
    #[command(group = clap::ArgGroup::new("attributes").required(true).multiple(true))]
    Modify {
        /// Volume id.
        #[arg(value_parser = volume_id)]
        id: String,
        /// How many inodes a directory volume may use: more than before, or fewer, but as many as it uses.
        #[arg(long, group = "attributes")]
        inodes: Option<String>,
        /// Allocate all of a sparse image, for good.
        #[arg(long, group = "attributes")]
        thick: bool,
    },
    /// Show how much of a volume is used, and whether it is healthy.
    Stats {
        /// Volume id.
        #[arg(value_parser = volume_id)]
        id: String,
        /// Absolute path at which it is published.
        path: String,
    },
    /// Delete a volume and all its data. Asks first.
    ///
    /// It is refused if a PersistentVolume names the volume or a claim waits for it, or if the node's storage agent
    /// cannot tell. Without a storage agent nobody knows what an orchestrator thinks of the volume.
    Delete {
        /// Volume id.
        #[arg(value_parser = volume_id)]
        id: String,
        /// Do not ask. Required where there is no terminal.
        #[arg(long, short)]
        yes: bool,
        /// Delete it even if a claim needs it, or may need it.
        #[arg(long)]
        force: bool,
    },
}

/// What is behind a volume that is used as a directory.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Backing {
    /// A directory of the pool, with a quota.
    Directory,
    /// An XFS in an image file, which has at least 300 MiB; the pool must be configured for it.
    Image,
}

impl Backing {
    /// The value of the parameter.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Image => "image",
        }
    }
}

#[derive(Debug, Args)]
pub struct Create {
    /// Name of the volume; the same name always means the same volume.
    pub name: String,
    /// Minimum size.
    #[arg(long, default_value = "1Gi")]
    pub size: Quantity,
    /// Create a block device instead of a directory.
    #[arg(long, group = "imaged")]
    pub block: bool,
    /// Pool to create it in.
    #[arg(long)]
    pub pool: Option<String>,
    /// What is behind a directory: a directory of the pool, or a filesystem of its own in an image.
    #[arg(long, value_enum, conflicts_with = "block", group = "imaged")]
    pub backing: Option<Backing>,
    /// Allocate an image's space only as it is written.
    #[arg(long, requires = "imaged")]
    pub sparse: bool,
    /// Logical block size of a block device: 512 or 4096.
    #[arg(long, value_name = "BYTES", requires = "block")]
    pub block_size: Option<String>,
    /// Permissions of the directory, in octal.
    #[arg(long, value_name = "MODE", conflicts_with = "block")]
    pub dir_mode: Option<String>,
    /// Maximum number of inodes in the directory.
    #[arg(long, value_name = "NUMBER", conflicts_with = "block")]
    pub inodes: Option<String>,
}

#[derive(Debug, Args)]
pub struct Publish {
    /// Volume id, as shown by "volume list".
    #[arg(value_parser = volume_id)]
    pub id: String,
    /// Absolute path; its parent directory must exist.
    pub target: String,
    /// Publish it read-only.
    #[arg(long)]
    pub read_only: bool,
    /// The volume is a block device.
    #[arg(long)]
    pub block: bool,
    /// Refuse if it is published anywhere else.
    #[arg(long)]
    pub exclusive: bool,
    /// Mount flag for the directory, such as noexec; may be repeated.
    #[arg(long, value_name = "FLAG", conflicts_with = "block")]
    pub mount_flag: Vec<String>,
}

/// The id of a volume, which may also be given by the name of the PersistentVolume that an agent made for it. That has
/// the node's name at its end.
#[allow(clippy::unnecessary_wraps, reason = "clap wants a result")]
fn volume_id(text: &str) -> Result<String, Infallible> {
    let made_by_agent = |id: &str| id.starts_with("pvc-") && id.len() == "pvc-".len() + UID_LENGTH;
    Ok(match text.split_once('.') {
        Some((id, _)) if made_by_agent(id) => id.to_owned(),
        _ => text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_also_known_by_its_objects_name() {
        let uid = "0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a111";
        let known = |text: &str| volume_id(text).unwrap();
        assert_eq!(known(&format!("pvc-{uid}.node-1.example.com")), format!("pvc-{uid}"));
        for other in [format!("pvc-{uid}"), "pvc-0d6f.2".to_owned(), "a.b".to_owned()] {
            assert_eq!(known(&other), other);
        }
    }
}
