//! Kinds of volumes, as requests and replies have them.

use std::fmt;

use bulkhead_protocol::{SnapshotOf, VolumeKind};

use super::Kind;

impl Kind {
    /// Returns whether there is a filesystem in the image of such a volume.
    pub fn has_filesystem(kind: VolumeKind) -> bool {
        matches!(kind, VolumeKind::Filesystem { .. } | VolumeKind::Snapshot { of: SnapshotOf::Filesystem })
    }
}

impl From<VolumeKind> for Kind {
    fn from(kind: VolumeKind) -> Self {
        match kind {
            VolumeKind::Directory { .. } => Self::Directory,
            VolumeKind::Image { .. } => Self::Block,
            VolumeKind::Filesystem { .. } => Self::Filesystem,
            VolumeKind::Snapshot { .. } => Self::Snapshot,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Directory => "directory volume",
            Self::Block => "block volume",
            Self::Filesystem => "volume with a filesystem of its own",
            Self::Snapshot => "snapshot",
        })
    }
}
