//! How a volume is to be used.

use bulkhead_protocol::{MountFlags, SnapshotOf, VolumeKind};

use super::{Fault, MountOptions};

/// Filesystem types that may be requested: those that pools can have.
const FILESYSTEMS: [&str; 2] = ["xfs", "ext4"];

/// How a volume appears to its user. The mode is fixed at creation: a volume is never used in the other mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A mounted directory.
    Directory,
    /// A block device.
    Block,
}

/// How many users may share a volume, as far as one node can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// At most one target.
    OneTarget,
    /// Any number of targets.
    ManyTargets,
    /// Any number of targets, all read-only.
    ReadersOnly,
}

/// A supported way to use a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// As a directory.
    Directory {
        /// How it may be shared.
        sharing: Sharing,
        /// How it is mounted.
        options: MountOptions,
    },
    /// As a block device.
    Block {
        /// How it may be shared.
        sharing: Sharing,
        /// Whether writes are refused.
        read_only: bool,
    },
}

impl Mode {
    /// The mode in which volumes of this kind are used; of a snapshot, that of the volumes that are made from it.
    pub fn of(kind: &VolumeKind) -> Self {
        match kind {
            VolumeKind::Directory { .. }
            | VolumeKind::Filesystem { .. }
            | VolumeKind::Snapshot { of: SnapshotOf::Filesystem } => Self::Directory,
            VolumeKind::Image { .. } | VolumeKind::Snapshot { of: SnapshotOf::Image { .. } } => Self::Block,
        }
    }

    /// The word for it in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Block => "block",
        }
    }
}

impl Access {
    /// The mode of this access.
    pub fn mode(&self) -> Mode {
        match self {
            Self::Directory { .. } => Mode::Directory,
            Self::Block { .. } => Mode::Block,
        }
    }

    /// This access, made read-only if requested or if nobody may write.
    #[must_use]
    pub fn restricted(self, read_only: bool) -> Self {
        match self {
            Self::Directory { sharing, options } => {
                let read_only = options.flags.read_only || read_only || sharing == Sharing::ReadersOnly;
                let flags = MountFlags { read_only, ..options.flags };
                Self::Directory { sharing, options: MountOptions { flags, ..options } }
            }
            Self::Block { sharing, read_only: already } => {
                Self::Block { sharing, read_only: already || read_only || sharing == Sharing::ReadersOnly }
            }
        }
    }
}

/// Checks that a filesystem type can be provided: a directory volume has the filesystem of its pool.
///
/// # Errors
/// When it cannot.
pub fn check_filesystem(name: &str) -> Result<(), Fault> {
    if name.is_empty() || FILESYSTEMS.contains(&name) {
        return Ok(());
    }
    let known = FILESYSTEMS.join(" or ");
    Err(Fault::unsupported(format!("filesystem type {name:?} is not available: leave it empty, or use {known}")))
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::ErrorKind;

    use super::*;

    #[test]
    fn filesystems() {
        for name in ["", "xfs", "ext4"] {
            check_filesystem(name).unwrap();
        }
        for name in ["btrfs", "XFS", "ext3"] {
            assert!(check_filesystem(name).unwrap_err().is(ErrorKind::Unsupported));
        }
    }

    #[test]
    fn readers_never_write() {
        let readers = Access::Directory { sharing: Sharing::ReadersOnly, options: MountOptions::default() };
        assert!(matches!(readers.restricted(false), Access::Directory { options, .. } if options.flags.read_only));
        let block = Access::Block { sharing: Sharing::OneTarget, read_only: false };
        assert_eq!(block.clone().restricted(false), block);
        assert!(matches!(block.restricted(true), Access::Block { read_only: true, .. }));
    }
}
