//! Snapshots, and volumes that begin as copies: files that share their blocks until one of them is written to
//! (ioctl_ficlone(2)). A copy is of the kind of its source, in its source's pool: what a tenant could write as a device never
//! becomes a filesystem that is mounted.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bulkhead_protocol::{
    Error, ErrorKind, NameHash, Origin, Pace, Reply, Snapshot, SnapshotOf, VolumeId, VolumeKind, VolumeSpec,
};
use linux_raw_sys::general::fsxattr;
use rustix::fs::OFlags;

use super::filesystem::{check_growth, check_mark, write_out};
use crate::bookkeeping::{Original, check_filesystem, make_copy};
use crate::state::{
    Held, Kind, Pool, Seen, State, Volume, busy, exists, failed, invalid, layout, unsupported, wrong_kind,
};
use crate::sys::{Result as SysResult, extents, file, xflags};

/// Takes a snapshot of a volume. If it already exists, nothing is done, whatever has become of the volume.
pub fn create_snapshot(source: Held<'_>, mut held: Held<'_>, name_hash: NameHash) -> Result<Reply, Error> {
    if !is_there(&held, source.id, |spec| is_snapshot(spec, name_hash))? {
        let (volume, spec) = spec_of_snapshot(&source, name_hash)?;
        copy(&source, volume, &mut held, |held, ready| {
            ready.measure(source.id)?;
            make_copy(held, &volume.pool, spec, &ready.original)
        })?;
    }
    let made = held.known().ok_or_else(|| held.state.unknown(held.id))?;
    check_finished(held.id, made)?;
    snapshot(held.id, made).map(Reply::Snapshot).ok_or_else(|| held.state.unknown(held.id))
}

/// Creates a volume as a copy of a snapshot or of another volume. If it already exists, nothing is done.
pub fn create_from(source: Held<'_>, mut held: Held<'_>, pool: &Arc<Pool>, spec: VolumeSpec) -> Result<Reply, Error> {
    if let Some(found) = held.known().filter(|found| !Arc::ptr_eq(&found.pool, pool)) {
        // Its filesystem, which may hang, is not the one that the operation was admitted to.
        return Err(exists(format!("{} {} exists in pool {}", found.kind(), held.id, found.pool.config.name)));
    }
    let is_same = |found: &VolumeSpec| found.kind == spec.kind && found.name_hash == spec.name_hash;
    if !is_there(&held, source.id, is_same)? {
        let (id, volume) = (source.id, source.known().ok_or_else(|| source.state.unknown(source.id))?);
        check_finished(id, volume)?;
        let from = &volume.record.spec;
        check_kinds(id, from.kind, spec.kind)?;
        if !Arc::ptr_eq(pool, &volume.pool) {
            let own = &volume.pool.config.name;
            return Err(invalid(format!("{} {id} is in pool {own}, and so are its copies", volume.kind())));
        }
        if spec.size < from.size {
            return Err(invalid(format!("a copy of {id} has at least its size, {} bytes", from.size)));
        }
        copy(&source, volume, &mut held, |held, ready| {
            if let VolumeKind::Filesystem { .. } = spec.kind {
                check_filesystem(held.state, pool, held.id, spec.size)?;
                check_growth(held.id, &ready.original.image, from.size, spec.size)?;
            }
            make_copy(held, pool, spec, &ready.original)
        })?;
    }
    held.known().map(|volume| Reply::Size(volume.record.spec.size)).ok_or_else(|| held.state.unknown(held.id))
}

/// Returns where the content of a volume comes from.
pub fn origin(state: &State, id: &VolumeId) -> Result<Reply, Error> {
    let volume = state.volumes.get(id).ok_or_else(|| state.unknown(id))?;
    check_finished(id, &volume)?;
    Ok(Reply::Origin(volume.origin.as_deref().cloned()))
}

/// A volume as a snapshot, if it is one, and all that were to be taken along with it are there.
pub fn snapshot(id: &VolumeId, volume: &Volume) -> Option<Snapshot> {
    let VolumeKind::Snapshot { of } = volume.record.spec.kind else { return None };
    if volume.is_unfinished() {
        return None;
    }
    Some(Snapshot {
        snapshot: id.clone(),
        pool: volume.pool.config.name.clone(),
        size: volume.record.spec.size,
        block: of != SnapshotOf::Filesystem,
        allocated: volume.allocated,
        origin: volume.origin.as_deref()?.clone(),
    })
}

/// Checks that a snapshot is one that somebody may be told of.
///
/// # Errors
/// `Busy` when others that were to be taken along with it may be missing: it may be deleted for that.
fn check_finished(id: &VolumeId, volume: &Volume) -> Result<(), Error> {
    if !volume.is_unfinished() {
        return Ok(());
    }
    Err(busy(format!(
        "snapshot {id} is one of several that are being taken together, or were to be; try again, or delete it"
    )))
}

/// The volume of which a snapshot is to be taken, and what that is to be.
pub fn spec_of_snapshot<'a>(source: &'a Held<'_>, name_hash: NameHash) -> Result<(&'a Volume, VolumeSpec), Error> {
    let volume = source.known().ok_or_else(|| source.state.unknown(source.id))?;
    let of = match volume.record.spec.kind {
        VolumeKind::Image { block_size, .. } => SnapshotOf::Image { block_size },
        VolumeKind::Filesystem { .. } => SnapshotOf::Filesystem,
        VolumeKind::Snapshot { .. } => return Err(invalid(format!("volume {} is a snapshot itself", source.id))),
        VolumeKind::Directory { .. } => return Err(no_image(source.id)),
    };
    Ok((volume, VolumeSpec { size: volume.record.spec.size, kind: VolumeKind::Snapshot { of }, name_hash }))
}

/// Returns whether this is the snapshot with this name.
pub fn is_snapshot(spec: &VolumeSpec, name_hash: NameHash) -> bool {
    Kind::from(spec.kind) == Kind::Snapshot && spec.name_hash == name_hash
}

/// Returns whether a copy is there already: one of this source, and as `is_same` wants it.
///
/// # Errors
/// `AlreadyExists` when something else goes by its id.
pub fn is_there(held: &Held<'_>, source: &VolumeId, is_same: impl Fn(&VolumeSpec) -> bool) -> Result<bool, Error> {
    let Some(volume) = held.known() else { return Ok(false) };
    if !is_same(&volume.record.spec) || volume.origin.as_ref().is_none_or(|origin| origin.source != *source) {
        return Err(exists(format!(
            "{} {} exists with other settings, or from another source",
            volume.kind(),
            held.id
        )));
    }
    let synced = volume.pool.served()?.sync_names_again();
    synced.map(|()| true).map_err(|error| failed("sync to disk the creation of volume", held.id, error))
}

/// Checks that a volume may begin as a copy of another.
fn check_kinds(source: &VolumeId, from: VolumeKind, to: VolumeKind) -> Result<(), Error> {
    use VolumeKind::{Directory, Filesystem, Image, Snapshot};
    let is_same = match (from, to) {
        (Directory { .. }, _) => return Err(no_image(source)),
        (
            Image { block_size, .. } | Snapshot { of: SnapshotOf::Image { block_size } },
            Image { block_size: new, .. },
        ) => block_size == new,
        (Filesystem { .. } | Snapshot { of: SnapshotOf::Filesystem }, Filesystem { .. }) => true,
        _ => false,
    };
    if is_same {
        return Ok(());
    }
    let own = match from {
        Image { block_size, .. } | Snapshot { of: SnapshotOf::Image { block_size } } => {
            format!("block volume with blocks of {} bytes", block_size.get())
        }
        _ => Kind::Filesystem.to_string(),
    };
    Err(Error::new(ErrorKind::WrongKind, format!("{source} is, or is of, a {own}, and so is every copy of it")))
}

fn no_image(source: &VolumeId) -> Error {
    unsupported(format!(
        "volume {source} is a directory, which cannot be copied at one moment; copies are made of block volumes, and of volumes with a filesystem of their own (backing: image)"
    ))
}

/// The image of a volume that is ready to be copied: what was written to the volume and synced is in it.
#[derive(Debug)]
pub struct Ready {
    /// What is to be copied.
    pub original: Original,
    /// In how many pieces it is.
    pub extents: u64,
    /// What the attributes of the image were, if they had to be changed for that.
    before: Option<fsxattr>,
}

impl Ready {
    /// Makes the image of a volume ready, to be copied at this time.
    ///
    /// # Errors
    /// `Unsupported` where nothing is copied, `TooFragmented` where it would take too long.
    pub fn new(source: &Held<'_>, volume: &Volume, copied: u64) -> Result<Self, Error> {
        let (id, pool) = (source.id, &volume.pool);
        if !pool.served()?.filesystem.can_copy() {
            return Err(unsupported(format!(
                "pool {} cannot copy volumes: its filesystem is not XFS with reflink, or was in use before it became a pool",
                pool.config.name
            )));
        }
        let image = source.open_content(OFlags::RDONLY)?;
        check_mark(id, volume)?;
        let family = volume.origin.as_ref().map_or(id, |origin| &origin.family).clone();
        let origin = Arc::new(Origin { source: id.clone(), family, copied });
        let mut ready = Self { original: Original { image, written: 0, origin }, extents: 0, before: None };
        match ready.prepare(source, volume) {
            Ok(()) => Ok(ready),
            Err(error) => {
                ready.give_up();
                Err(error)
            }
        }
    }

    /// Finds out how many bytes a snapshot of it would refer to.
    pub fn measure(&mut self, id: &VolumeId) -> Result<(), Error> {
        let written = extents::written(&self.original.image);
        self.original.written = written.map_err(|error| failed("measure the image of volume", id, error))?;
        Ok(())
    }

    /// Leaves the image as it was: no copy has come of it.
    pub fn give_up(&self) {
        if let Some(before) = self.before {
            // If this fails, the image takes up no more than it would otherwise.
            let _ = xflags::set_attributes(&self.original.image, before);
        }
    }

    fn prepare(&mut self, source: &Held<'_>, volume: &Volume) -> Result<(), Error> {
        let (id, pool, limit) = (source.id, &volume.pool, volume.pool.config.extents);
        let mut prepare = || -> SysResult<()> {
            let image = &self.original.image;
            let extents = || xflags::attributes(image).map(|found| u64::from(found.fsx_nextents));
            self.extents = extents()?;
            if self.extents <= limit {
                self.before = xflags::set_copy_unit(image)?;
                flush(source, volume, image)?;
                // What is written out now may be in very many more.
                self.extents = extents()?;
            }
            Ok(())
        };
        prepare().map_err(|error| failed("prepare a copy of volume", id, error))?;
        let extents = self.extents;
        if extents > limit {
            let message = format!(
                "the image of {id} is in {extents} pieces, and a copy would stop its writers for a second for each 40000; the limit of pool {} is extents={limit}: copy its content into a new volume, or raise the limit",
                pool.config.name
            );
            return Err(Error::new(ErrorKind::TooFragmented { extents, limit }, message));
        }
        Ok(())
    }
}

/// The time of day, as it is recorded of copies.
pub fn time_of_day() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Makes a volume's image ready to be copied, and has `make` copy it. If no copy comes of it, the image is as it was.
fn copy(
    source: &Held<'_>,
    volume: &Volume,
    held: &mut Held<'_>,
    make: impl FnOnce(&mut Held<'_>, &mut Ready) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut ready = Ready::new(source, volume, time_of_day())?;
    make(held, &mut ready).inspect_err(|_| {
        if held.known().is_none() {
            ready.give_up();
        }
    })
}

/// Writes to the image what is in the kernel's memory of the device, or of the filesystem, on top of it.
fn flush(source: &Held<'_>, volume: &Volume, image: &OwnedFd) -> SysResult<()> {
    match (volume.device, volume.kind()) {
        (None, _) => Ok(()),
        (Some(_), Kind::Filesystem) => write_out(source.state, source.id, volume, image),
        (Some(device), _) => file::sync(source.state.loops.open_existing(device.number())?),
    }
}

/// A snapshot, and its image, open for reading.
pub fn open_snapshot(state: &State, id: &VolumeId) -> Result<(Seen, OwnedFd), Error> {
    let seen = state.see(id, Pace::Disk)?;
    if seen.volume.kind() != Kind::Snapshot {
        return Err(wrong_kind(id, Kind::Snapshot));
    }
    check_finished(id, &seen.volume)?;
    let image = layout::open_content(&seen.volume.pool.served()?.directory, id, Kind::Snapshot, OFlags::RDONLY);
    image.map(|image| (seen, image)).map_err(|error| failed("open snapshot", id, error))
}
