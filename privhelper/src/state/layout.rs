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

use std::os::fd::{AsFd, OwnedFd};

use bulkhead_protocol::{Origin, VolumeId, VolumeSpec};
use rustix::fs::{FileType, Mode, OFlags};

use super::{Attributes, Kind};
use crate::place::attributes::Attribute;
pub use crate::place::attributes::MARKER;
pub use crate::place::kind::{DATA, IMAGE, open_content};
use crate::sys::file::Status;
use crate::sys::quota::ProjectId;
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, file, xflags};

const CREATING: &str = ".making.";
const DELETED: &str = ".deleted.";

/// See [`note_frozen`].
const FROZEN: &[u8] = b"2";
/// The first byte of a record: `USED` if the volume may hold data, `UNUSED` if it was never published. A helper that
/// does not know the latter does not serve such a volume, and so never publishes one without recording it.
const USED: u8 = 1;
/// See [`USED`].
const UNUSED: u8 = 2;
/// `UNUSED` of a snapshot, which a helper that does not know of groups does not serve either: it would take it for finished.
const UNFINISHED: u8 = 4;

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
    /// Whether it was never published and is no copy, and so cannot hold data. Of a snapshot: whether others that were to be
    /// taken along with it may be missing.
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

/// Removes the data directory of a volume if it is empty.
pub fn remove_empty_data(pool: impl AsFd, id: &VolumeId) -> SysResult<()> {
    file::remove_directory(open_volume(pool, id.as_str())?, DATA)
}

/// Changes something on the marker of a pool that the filesystem's journal has to write. If the journal cannot write
/// any more, this fails: it tells the truth where fsync(2) of a directory does not.
pub fn try_journal(attributes: &Attributes, value: u64) -> SysResult<()> {
    attributes.write("", Attribute::Journal, &value.to_ne_bytes())
}

/// Records on the marker of a pool that this many numbers of loop devices have been used. Only a crash of the machine
/// loses what was not synced, and no device outlives that.
pub fn record_numbers(attributes: &Attributes, used: u64) -> SysResult<()> {
    attributes.write("", Attribute::Numbers, &used.to_ne_bytes())
}

/// Returns how many numbers of loop devices have been used, as far as is recorded on the marker of a pool. At start
/// only.
pub fn recorded_numbers(attributes: &Attributes) -> SysResult<Option<u64>> {
    let value = attributes.read("", Attribute::Numbers)?;
    // What somebody has shortened counts as far as it goes.
    let number = |value: Vec<u8>| {
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(value).for_each(|(to, from)| *to = from);
        u64::from_ne_bytes(bytes)
    };
    Ok(value.map(number))
}

/// Marks the fresh image in an entry, to which no tenant ever writes, as one in which a filesystem is made. A record alone
/// proves nothing of the image beside it: either may be another volume's.
pub fn mark_filesystem(attributes: &Attributes, name: &str) -> SysResult<()> {
    attributes.write(name, Attribute::Filesystem, b"1")
}

/// Returns whether the image in an entry is marked as one in which a filesystem was made.
pub fn is_filesystem(attributes: &Attributes, name: &str) -> SysResult<bool> {
    attributes.read(name, Attribute::Filesystem).map(|value| value.is_some())
}

/// Notes in the mark of an image that a helper is about to freeze the filesystem in it, or that it has thawed it: one that
/// is killed in between leaves it frozen.
pub fn note_frozen(attributes: &Attributes, id: &VolumeId, is_frozen: bool) -> SysResult<()> {
    attributes.write(id.as_str(), Attribute::Filesystem, if is_frozen { FROZEN } else { b"1" })
}

/// Returns whether a helper may have left the filesystem in an image frozen.
pub fn is_noted_frozen(attributes: &Attributes, id: &VolumeId) -> SysResult<bool> {
    attributes.read(id.as_str(), Attribute::Filesystem).map(|value| value.as_deref() == Some(FROZEN))
}

/// Records in an entry what the volume is a copy of.
pub fn write_origin(attributes: &Attributes, name: &str, origin: &Origin) -> SysResult<()> {
    let value = bulkhead_protocol::encode(origin).map_err(|_| SysError::of(Errno::INVAL))?;
    attributes.write(name, Attribute::Origin, &value)
}

/// Returns what the volume in an entry is a copy of, if it is one. At start only.
///
/// # Errors
/// `BADMSG` when what is recorded is damaged.
pub fn read_origin(attributes: &Attributes, name: &str) -> SysResult<Option<Origin>> {
    let value = attributes.read(name, Attribute::Origin)?;
    let origin = value.map(|bytes| bulkhead_protocol::decode(&bytes).map_err(|_| SysError::of(Errno::BADMSG)));
    origin.transpose()
}

/// The project to which a volume's directory is charged.
pub fn project_of(volume: impl AsFd) -> SysResult<Option<ProjectId>> {
    let project = xflags::attributes(volume)?.fsx_projid;
    Ok((project != 0).then_some(ProjectId(project)))
}

impl Record {
    /// Reads the record in an entry. At start only.
    ///
    /// # Errors
    /// `NODATA` when there is none, `BADMSG` when it is damaged or from a later release.
    pub fn read(attributes: &Attributes, name: &str) -> SysResult<Self> {
        let value = attributes.read(name, Attribute::Record)?.ok_or(SysError::of(Errno::NODATA))?;
        Self::decode(&value).ok_or(SysError::of(Errno::BADMSG))
    }

    /// Writes the record in an entry.
    pub fn write(&self, attributes: &Attributes, name: &str) -> SysResult<()> {
        attributes.write(name, Attribute::Record, &self.encode()?)
    }

    /// Returns the bytes of the record.
    pub fn encode(&self) -> SysResult<Vec<u8>> {
        let mut bytes = vec![if self.unused { unused(&self.spec) } else { USED }];
        bytes.extend(bulkhead_protocol::encode(&self.spec).map_err(|_| SysError::of(Errno::INVAL))?);
        Ok(bytes)
    }

    /// Returns the record that these bytes are, if they are one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (first, spec) = bytes.split_first()?;
        let spec = bulkhead_protocol::decode(spec).ok()?;
        let is_known = *first == USED || *first == unused(&spec);
        is_known.then_some(Self { spec, unused: *first != USED })
    }
}

/// The first byte of the record of a volume that was never used.
fn unused(spec: &VolumeSpec) -> u8 {
    if Kind::from(spec.kind) == Kind::Snapshot { UNFINISHED } else { UNUSED }
}

#[cfg(test)]
mod tests;
