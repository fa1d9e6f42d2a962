//! Creating volumes: build under another name, with a quota, then rename into place and sync the
//! pool's directory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bulkhead_protocol::{CallId, Error, ErrorKind, Reply, VolumeId, VolumeKind, VolumeSpec};
use rustix::fs::{FallocateFlags, Mode, OFlags};

use super::filesystem::limits;
use super::limits::{check_filesystem, check_number_of_volumes};
use super::log;
use super::room::{Measured, Share};
use super::template;
use crate::ops::{check_unknown_detached, check_unknown_unmounted};
use crate::state::layout::{self, DATA, IMAGE};
use crate::state::{Held, Pool, Record, Served, State, Volume, busy, exists, failed, invalid, no_space};
use crate::sys::file::{self, FileId};
use crate::sys::quota::ProjectId;
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, walk, xflags};

/// Creates a volume that is empty. If it already exists with the same settings, replies with its current size.
pub fn create(mut held: Held<'_>, pool: &Arc<Pool>, spec: VolumeSpec) -> Result<Reply, Error> {
    let (state, id, served) = (held.state, held.id, pool.served()?);
    if let Some(volume) = held.known() {
        let found = volume.record.spec;
        let is_same = found.kind == spec.kind && found.name_hash == spec.name_hash && volume.origin.is_none();
        if Arc::ptr_eq(&volume.pool, pool) && is_same {
            put_back(&mut held)?;
            served.sync_names_again().map_err(|error| unsynced(id, error))?;
            return Ok(Reply::Size(found.size));
        }
        return Err(exists(format!("volume {id} exists with other settings")));
    }
    match spec.kind {
        VolumeKind::Filesystem { .. } => check_filesystem(state, pool, id, spec.size)?,
        VolumeKind::Snapshot { .. } => return Err(invalid(format!("volume {id}: a snapshot is taken of a volume"))),
        VolumeKind::Directory { .. } | VolumeKind::Image { .. } => {}
    }
    make(&mut held, pool, spec)?;
    Ok(Reply::Size(spec.size))
}

/// Makes an empty volume that does not exist.
fn make(held: &mut Held<'_>, pool: &Arc<Pool>, spec: VolumeSpec) -> Result<(), Error> {
    let (id, served, record) = (held.id, pool.served()?, Record { spec, unused: true });
    let project = promise(held, pool, &spec, 0)?;
    // From here on the project and the room stay taken, even if the build fails, until the volume has been emptied.
    let content = build(served, id, &record, project).inspect_err(|_| discard(held, pool, served))?;
    held.add(Volume::new(Arc::clone(pool), project, record, content));
    // If this fails, the volume exists for all to see, but only a repeated request may report success.
    served.sync_names().map_err(|error| unsynced(id, error))
}

/// Promises room to a volume that does not exist, and refers to so many bytes if it is a snapshot; takes a project for it, and
/// makes its directory.
///
/// # Errors
/// `NoRoom` or `NoSpace` when there is no room for it.
pub fn promise(held: &Held<'_>, pool: &Arc<Pool>, spec: &VolumeSpec, written: u64) -> Result<Option<ProjectId>, Error> {
    let (state, served) = (held.state, pool.served()?);
    check_nowhere(state, held.id)?;
    check_number_of_volumes(state)?;
    let (measured, least) = (measure(state, pool)?.with_more(1), Share::of(spec, pool.inode_size(), None, written));
    let check = |promised| check_room(pool, &measured, promised, least);
    held.promise(pool, least, check, || {
        let project = take_project(held, pool, served)?;
        make_outer(held, pool, served).map(|()| project)
    })
}

/// Checks that no other pool is seen to have the volume: one that cannot be served now may be later, and of two volumes with
/// one id, neither is.
///
/// # Errors
/// As for any request about a volume that is not known.
fn check_nowhere(state: &State, id: &VolumeId) -> Result<(), Error> {
    let is_seen = || check_unknown_detached(state, id).and_then(|()| check_unknown_unmounted(state, id)).is_err();
    match state.unknown(id) {
        error if error.kind == ErrorKind::NotFound => Ok(()),
        error if state.unserved.contains_key(id) || is_seen() => Err(error),
        _ => Ok(()),
    }
}

/// Opens a volume's content for path resolution. The data directory of a volume that was never used is made again if it was
/// removed as a step of a deletion that then failed.
///
/// # Errors
/// As [`Held::open_content`], and when it cannot be made.
pub fn put_back(held: &mut Held<'_>) -> Result<OwnedFd, Error> {
    let opened = held.open_content(OFlags::PATH);
    let is_gone = opened.as_ref().is_err_and(|error| error.kind == ErrorKind::Io(Errno::NOENT.raw_os_error()));
    let Some(volume) = held.known().filter(|volume| is_gone && volume.record.unused) else { return opened };
    let VolumeKind::Directory { mode, .. } = volume.record.spec.kind else { return opened };
    let served = volume.pool.served()?;
    let make = || -> SysResult<(FileId, SysResult<()>)> {
        let outer = layout::open_volume(&served.directory, held.id.as_str())?;
        let content = make_data(&outer, Mode::from_raw_mode(mode.get().into()))?;
        Ok((content, served.noting_failure(served.sync(outer))))
    };
    let id = held.id;
    let cannot = |error| failed("make the data directory of volume", id, error);
    let (content, synced) = make().map_err(cannot)?;
    held.change(|volume| volume.content = content);
    synced.map_err(cannot)?;
    held.open_content(OFlags::PATH)
}

/// The error of a volume of which a power cut may leave nothing.
pub fn unsynced(id: &VolumeId, error: SysError) -> Error {
    failed("sync to disk the creation of volume", id, error)
}

/// Takes a project of its own for the volume in a pool with quotas.
fn take_project(held: &Held<'_>, pool: &Pool, served: &Served) -> Result<Option<ProjectId>, Error> {
    if !pool.has_quotas() {
        return Ok(None);
    }
    let taken = served.filesystem.take_project(|candidate| held.claim(candidate));
    let taken = taken.map_err(|error| failed("take a project id in pool", &pool.config.name, error))?;
    taken.ok_or_else(|| no_project(pool)).map(Some)
}

/// Returns what a pool's filesystem has to share out.
///
/// # Errors
/// When that cannot be determined.
pub fn measure(state: &State, pool: &Pool) -> Result<Measured, Error> {
    let measured = pool.served()?.filesystem.measure(&state.volumes, pool);
    measured.map_err(|error| failed("determine the free space of pool", &pool.config.name, error))
}

/// Checks that a pool can promise a share in addition to what is promised.
///
/// # Errors
/// `NoRoom` if not.
pub fn check_room(pool: &Pool, measured: &Measured, promised: u64, share: Share) -> Result<(), Error> {
    let (room, wanted) = (measured.room(&pool.config, promised).for_volume(share.preallocated), share.bytes);
    if wanted <= room {
        return Ok(());
    }
    let message = format!("pool {} cannot promise that much; delete volumes or enlarge the pool", pool.config.name);
    Err(Error::new(ErrorKind::NoRoom { room, wanted }, message))
}

fn no_project(pool: &Pool) -> Error {
    no_space(format!(
        "pool {} has no free project id: all that were tried belong to volumes or have files charged to them; see the pool's conditions, or widen --project-ids",
        pool.config.name
    ))
}

fn make_outer(held: &Held<'_>, pool: &Pool, served: &Served) -> Result<(), Error> {
    let (state, id) = (held.state, held.id);
    let still_there = || busy(format!("create volume {id}: an earlier one is still being removed; try again"));
    // A volume that was deleted in a full pool keeps its name until it is empty.
    if state.volumes.is_deleted(pool, id.as_str()) {
        return Err(still_there());
    }
    let cannot = |error| failed("create volume", format_args!("{id}: cannot make its directory"), error);
    let name = layout::creating_name(id);
    let make = || file::make_directory(&served.directory, &name, Mode::RWXU);
    match make() {
        // An earlier attempt failed, and what it left could not be put aside then.
        Err(SysError { errno: Errno::EXIST, .. }) => {
            // What was deleted in its place is being emptied under its name, which nothing else may have until then.
            let status = file::status_at(&served.directory, &*name).map_err(cannot)?;
            if layout::is_deleted_in_place(&status) {
                return Err(still_there());
            }
            let aside = served.put_aside(&name).map_err(cannot)?;
            held.move_unfinished(pool, &aside);
            state.wake_emptier(pool, aside.is_in_place());
            make().map_err(|error| if error.errno == Errno::EXIST { still_there() } else { cannot(error) })
        }
        made => made.map_err(cannot),
    }
}

/// Builds a volume on disk, and returns its content. Only the order of these steps is kept until the names are synced: XFS and
/// ext4 commit changes to inodes, names, extended attributes and quotas in the order in which they were made, and syncing any
/// of them commits all that came before. Blocks that were allocated but not written read as zeros until the change that says
/// otherwise is committed as well.
fn build(served: &Served, id: &VolumeId, record: &Record, project: Option<ProjectId>) -> Result<FileId, Error> {
    let (name, size) = (layout::creating_name(id), record.spec.size.get());
    let outer = begin(served, id, record, project)?;
    let content = match record.spec.kind {
        VolumeKind::Snapshot { .. } => return Err(invalid(format!("volume {id}: there is nothing to copy"))),
        VolumeKind::Directory { inodes, mode } => {
            let mode = Mode::from_raw_mode(mode.get().into());
            let content = make_data(&outer, mode).map_err(cannot(id, "make its data directory"))?;
            // The limit is set last: the smallest ones leave no room to create the directories.
            if let Some(project) = project {
                let limits = limits(record.spec.size, inodes);
                served.filesystem.set_quota(project, limits).map_err(cannot(id, "set its quota"))?;
            }
            content
        }
        VolumeKind::Image { sparse, .. } => {
            make_image((served, &name), &outer, size, sparse, None).map_err(cannot(id, "allocate its image"))?
        }
        VolumeKind::Filesystem { sparse, .. } => make_image((served, &name), &outer, size, sparse, template::of(size))
            .map_err(cannot(id, "make its image"))?,
    };
    give_name(served, id).map(|()| content)
}

/// Gives the directory of a volume that is being made its project and its record, and returns it.
pub fn begin(served: &Served, id: &VolumeId, record: &Record, project: Option<ProjectId>) -> Result<OwnedFd, Error> {
    let name = layout::creating_name(id);
    let outer = layout::open_volume(&served.directory, &name).map_err(cannot(id, "open its directory"))?;
    if let Some(project) = project {
        xflags::set_project(&outer, project.0, xflags::PROJECT_INHERIT).map_err(cannot(id, "set its project id"))?;
    }
    record.write(&served.attributes, &name).map_err(cannot(id, "write its record"))?;
    Ok(outer)
}

/// Gives a volume its name: from then on it exists.
pub fn give_name(served: &Served, id: &VolumeId) -> Result<(), Error> {
    let directory = &served.directory;
    walk::rename_new(directory, &layout::creating_name(id), directory, id.as_str())
        .map_err(cannot(id, "give it its name"))
}

/// Makes an error of a step in the making of a volume.
pub fn cannot(id: &VolumeId, step: &'static str) -> impl Fn(SysError) -> Error {
    move |error| failed("create volume", format_args!("{id}: cannot {step}"), error)
}

fn make_data(outer: impl AsFd, mode: Mode) -> SysResult<FileId> {
    file::make_directory(&outer, DATA, mode)?;
    Ok(file::status_at(&outer, DATA)?.id)
}

/// Makes an image, with the beginning of a filesystem in it if there is one. No journal keeps what is written into a file in
/// order with anything, so that is synced before the volume gets its name.
fn make_image(
    (served, name): (&Served, &str),
    outer: impl AsFd,
    size: u64,
    sparse: bool,
    template: Option<&[u8]>,
) -> SysResult<FileId> {
    let image = file::create(outer, IMAGE, Mode::RUSR | Mode::WUSR)?;
    if sparse {
        rustix::fs::ftruncate(&image, size).by("ftruncate")?;
    } else {
        rustix::fs::fallocate(&image, FallocateFlags::empty(), 0, size).by("fallocate")?;
    }
    if let Some(template) = template {
        layout::mark_filesystem(&served.attributes, name)?;
        template::write(&image, template)?;
        file::sync(&image)?;
    }
    Ok(file::status(&image)?.id)
}

/// Leaves an unfinished volume to the emptier, if possible under a name that does not block the next attempt.
pub fn discard(held: &mut Held<'_>, pool: &Pool, served: &Served) {
    match served.put_aside(&layout::creating_name(held.id)) {
        Ok(aside) => held.delete(&aside, CallId::default()),
        Err(error) => {
            log::warning!("cannot move an incomplete volume out of the way volume={} error={error}", held.id);
            held.leave_unfinished();
        }
    }
    held.state.wake_emptier(pool, true);
}
