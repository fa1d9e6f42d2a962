//! What is recorded on the files of a pool: extended attributes that only CAP_SYS_ADMIN can read or write (`trusted.`,
//! xattr(7)). No pod has it, whatever it mounts; and XFS lets them have blocks of its reserve, so that they can be changed in
//! a pool that is full.

use std::os::fd::{AsFd, OwnedFd};

use bulkhead_protocol::{MAX_OWNER, UpTo};
use caps::Capability::CAP_SYS_ADMIN;
use rustix::fs::{OFlags, XattrFlags};
use serde::{Deserialize, Serialize};

use super::kind::IMAGE;
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, capability, file};

/// The longest value in bytes.
pub const LONGEST: usize = MAX_OWNER;
/// The marker file of a pool.
pub const MARKER: &str = ".bulkhead";

/// What is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attribute {
    /// A volume's settings, on its directory.
    Record,
    /// What a volume is a copy of, on its directory.
    Origin,
    /// Whose a volume is, on its directory.
    Owner,
    /// That a filesystem was made in an image, on that.
    Filesystem,
    /// How many numbers of loop devices were used, on the marker of a pool.
    Numbers,
    /// Nothing: it changes, on the marker of a pool, so that the journal has something to write.
    Journal,
}

impl Attribute {
    fn name(self) -> &'static str {
        match self {
            Self::Record => "trusted.bulkhead",
            Self::Origin => "trusted.bulkhead.origin",
            Self::Owner => "trusted.bulkhead.owner",
            Self::Filesystem => "trusted.bulkhead.filesystem",
            Self::Numbers => "trusted.bulkhead.numbers",
            Self::Journal => "trusted.bulkhead.journal",
        }
    }

    /// Opens what this is recorded on: the pool's marker, or the entry of that name, or the image in that.
    ///
    /// # Errors
    /// `INVAL` when it is no single name.
    pub fn open(self, pool: &OwnedFd, entry: &str) -> SysResult<OwnedFd> {
        match self {
            Self::Numbers | Self::Journal => file::open(pool, MARKER, OFlags::RDONLY),
            _ if matches!(entry, "" | "." | "..") || entry.contains('/') => Err(SysError::of(Errno::INVAL)),
            Self::Record | Self::Origin | Self::Owner => file::open(pool, entry, OFlags::RDONLY | OFlags::DIRECTORY),
            Self::Filesystem => file::open(pool, &format!("{entry}/{IMAGE}"), OFlags::RDONLY),
        }
    }
}

/// Reads an attribute of an open file or directory; `None` if it has none of that name.
///
/// # Errors
/// `RANGE` when it is longer than any that is written.
pub fn get(file: impl AsFd, attribute: Attribute) -> SysResult<Option<UpTo<u8, LONGEST>>> {
    let (name, mut value) = (attribute.name(), vec![0; LONGEST]);
    let read = || rustix::fs::fgetxattr(file, name, &mut value[..]).by_with("fgetxattr", name);
    match capability::with(&[CAP_SYS_ADMIN], read) {
        Err(SysError { errno: Errno::NODATA, .. }) => Ok(None),
        length => {
            value.truncate(length?);
            value.try_into().map(Some).map_err(|_| SysError::of(Errno::RANGE))
        }
    }
}

/// Sets an attribute of an open file or directory.
///
/// # Errors
/// The kernel's error.
pub fn set(file: impl AsFd, attribute: Attribute, value: &[u8]) -> SysResult<()> {
    let name = attribute.name();
    let write = || rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()).by_with("fsetxattr", name);
    capability::with(&[CAP_SYS_ADMIN], write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::walk;

    #[test]
    fn an_entry_is_a_single_name() {
        let root = walk::open_at_start("/", OFlags::RDONLY | OFlags::DIRECTORY).expect("the root directory");
        for name in ["", ".", "..", "etc/passwd", "/etc", "../etc"] {
            for attribute in [Attribute::Record, Attribute::Filesystem] {
                assert_eq!(attribute.open(&root, name).map(drop), Err(SysError::of(Errno::INVAL)), "{name:?}");
            }
        }
        assert!(Attribute::Record.open(&root, "etc").is_ok());
    }
}
