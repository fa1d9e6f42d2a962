//! The command line.

use bulkhead_frontend::endpoint::Endpoint;
use bulkhead_frontend::quantity::Quantity;
use clap::{Args, Parser, Subcommand};

/// Makes, publishes, measures and deletes volumes through a CSI endpoint.
#[derive(Debug, Parser)]
#[command(name = "bulkheadctl", version)]
pub struct Options {
    /// Socket that bulkhead-frontend serves: unix:///PATH.
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
    /// Volumes of this node.
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// The node itself.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Room for new volumes.
    Capacity {
        /// Pool to look at; by default the one that volumes are made in.
        #[arg(long)]
        pool: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Its name, its place, and whether it is ready.
    Info,
}

#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Make a volume, or find the one with that name.
    Create(Create),
    /// All volumes.
    List,
    /// Bring a volume to a path below one of the publish directories.
    Publish(Publish),
    /// Take a volume away from a path.
    Unpublish {
        /// Volume id, as "volume list" shows it.
        id: String,
        /// Absolute path at which it is published.
        target: String,
    },
    /// Make a volume larger while it is in use.
    Expand {
        /// Volume id.
        id: String,
        /// Size it is to have at least, such as 20Gi.
        #[arg(long)]
        size: Quantity,
        /// Path at which it is published: ask the Node service instead of the Controller service.
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
    /// Delete a volume, with everything in it.
    Delete {
        /// Volume id.
        id: String,
    },
}

#[derive(Debug, Args)]
pub struct Create {
    /// Name to ask for it by; the same name gives the same volume.
    pub name: String,
    /// Size it is to have at least.
    #[arg(long, default_value = "1Gi")]
    pub size: Quantity,
    /// Make a block device instead of a directory.
    #[arg(long)]
    pub block: bool,
    /// Pool to make it in.
    #[arg(long)]
    pub pool: Option<String>,
    /// Allocate a block device's space only when it is written.
    #[arg(long, requires = "block")]
    pub sparse: bool,
    /// Logical block size of a block device: 512 or 4096.
    #[arg(long, value_name = "BYTES", requires = "block")]
    pub block_size: Option<String>,
    /// Permissions of the directory, in octal.
    #[arg(long, value_name = "MODE", conflicts_with = "block")]
    pub dir_mode: Option<String>,
    /// Most inodes that the directory may hold.
    #[arg(long, value_name = "NUMBER", conflicts_with = "block")]
    pub inodes: Option<String>,
}

#[derive(Debug, Args)]
pub struct Publish {
    /// Volume id, as "volume list" shows it.
    pub id: String,
    /// Absolute path; its parent directory exists.
    pub target: String,
    /// Refuse writes.
    #[arg(long)]
    pub read_only: bool,
    /// The volume is a block device.
    #[arg(long)]
    pub block: bool,
    /// Refuse if it is published anywhere else.
    #[arg(long)]
    pub exclusive: bool,
    /// Flag to mount the directory with, such as noexec; may be given again.
    #[arg(long, value_name = "FLAG", conflicts_with = "block")]
    pub mount_flag: Vec<String>,
}
