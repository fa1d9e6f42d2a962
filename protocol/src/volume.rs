//! What was asked for when a volume was made.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Bytes, Inodes};

/// Permission bits of a directory volume's top directory: `0` to `0o1777`, no setuid and no setgid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u16")]
pub struct DirectoryMode(u16);

/// The number is no directory mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidMode;

/// The logical block size of a block volume's device (loop.h, `LOOP_CONFIGURE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockSize {
    /// 512 bytes.
    B512,
    /// 4,096 bytes.
    B4096,
}

/// A digest of the name by which the caller knows the volume: two names that lead to one id are told apart by it.
/// The helper only compares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameHash(pub [u8; 32]);

/// The two kinds of volumes, with what only one of them has.
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
        /// Whether the image's blocks are left to be allocated when they are written.
        sparse: bool,
        /// The device's logical block size.
        block_size: BlockSize,
    },
}

/// All that was asked for when a volume was made, and how large it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSpec {
    /// Size: a quota's limit, or an image's length.
    pub size: Bytes,
    /// Kind, with its own settings.
    pub kind: VolumeKind,
    /// Digest of the caller's name.
    pub name_hash: NameHash,
}

impl DirectoryMode {
    /// The permission bits.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for DirectoryMode {
    type Error = InvalidMode;

    fn try_from(bits: u16) -> Result<Self, InvalidMode> {
        if bits & !0o1777 == 0 { Ok(Self(bits)) } else { Err(InvalidMode) }
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

impl fmt::Display for DirectoryMode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:04o}", self.0)
    }
}

impl fmt::Display for InvalidMode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a directory mode is an octal number from 0000 to 1777")
    }
}

impl std::error::Error for InvalidMode {}
