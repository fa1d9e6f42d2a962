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
use crate::bookkeeping::{Original, check_filesystem, make};
use crate::state::{Held, Kind, Pool, Seen, State, Volume, exists, failed, invalid, layout, unsupported, wrong_kind};
use crate::sys::{Result as SysResult, extents, file, xflags};

/// Takes a snapshot of a volume. If it already exists, nothing is done, whatever has become of the volume.
pub fn create_snapshot(source: Held<'_>, mut held: Held<'_>, name_hash: NameHash) -> Result<Reply, Error> {
    if !is_there(&held, source.id, |spec| Kind::from(spec.kind) == Kind::Snapshot && spec.name_hash == name_hash)? {
        let volume = source.known().ok_or_else(|| source.state.unknown(source.id))?;
        let of = match volume.record.spec.kind {
            VolumeKind::Image { block_size, .. } => SnapshotOf::Image { block_size },
            VolumeKind::Filesystem { .. } => SnapshotOf::Filesystem,
            VolumeKind::Snapshot { .. } => return Err(invalid(format!("volume {} is a snapshot itself", source.id))),
            VolumeKind::Directory { .. } => return Err(no_image(source.id)),
        };
        let spec = VolumeSpec { size: volume.record.spec.size, kind: VolumeKind::Snapshot { of }, name_hash };
        copy(&source, volume, &mut held, |held, original| {
            let written = extents::written(&original.image);
            original.written = written.map_err(|error| failed("measure the image of volume", source.id, error))?;
            make(held, &volume.pool, spec, Some(original))
        })?;
    }
    let made = held.known().and_then(|volume| snapshot(held.id, volume));
    made.map(Reply::Snapshot).ok_or_else(|| held.state.unknown(held.id))
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
        let from = &volume.record.spec;
        check_kinds(id, from.kind, spec.kind)?;
        if !Arc::ptr_eq(pool, &volume.pool) {
            let own = &volume.pool.config.name;
            return Err(invalid(format!("{} {id} is in pool {own}, and so are its copies", volume.kind())));
        }
        if spec.size < from.size {
            return Err(invalid(format!("a copy of {id} has at least its size, {} bytes", from.size)));
        }
        copy(&source, volume, &mut held, |held, original| {
            if let VolumeKind::Filesystem { .. } = spec.kind {
                check_filesystem(held.state, pool, held.id, spec.size)?;
                check_growth(held.id, &original.image, from.size, spec.size)?;
            }
            make(held, pool, spec, Some(original))
        })?;
    }
    held.known().map(|volume| Reply::Size(volume.record.spec.size)).ok_or_else(|| held.state.unknown(held.id))
}

/// Returns where the content of a volume comes from.
pub fn origin(state: &State, id: &VolumeId) -> Result<Reply, Error> {
    let volume = state.volumes.get(id).ok_or_else(|| state.unknown(id))?;
    Ok(Reply::Origin(volume.origin.as_deref().cloned()))
}

/// A volume as a snapshot, if it is one.
pub fn snapshot(id: &VolumeId, volume: &Volume) -> Option<Snapshot> {
    let VolumeKind::Snapshot { of } = volume.record.spec.kind else { return None };
    Some(Snapshot {
        snapshot: id.clone(),
        pool: volume.pool.config.name.clone(),
        size: volume.record.spec.size,
        block: of != SnapshotOf::Filesystem,
        allocated: volume.allocated,
        origin: volume.origin.as_deref()?.clone(),
    })
}

/// Returns whether a copy is there already: one of this source, and as `is_same` wants it.
///
/// # Errors
/// `AlreadyExists` when something else goes by its id.
fn is_there(held: &Held<'_>, source: &VolumeId, is_same: impl Fn(&VolumeSpec) -> bool) -> Result<bool, Error> {
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

/// Makes a volume's image ready to be copied, and has `make` copy it: what was written to the volume and synced is in it. If no
/// copy comes of it, the image is as it was.
fn copy(
    source: &Held<'_>,
    volume: &Volume,
    held: &mut Held<'_>,
    make: impl FnOnce(&mut Held<'_>, &mut Original) -> Result<(), Error>,
) -> Result<(), Error> {
    let (id, pool) = (source.id, &volume.pool);
    let served = pool.served()?;
    if !served.filesystem.can_copy() {
        return Err(unsupported(format!(
            "pool {} cannot copy volumes: its filesystem is not XFS with reflink, or was in use before it became a pool",
            pool.config.name
        )));
    }
    let image = source.open_content(OFlags::RDONLY)?;
    check_mark(id, volume)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let origin = Origin {
        source: id.clone(),
        family: volume.origin.as_ref().map_or(id, |origin| &origin.family).clone(),
        copied: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
    };
    let (mut original, mut before) = (Original { image, written: 0, origin: Arc::new(origin) }, None);
    let prepared = prepare(source, volume, &original.image, &mut before);
    prepared.and_then(|()| make(held, &mut original)).inspect_err(|_| {
        if let Some(before) = before.filter(|_| held.known().is_none()) {
            // If this fails, the image takes up no more than it would otherwise.
            let _ = xflags::set_attributes(&original.image, before);
        }
    })
}

/// Prepares an image to be copied, and says what its attributes were if they had to be changed for that.
fn prepare(source: &Held<'_>, volume: &Volume, image: &OwnedFd, before: &mut Option<fsxattr>) -> Result<(), Error> {
    let (id, pool) = (source.id, &volume.pool);
    let mut prepare = || -> SysResult<_> {
        let extents = || xflags::attributes(image).map(|found| u64::from(found.fsx_nextents));
        let mut found = extents()?;
        if found <= pool.config.extents {
            *before = xflags::set_copy_unit(image)?;
            flush(source, volume, image)?;
            // What is written out now may be in very many more.
            found = extents()?;
        }
        Ok(found)
    };
    let extents = prepare().map_err(|error| failed("prepare a copy of volume", id, error))?;
    let limit = pool.config.extents;
    if extents > limit {
        let message = format!(
            "the image of {id} is in {extents} pieces, and a copy would stop its writers for a second for each 40000; the limit of pool {} is extents={limit}: copy its content into a new volume, or raise the limit",
            pool.config.name
        );
        return Err(Error::new(ErrorKind::TooFragmented { extents, limit }, message));
    }
    Ok(())
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
    let image = layout::open_content(&seen.volume.pool.served()?.directory, id, Kind::Snapshot, OFlags::RDONLY);
    image.map(|image| (seen, image)).map_err(|error| failed("open snapshot", id, error))
}
