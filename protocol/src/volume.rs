//! A volume's settings, given when it is created.

use serde::{Deserialize, Serialize};

use crate::checked::checked_text;
use crate::number::checked_number;
use crate::{Bytes, Inodes, VolumeId};

checked_number!(
    /// Permission bits of a directory volume's top directory: `0` to `0o1777`, no setuid and no setgid.
    DirectoryMode(u16 = "u16"),
    |bits: u16| bits & !0o1777 == 0,
    "{:04o}",
    "a directory mode is an octal number from 0000 to 1777"
);

/// The logical block size of a block volume's device (loop.h, `LOOP_CONFIGURE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockSize {
    /// 512 bytes.
    B512,
    /// 4,096 bytes.
    B4096,
}

/// A digest of the name by which the caller knows the volume. It distinguishes two names that lead to the same id. The
/// helper only compares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameHash(pub [u8; 32]);

checked_text!(
    /// Whose a volume is, in the words of the client: the helper keeps it beside the volume's own record, and never
    /// interprets it.
    OwnerRecord,
    |text: &str| text.len() <= MAX_OWNER && text.bytes().all(|byte| matches!(byte, b'\n' | b' '..=b'~')),
    "a record of an owner is at most 1024 printable characters of ASCII, in lines"
);

/// The longest record of an owner in bytes.
pub const MAX_OWNER: usize = 1024;

/// The kinds of volumes, each with the settings that only it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeKind {
    /// A directory with a project quota.
    Directory {
        /// The quota's limit on inodes.
        inodes: Inodes,
        /// Permission bits of the published directory.
        mode: DirectoryMode,
    },
    /// An image file behind a loop device.
    Image {
        /// Whether the image's blocks are allocated only when they are written.
        sparse: bool,
        /// The device's logical block size.
        block_size: BlockSize,
    },
    /// A filesystem in an image file, of which a directory is published. Since version 4.
    Filesystem {
        /// Whether the image's blocks are allocated only when they are written.
        sparse: bool,
        /// Permission bits of the published directory.
        mode: DirectoryMode,
    },
    /// A snapshot: a copy of another volume's image as it was at one moment, from which volumes can be made. It is never
    /// published, attached or grown. Since version 4.
    Snapshot {
        /// What it is a copy of, and so what can be made from it.
        of: SnapshotOf,
    },
}

/// What a snapshot is a copy of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotOf {
    /// The image of a block volume.
    Image {
        /// The logical block size of that volume's device.
        block_size: BlockSize,
    },
    /// The image of a volume with a filesystem of its own.
    Filesystem,
}

/// Where the content of a volume comes from, if it began as a copy of another's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The volume or snapshot that it is a copy of, which may not exist any more.
    pub source: VolumeId,
    /// The first of the volumes that were copied in turn.
    pub family: VolumeId,
    /// When it was copied, in nanoseconds since the beginning of 1970 (UTC).
    pub copied: u64,
}

/// A volume's settings and its current size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSpec {
    /// Size: a quota's limit, or an image's length.
    pub size: Bytes,
    /// Kind, with its own settings.
    pub kind: VolumeKind,
    /// Digest of the caller's name.
    pub name_hash: NameHash,
}

impl VolumeKind {
    /// The protocol version that introduced it.
    pub const fn since_version(&self) -> u16 {
        match self {
            Self::Directory { .. } | Self::Image { .. } => 1,
            Self::Filesystem { .. } | Self::Snapshot { .. } => 4,
        }
    }
}

impl BlockSize {
    /// The size in bytes.
    pub const fn get(self) -> u32 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }
}
