//! A volume on disk: the names of its directory, the record of its settings, and its content.
//!
//! ```text
//! POOL/.bulkhead                  marker of the pool
//! POOL/.bulkhead.ballast          space for deletions when the pool is full
//! POOL/<volume id>/               root's, mode 0700; carries record, project id and quota; never mounted
//! POOL/<volume id>/data/          directory volume: what is published
//! POOL/<volume id>/image          block volume: what is attached
//! POOL/.making.<volume id>/       being created
//! POOL/.deleted.<number>.<…>/     deleted, being emptied
//! ```
//! A volume id never begins with a dot, so the names cannot collide.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use bulkhead_protocol::{VolumeId, VolumeKind, VolumeSpec};
use caps::Capability;
use rustix::fs::{OFlags, XattrFlags};

use crate::sys::capability::raise;
use crate::sys::quota::ProjectId;
use crate::sys::{Errno, Result as SysResult, file};

/// The marker file of a pool.
pub const MARKER: &str = ".bulkhead";
/// The file that reserves space for deletions.
pub const BALLAST: &str = ".bulkhead.ballast";
/// The part of a directory volume that is published.
pub const DATA: &str = "data";
/// The part of a block volume that is attached.
pub const IMAGE: &str = "image";
const CREATING: &str = ".making.";
const DELETED: &str = ".deleted.";

/// The extended attribute of a volume's directory that holds the record; pods cannot reach it.
const ATTRIBUTE: &str = "trusted.bulkhead";
/// The first byte of a record: `USED` if the volume may hold data, `UNUSED` if it was never published. A helper that
/// does not know the latter does not serve such a volume, and so never publishes one without noting it.
const USED: u8 = 1;
/// See [`USED`].
const UNUSED: u8 = 2;

/// The two kinds of volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory with a quota, published as a directory.
    Directory,
    /// An image behind a loop device, published as a device node bound over a file.
    Block,
}

/// What an entry of a pool is, judging by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A volume's directory.
    Volume(VolumeId),
    /// A volume whose creation did not finish.
    Unfinished,
    /// A deleted volume, with the number in its name.
    Deleted(u64),
    /// A file that belongs to the pool itself, or to its filesystem.
    OfPool,
    /// Something else.
    Foreign,
}

/// What is recorded about a volume in its own directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its settings, with the size it has now.
    pub spec: VolumeSpec,
    /// Whether it was never published, and so cannot hold data.
    pub unused: bool,
}

impl Entry {
    /// The entry with that name.
    pub fn of(name: &str) -> Self {
        if name.starts_with(CREATING) {
            return Self::Unfinished;
        }
        if let Some(rest) = name.strip_prefix(DELETED) {
            let number = rest.split('.').next().and_then(|number| number.parse().ok());
            return Self::Deleted(number.unwrap_or(0));
        }
        match name.parse() {
            Ok(id) => Self::Volume(id),
            Err(_) if matches!(name, MARKER | BALLAST | "lost+found") => Self::OfPool,
            Err(_) => Self::Foreign,
        }
    }
}

/// The name of a volume's directory while the volume is being created.
pub fn creating_name(id: &VolumeId) -> String {
    format!("{CREATING}{id}")
}

/// The name that a directory is given when it is deleted.
pub fn deleted_name(number: u64, name: &str) -> String {
    format!("{DELETED}{number}.{}", name.trim_start_matches('.'))
}

/// Opens a volume's directory, under whatever name it has in the pool.
pub fn open_volume(pool: impl AsFd, name: &str) -> SysResult<OwnedFd> {
    file::open(pool, name, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Opens a volume's content: the directory or the image.
pub fn open_content(pool: impl AsFd, id: &VolumeId, kind: Kind, flags: OFlags) -> SysResult<OwnedFd> {
    match kind {
        Kind::Directory => file::open(pool, format!("{id}/{DATA}"), flags | OFlags::DIRECTORY),
        Kind::Block => file::open(pool, format!("{id}/{IMAGE}"), flags),
    }
}

/// The project to which a volume's directory is charged.
pub fn project_of(volume: impl AsFd) -> SysResult<Option<ProjectId>> {
    let project = file::attributes(volume)?.fsx_projid;
    Ok((project != 0).then_some(ProjectId(project)))
}

impl Record {
    /// Reads the record in a volume's directory. At start only.
    ///
    /// # Errors
    /// `NODATA` when there is none, `BADMSG` when it is damaged or from a later release.
    pub fn read(volume: impl AsFd) -> SysResult<Self> {
        let mut buffer = [0_u8; 256];
        let length = rustix::fs::fgetxattr(volume, ATTRIBUTE, &mut buffer[..])?;
        buffer.get(..length).and_then(Self::decode).ok_or(Errno::BADMSG)
    }

    /// Writes the record to a volume's directory.
    pub fn write(&self, volume: impl AsFd) -> SysResult<()> {
        let value = self.encode()?;
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        rustix::fs::fsetxattr(volume, ATTRIBUTE, &value, XattrFlags::empty())
    }

    /// Writes the record of a volume in a pool, and returns the volume's directory.
    pub fn write_to(&self, pool: impl AsFd, id: &VolumeId) -> SysResult<OwnedFd> {
        let volume = open_volume(pool, id.as_str())?;
        self.write(&volume)?;
        Ok(volume)
    }

    /// The same with a record that differs, and makes it survive a power cut, together with a quota that was set
    /// before: syncing a directory that has not changed does not commit the quota (seen on XFS).
    pub fn replace(&self, pool: impl AsFd, id: &VolumeId) -> SysResult<()> {
        file::sync(self.write_to(pool, id)?)
    }

    fn encode(&self) -> SysResult<Vec<u8>> {
        let mut bytes = vec![if self.unused { UNUSED } else { USED }];
        bytes.extend(bulkhead_protocol::encode(&self.spec).map_err(|_| Errno::INVAL)?);
        Ok(bytes)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (first, spec) = bytes.split_first()?;
        let unused = match *first {
            USED => false,
            UNUSED => true,
            _ => return None,
        };
        Some(Self { spec: bulkhead_protocol::decode(spec).ok()?, unused })
    }
}

impl From<VolumeKind> for Kind {
    fn from(kind: VolumeKind) -> Self {
        match kind {
            VolumeKind::Directory { .. } => Self::Directory,
            VolumeKind::Image { .. } => Self::Block,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Directory => "directory volume",
            Self::Block => "block volume",
        })
    }
}

#[cfg(test)]
mod tests;
