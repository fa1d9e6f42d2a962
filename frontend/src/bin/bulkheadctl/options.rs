//! The command line.

use bulkhead_frontend::endpoint::Endpoint;
use bulkhead_frontend::quantity::Quantity;
use clap::{Args, Parser, Subcommand};

/// Create, publish, inspect and delete volumes through a CSI endpoint.
#[derive(Debug, Parser)]
#[command(name = "bulkheadctl", version)]
pub struct Options {
    /// Socket served by bulkhead-frontend: unix:///PATH.
    #[arg(
        long,
        global = true,
        value_name = "ENDPOINT",
        env = "BULKHEAD_ENDPOINT",
        default_value = "unix:///run/bulkhead/csi.sock"
    )]
    pub endpoint: Endpoint,

    /// Print JSON instead of text.
    #[arg(long, global = true)]
    pub json: bool,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Manage the volumes of this node.
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Inspect the node.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Show the space available for new volumes.
    Capacity {
        /// Pool to inspect; defaults to the pool that new volumes are created in.
        #[arg(long)]
        pool: Option<String>,
    },
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
    /// List all volumes.
    List,
    /// Publish a volume at a path below one of the publish directories.
    Publish(Publish),
    /// Unpublish a volume from a path.
    Unpublish {
        /// Volume id, as shown by "volume list".
        id: String,
        /// Absolute path at which it is published.
        target: String,
    },
    /// Expand a volume while it is in use.
    Expand {
        /// Volume id.
        id: String,
        /// Minimum size, such as 20Gi.
        #[arg(long)]
        size: Quantity,
        /// Path at which it is published: use the Node service instead of the Controller service.
        #[arg(long)]
        path: Option<String>,
    },
    /// Show how much of a volume is used, and whether it is healthy.
    Stats {
        /// Volume id.
        id: String,
        /// Absolute path at which it is published.
        path: String,
    },
    /// Delete a volume and all its data.
    Delete {
        /// Volume id.
        id: String,
    },
}

#[derive(Debug, Args)]
pub struct Create {
    /// Name of the volume; the same name always means the same volume.
    pub name: String,
    /// Minimum size.
    #[arg(long, default_value = "1Gi")]
    pub size: Quantity,
    /// Create a block device instead of a directory.
    #[arg(long)]
    pub block: bool,
    /// Pool to create it in.
    #[arg(long)]
    pub pool: Option<String>,
    /// Allocate a block device's space only as it is written.
    #[arg(long, requires = "block")]
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
