//! The kinds of volumes, and where the content of each is.

use std::os::fd::{AsFd, OwnedFd};

use bulkhead_protocol::VolumeId;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::sys::{Result as SysResult, file};

/// The part of a directory volume that is published.
pub const DATA: &str = "data";
/// The part of any other volume that is attached.
pub const IMAGE: &str = "image";

/// The kinds of volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A directory with a quota, published as a directory.
    Directory,
    /// An image behind a loop device, published as a device node bound over a file.
    Block,
    /// A filesystem in an image, of which a directory is published.
    Filesystem,
    /// A copy of an image, which is never published.
    Snapshot,
}

/// Opens a volume's content: the directory or the image.
pub fn open_content(pool: impl AsFd, id: &VolumeId, kind: Kind, flags: OFlags) -> SysResult<OwnedFd> {
    match kind {
        Kind::Directory => file::open(pool, &format!("{id}/{DATA}"), flags | OFlags::DIRECTORY),
        Kind::Block | Kind::Filesystem | Kind::Snapshot => file::open(pool, &format!("{id}/{IMAGE}"), flags),
    }
}

impl Kind {
    /// Returns whether it is published as a device, and not as a directory.
    pub fn is_device(self) -> bool {
        self == Self::Block
    }
}
