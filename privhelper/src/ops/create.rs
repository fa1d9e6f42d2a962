//! Creating volumes: build under another name, with a quota, then rename into place and sync the pool's directory.

use std::os::fd::AsFd;

use bulkhead_protocol::{Error, ErrorKind, PoolName, Reply, VolumeId, VolumeKind, VolumeSpec};
use rustix::fs::{FallocateFlags, Mode};

use crate::log;
use crate::state::layout::{self, DATA, IMAGE};
use crate::state::{Deletion, Record, Served, Share, State, Volume, failed, limits};
use crate::sys::file::{self, FileId};
use crate::sys::quota::ProjectId;
use crate::sys::{Errno, Result as SysResult};

/// Creates a volume. If it already exists with the same settings, replies with its current size.
pub fn create(state: &State, id: &VolumeId, pool_name: &PoolName, spec: VolumeSpec) -> Result<Reply, Error> {
    let (index, pool) = state.pool(pool_name)?;
    if let Some(volume) = state.volumes.get(id) {
        let found = volume.record.spec;
        if volume.pool == index && found.kind == spec.kind && found.name_hash == spec.name_hash {
            pool.sync_again().map_err(|errno| failed("sync to disk the creation of volume", id, errno))?;
            return Ok(Reply::Size(found.size));
        }
        return Err(Error::new(ErrorKind::AlreadyExists, format!("volume {id} exists with other settings")));
    }
    state.check_number_of_volumes()?;
    let reservation = pool.filesystem.reserve(&pool.config, &spec, state.measure(pool)?)?;
    let project = reservation.share.project;
    let record = Record { spec, unused: true };
    make_outer(pool, id)?;
    // From here on the project and the room stay taken, even if the build fails, until the volume has been emptied.
    reservation.keep();
    let content = build(pool, id, &record, project).inspect_err(|_| discard(pool, id, Share::of(&spec, project)))?;
    let volume = Volume { pool: index, project, record, content, targets: [].into(), device: None };
    state.volumes.insert(id.clone(), volume);
    // If this fails, the volume exists for all to see, but only a repeated request may report success.
    pool.sync().map_err(|errno| failed("sync to disk the creation of volume", id, errno))?;
    Ok(Reply::Size(spec.size))
}

fn make_outer(pool: &Served, id: &VolumeId) -> Result<(), Error> {
    match file::make_directory(&pool.directory, &layout::creating_name(id), Mode::RWXU) {
        Err(Errno::EXIST) => {
            let message = format!("create volume {id}: an earlier attempt is still being removed; try again");
            Err(Error::new(ErrorKind::Busy, message))
        }
        made => made.map_err(|errno| failed("create volume", format_args!("{id}: cannot make its directory"), errno)),
    }
}

/// Builds a volume on disk, and returns its content.
fn build(pool: &Served, id: &VolumeId, record: &Record, project: Option<ProjectId>) -> Result<FileId, Error> {
    let cannot = |step: &'static str| move |errno| failed("create volume", format_args!("{id}: cannot {step}"), errno);
    let directory = &pool.directory;
    let name = layout::creating_name(id);
    let outer = layout::open_volume(directory, &name).map_err(cannot("open its directory"))?;
    if let Some(project) = project {
        file::set_project(&outer, project.0).map_err(cannot("set its project id"))?;
    }
    record.write(&outer).map_err(cannot("write its record"))?;
    let content = match record.spec.kind {
        VolumeKind::Directory { inodes, mode } => {
            let mode = Mode::from_raw_mode(mode.get().into());
            let content = make_data(&outer, mode).map_err(cannot("make its data directory"))?;
            // The limit is set last: the smallest ones leave no room to create the directories.
            if let Some(project) = project {
                let limits = limits(record.spec.size, inodes);
                pool.filesystem.set_quota(project, limits).map_err(cannot("set its quota"))?;
            }
            content
        }
        VolumeKind::Image { sparse, .. } => {
            make_image(pool, &outer, record.spec.size.get(), sparse).map_err(cannot("allocate its image"))?
        }
    };
    pool.keep_order(&outer).map_err(cannot("sync its directory"))?;
    file::rename_new(directory, &name, directory, id.as_str()).map_err(cannot("give it its name"))?;
    Ok(content)
}

fn make_data(outer: impl AsFd, mode: Mode) -> SysResult<FileId> {
    file::make_directory(&outer, DATA, mode)?;
    Ok(file::status_at(&outer, DATA)?.id)
}

fn make_image(pool: &Served, outer: impl AsFd, size: u64, sparse: bool) -> SysResult<FileId> {
    let image = file::create(outer, IMAGE, Mode::RUSR | Mode::WUSR)?;
    if sparse {
        rustix::fs::ftruncate(&image, size)?;
    } else {
        rustix::fs::fallocate(&image, FallocateFlags::empty(), 0, size)?;
    }
    pool.keep_order(&image)?;
    Ok(file::status(&image)?.id)
}

/// Queues an unfinished volume for emptying, if possible under a name that does not block the next attempt.
fn discard(pool: &Served, id: &VolumeId, share: Share) {
    let unfinished = layout::creating_name(id);
    let name = pool.put_aside(&unfinished).unwrap_or_else(|errno| {
        log::warning!("cannot move an incomplete volume out of the way volume={id} errno={errno}");
        unfinished
    });
    pool.deletions.add(Deletion { name, share });
}
