//! A volume on disk: the names of its directory, the record of its settings, and its content.
//!
//! ```text
//! POOL/.bulkhead                  marker of the pool
//! POOL/<volume id>/               root's, mode 0700; carries record, project id and quota; never mounted
//! POOL/<volume id>/data/          directory volume: what is published
//! POOL/<volume id>/image          block volume, or one with a filesystem of its own: what is attached; or a snapshot
//! POOL/.making.<volume id>/       being created
//! POOL/.deleted.<number>.<…>/     deleted, being emptied; one that cannot be renamed has mode 1700 instead
//! ```
//! A volume id never begins with a dot, so the names cannot collide.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use bulkhead_protocol::{Origin, SnapshotOf, VolumeId, VolumeKind, VolumeSpec};
use caps::Capability;
use rustix::fs::{FileType, Mode, OFlags, XattrFlags};

use crate::sys::capability::raise;
use crate::sys::file::Status;
use crate::sys::quota::ProjectId;
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, file};

/// The marker file of a pool.
pub const MARKER: &str = ".bulkhead";
/// The part of a directory volume that is published.
pub const DATA: &str = "data";
/// The part of any other volume that is attached.
pub const IMAGE: &str = "image";
const CREATING: &str = ".making.";
const DELETED: &str = ".deleted.";

/// The extended attribute of a volume's directory that holds the record; pods cannot reach it.
const ATTRIBUTE: &str = "trusted.bulkhead";
/// The extended attribute of a pool's marker whose value changes, and means nothing.
const JOURNAL_ATTRIBUTE: &str = "trusted.bulkhead.journal";
/// See [`record_numbers`].
const NUMBERS_ATTRIBUTE: &str = "trusted.bulkhead.numbers";
/// See [`mark_filesystem`].
const FILESYSTEM_ATTRIBUTE: &str = "trusted.bulkhead.filesystem";
/// See [`note_frozen`].
const FROZEN: &[u8] = b"2";
/// See [`write_origin`].
const ORIGIN_ATTRIBUTE: &str = "trusted.bulkhead.origin";
/// The first byte of a record: `USED` if the volume may hold data, `UNUSED` if it was never published. A helper that
/// does not know the latter does not serve such a volume, and so never publishes one without recording it.
const USED: u8 = 1;
/// See [`USED`].
const UNUSED: u8 = 2;

/// The kinds of volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Whether it was never published and is no copy, and so cannot hold data.
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
            Err(_) if matches!(name, MARKER | "lost+found") => Self::OfPool,
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

/// Returns whether an entry with that name was deleted.
pub fn is_deleted(name: &str) -> bool {
    name.starts_with(DELETED)
}

/// The mode of a volume's own directory that was deleted in place; that of any other is 0700. The sticky bit has no
/// other meaning on a directory to which only root can write; and to set it takes no block, however full the pool is.
pub const DELETED_MODE: u32 = 0o1700;

/// Deletes a volume in place.
pub fn delete_in_place(volume: impl AsFd) -> SysResult<()> {
    rustix::fs::fchmod(volume, Mode::from_raw_mode(DELETED_MODE)).by("fchmod")
}

/// Returns whether a volume's own directory says that the volume was deleted.
pub fn is_deleted_in_place(status: &Status) -> bool {
    status.file_type == FileType::Directory && status.uid == 0 && status.mode & 0o7777 == DELETED_MODE
}

/// Opens a volume's directory, under whatever name it has in the pool.
pub fn open_volume(pool: impl AsFd, name: &str) -> SysResult<OwnedFd> {
    file::open(pool, name, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Opens a volume's content: the directory or the image.
pub fn open_content(pool: impl AsFd, id: &VolumeId, kind: Kind, flags: OFlags) -> SysResult<OwnedFd> {
    match kind {
        Kind::Directory => file::open(pool, &format!("{id}/{DATA}"), flags | OFlags::DIRECTORY),
        Kind::Block | Kind::Filesystem | Kind::Snapshot => file::open(pool, &format!("{id}/{IMAGE}"), flags),
    }
}

/// Removes the data directory of a volume if it is empty.
pub fn remove_empty_data(pool: impl AsFd, id: &VolumeId) -> SysResult<()> {
    file::remove_directory(open_volume(pool, id.as_str())?, DATA)
}

/// Sets an attribute of an open file or directory.
pub fn set_attribute(file: impl AsFd, name: &str, value: &[u8]) -> SysResult<()> {
    let _raised = raise(Capability::CAP_SYS_ADMIN)?;
    rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()).by_with("fsetxattr", name)
}

/// Reads an attribute of an open file or directory; `None` if it has none of that name.
pub fn attribute<'a>(file: impl AsFd, name: &str, buffer: &'a mut [u8]) -> SysResult<Option<&'a [u8]>> {
    let _raised = raise(Capability::CAP_SYS_ADMIN)?;
    match rustix::fs::fgetxattr(file, name, &mut *buffer) {
        Err(Errno::NODATA) => Ok(None),
        length => length.by_with("fgetxattr", name).map(|length| buffer.get(..length)),
    }
}

/// Changes something on the marker of a pool that the filesystem's journal has to write. If the journal cannot write
/// any more, this fails: it tells the truth where fsync(2) of a directory does not.
pub fn try_journal(marker: impl AsFd, value: u64) -> SysResult<()> {
    set_attribute(marker, JOURNAL_ATTRIBUTE, &value.to_ne_bytes())
}

/// Records on the marker of a pool that this many numbers of loop devices have been used. Only a crash of the machine
/// loses what was not synced, and no device outlives that.
pub fn record_numbers(marker: impl AsFd, used: u64) -> SysResult<()> {
    set_attribute(marker, NUMBERS_ATTRIBUTE, &used.to_ne_bytes())
}

/// Returns how many numbers of loop devices have been used, as far as is recorded on the marker of a pool. At start
/// only.
pub fn recorded_numbers(marker: impl AsFd) -> SysResult<Option<u64>> {
    let mut value = [0; 8];
    let is_there = attribute(marker, NUMBERS_ATTRIBUTE, &mut value)?.is_some();
    Ok(is_there.then_some(u64::from_ne_bytes(value)))
}

/// Marks a fresh image, to which no tenant ever writes, as one in which a filesystem is made. A record alone proves
/// nothing of the image beside it: either may be another volume's.
pub fn mark_filesystem(image: impl AsFd) -> SysResult<()> {
    set_attribute(image, FILESYSTEM_ATTRIBUTE, b"1")
}

/// Returns whether an image is marked as one in which a filesystem was made.
pub fn is_filesystem(image: impl AsFd) -> SysResult<bool> {
    attribute(image, FILESYSTEM_ATTRIBUTE, &mut [0; 1]).map(|value| value.is_some())
}

/// Notes in the mark of an image that a helper is about to freeze the filesystem in it, or that it has thawed it: one that
/// is killed in between leaves it frozen.
pub fn note_frozen(image: impl AsFd, is_frozen: bool) -> SysResult<()> {
    set_attribute(image, FILESYSTEM_ATTRIBUTE, if is_frozen { FROZEN } else { b"1" })
}

/// Returns whether a helper may have left the filesystem in an image frozen.
pub fn is_noted_frozen(image: impl AsFd) -> SysResult<bool> {
    attribute(image, FILESYSTEM_ATTRIBUTE, &mut [0; 1]).map(|value| value == Some(FROZEN))
}

/// Records in a volume's directory what the volume is a copy of.
pub fn write_origin(volume: impl AsFd, origin: &Origin) -> SysResult<()> {
    let value = bulkhead_protocol::encode(origin).map_err(|_| SysError::of(Errno::INVAL))?;
    set_attribute(volume, ORIGIN_ATTRIBUTE, &value)
}

/// Returns what a volume is a copy of, if it is one. At start only.
///
/// # Errors
/// `BADMSG` when what is recorded is damaged.
pub fn read_origin(volume: impl AsFd) -> SysResult<Option<Origin>> {
    let mut buffer = [0_u8; 512];
    let value = attribute(volume, ORIGIN_ATTRIBUTE, &mut buffer)?;
    let origin = value.map(|bytes| bulkhead_protocol::decode(bytes).map_err(|_| SysError::of(Errno::BADMSG)));
    origin.transpose()
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
        let value = attribute(volume, ATTRIBUTE, &mut buffer)?.ok_or(SysError::of(Errno::NODATA))?;
        Self::decode(value).ok_or(SysError::of(Errno::BADMSG))
    }

    /// Writes the record to a volume's directory.
    pub fn write(&self, volume: impl AsFd) -> SysResult<()> {
        set_attribute(volume, ATTRIBUTE, &self.encode()?)
    }

    /// Writes the record of a volume in a pool, and returns the volume's directory.
    pub fn write_to(&self, pool: impl AsFd, id: &VolumeId) -> SysResult<OwnedFd> {
        let volume = open_volume(pool, id.as_str())?;
        self.write(&volume)?;
        Ok(volume)
    }

    /// Returns the bytes of the record.
    pub fn encode(&self) -> SysResult<Vec<u8>> {
        let mut bytes = vec![if self.unused { UNUSED } else { USED }];
        bytes.extend(bulkhead_protocol::encode(&self.spec).map_err(|_| SysError::of(Errno::INVAL))?);
        Ok(bytes)
    }

    /// Returns the record that these bytes are, if they are one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (first, spec) = bytes.split_first()?;
        let unused = match *first {
            USED => false,
            UNUSED => true,
            _ => return None,
        };
        Some(Self { spec: bulkhead_protocol::decode(spec).ok()?, unused })
    }
}

impl Kind {
    /// Returns whether there is a filesystem in the image of such a volume.
    pub fn has_filesystem(kind: VolumeKind) -> bool {
        matches!(kind, VolumeKind::Filesystem { .. } | VolumeKind::Snapshot { of: SnapshotOf::Filesystem })
    }

    /// Returns whether it is published as a device, and not as a directory.
    pub fn is_device(self) -> bool {
        self == Self::Block
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

#[cfg(test)]
mod tests;
