//! How a volume is to be used.

use bulkhead_protocol::{MountFlags, SnapshotOf, VolumeKind};

use super::Fault;

const MOUNT_FLAGS: [&str; 7] = ["ro", "noexec", "nosuid", "nodev", "noatime", "nodiratime", "relatime"];

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// As a directory, mounted with these flags.
    Directory {
        /// How it may be shared.
        sharing: Sharing,
        /// How it is mounted.
        flags: MountFlags,
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
            Self::Directory { sharing, flags } => {
                let read_only = flags.read_only || read_only || sharing == Sharing::ReadersOnly;
                Self::Directory { sharing, flags: MountFlags { read_only, ..flags } }
            }
            Self::Block { sharing, read_only: already } => {
                Self::Block { sharing, read_only: already || read_only || sharing == Sharing::ReadersOnly }
            }
        }
    }
}

/// The mount flags named by `words`.
///
/// # Errors
/// On any word that is not accepted; the message lists those that are.
pub fn mount_flags<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<MountFlags, Fault> {
    let mut flags = MountFlags::default();
    for word in words {
        match word {
            // As mount(8) does, the last one of a pair decides.
            "ro" | "rw" => flags.read_only = word == "ro",
            "noexec" | "exec" => flags.no_exec = word == "noexec",
            "noatime" | "atime" => flags.no_atime = word == "noatime",
            "nodiratime" | "diratime" => flags.no_diratime = word == "nodiratime",
            // The first two are always on; the others are the default, or are for fstab(5) only.
            "nosuid" | "nodev" | "relatime" | "defaults" | "async" | "auto" | "nouser" | "nofail" | "_netdev" => {}
            // The word is not repeated: mount flags may be confidential.
            _ => {
                let accepted = MOUNT_FLAGS.join(", ");
                return Err(Fault::invalid(format!("unsupported mount flag; supported flags are {accepted}")));
            }
        }
    }
    Ok(flags)
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
    fn accepted_flags_are_understood() {
        let flags = mount_flags(MOUNT_FLAGS).unwrap();
        assert_eq!(flags, MountFlags { read_only: true, no_exec: true, no_atime: true, no_diratime: true });
        assert_eq!(mount_flags(["nosuid", "nodev", "relatime"]).unwrap(), MountFlags::default());
        let usual = ["defaults", "rw", "exec", "atime", "diratime", "async", "auto", "nouser", "nofail", "_netdev"];
        assert_eq!(mount_flags(usual).unwrap(), MountFlags::default());
        assert_eq!(mount_flags(["ro", "rw"]).unwrap(), MountFlags::default(), "the last one decides");
        assert!(mount_flags(["rw", "ro"]).unwrap().read_only);
    }

    #[test]
    fn other_flags_are_refused_with_the_list_and_without_their_text() {
        for word in ["suid", "dev", "sync", "", "RO", "rw,ro", "secret=hunter2"] {
            let fault = mount_flags([word]).unwrap_err();
            assert!(fault.is(ErrorKind::Invalid));
            assert!(fault.to_string().contains("ro, noexec, nosuid"));
            assert!(!fault.to_string().contains("hunter2"));
        }
    }

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
        let flags = MountFlags::default();
        let readers = Access::Directory { sharing: Sharing::ReadersOnly, flags };
        assert!(matches!(readers.restricted(false), Access::Directory { flags, .. } if flags.read_only));
        let block = Access::Block { sharing: Sharing::OneTarget, read_only: false };
        assert_eq!(block.restricted(false), block);
        assert!(matches!(block.restricted(true), Access::Block { read_only: true, .. }));
    }
}
