//! The command line of snapshots and copies.

use std::convert::Infallible;

use bulkhead_model::quantity::Quantity;
use clap::{Args, Subcommand};

use super::{UID_LENGTH, volume_id};

/// What can be done with snapshots.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Take a snapshot of a volume, or find the one that was taken of it with this name.
    ///
    /// What was written to the volume and synced is in it. Only block volumes and filesystems in images can be copied, in
    /// pools on XFS with reflink. A snapshot is on the same disk: it is no backup.
    Create {
        /// Id of the volume.
        #[arg(value_parser = volume_id)]
        volume: String,
        /// Name of the snapshot; the same name always means the same snapshot.
        name: String,
    },
    /// Take a snapshot of each of several volumes, all at one moment, or find those that were taken of them with this name.
    ///
    /// Filesystems in images are frozen meanwhile, for two seconds at most; block volumes must be published nowhere, or
    /// read-only.
    Together {
        /// Name of the group; the same name always means the same snapshots.
        name: String,
        /// Ids of the volumes.
        #[arg(required = true, value_name = "VOLUME", value_parser = volume_id)]
        volumes: Vec<String>,
    },
    /// List snapshots: pool, kind, size, what they refer to, the volume they are of, and when they were taken.
    List {
        /// Only those of this volume.
        #[arg(long, value_name = "ID", value_parser = volume_id)]
        of: Option<String>,
    },
    /// Show all that is known of a snapshot.
    Show {
        /// Snapshot id.
        #[arg(value_parser = snapshot_id)]
        id: String,
    },
    /// Show which ranges of a snapshot hold data, or which may differ from an earlier snapshot, in bytes.
    Delta {
        /// The snapshot whose data is shown, or the earlier one of two.
        #[arg(value_parser = snapshot_id)]
        id: String,
        /// The later one.
        #[arg(value_parser = snapshot_id)]
        later: Option<String>,
    },
    /// Create a volume that begins as a copy of a snapshot. The snapshot stays as it is.
    ///
    /// It is in the same pool and of the same kind as the volume that the snapshot is of.
    Restore {
        /// Snapshot id.
        #[arg(value_parser = snapshot_id)]
        id: String,
        #[command(flatten)]
        copy: Copy,
    },
    /// Delete a snapshot, or all that were taken together. Asks first. Volumes that were made from it keep their content.
    Delete {
        /// Id of the snapshot or of the group.
        #[arg(value_parser = snapshot_id)]
        id: String,
        /// Do not ask. Required where there is no terminal.
        #[arg(long, short)]
        yes: bool,
    },
}

/// How a copy is to be.
#[derive(Debug, Args)]
pub struct Copy {
    /// Name of the new volume; the same name always means the same volume.
    pub name: String,
    /// Minimum size, if it is to be larger than its source.
    #[arg(long)]
    pub size: Option<Quantity>,
    /// Allocate its space only as it is written.
    #[arg(long)]
    pub sparse: bool,
    /// Permissions of the directory, in octal.
    #[arg(long, value_name = "MODE")]
    pub dir_mode: Option<String>,
}

/// The id of a snapshot, which may also be given by the name of the VolumeSnapshotContent that was made for it.
#[allow(clippy::unnecessary_wraps, reason = "clap wants a result")]
fn snapshot_id(text: &str) -> Result<String, Infallible> {
    Ok(match text.strip_prefix("snapcontent-") {
        Some(uid) if uid.len() == UID_LENGTH => format!("snapshot-{uid}"),
        _ => text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_also_known_by_its_objects_name() {
        let uid = "0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a111";
        let known = |text: &str| snapshot_id(text).unwrap();
        assert_eq!(known(&format!("snapcontent-{uid}")), format!("snapshot-{uid}"));
        for other in [format!("snapshot-{uid}"), "snapcontent-1".to_owned(), "monday".to_owned()] {
            assert_eq!(known(&other), other);
        }
    }
}
