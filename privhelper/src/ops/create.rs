//! Making volumes: built under a dot-name, with quota, synced, then renamed into place.

use std::os::fd::{AsFd, OwnedFd};

use bulkhead_protocol::{Error, ErrorKind, PoolName, Reply, VolumeId, VolumeKind, VolumeSpec};
use rustix::fs::{FallocateFlags, Mode, OFlags};

use crate::log;
use crate::state::{DATA, DOOMED, Doomed, IMAGE, MAKING, Served, Share, State, Volume, failed, write_spec};
use crate::sys::file::{self, FileId};
use crate::sys::quota::ProjectId;
use crate::sys::{Errno, Result as SysResult};

const OWNER_ONLY: Mode = Mode::RWXU;

/// Makes a volume. One that is there with the same settings is answered with the size it has.
pub fn create(state: &State, id: &VolumeId, pool_name: &PoolName, spec: VolumeSpec) -> Result<Reply, Error> {
    let _claimed = state.claims.claim(id, None)?;
    let (index, pool) = state.pool(pool_name)?;
    if let Some(volume) = state.volumes.get(id) {
        let same = volume.pool == index && volume.spec.kind == spec.kind && volume.spec.name_hash == spec.name_hash;
        return if same {
            Ok(Reply::Size(volume.spec.size))
        } else {
            Err(Error::new(ErrorKind::AlreadyExists, format!("volume {id} exists with other settings")))
        };
    }
    let share = Share::of(&spec, pool.has_quotas());
    let mut reservation = pool.filesystem.reserve(&pool.config, share)?;
    let project = match pool.has_quotas() {
        true => Some(reservation.take_project().map_err(|errno| failed("take a project id for", id, errno))?),
        false => None,
    };
    let making = format!("{MAKING}{id}");
    let content = match build(pool, &making, id, &spec, project) {
        Ok(content) => content,
        Err(errno) => {
            // What was built keeps its project and its room until it is emptied.
            if discard(state, index, pool, &making, project, share) {
                reservation.keep();
            }
            return Err(failed("create volume", id, errno));
        }
    };
    reservation.keep();
    let targets = Default::default();
    let volume = Volume { pool: index, project, spec, unused: true, content, targets, device: None };
    state.volumes.insert(id.clone(), volume);
    Ok(Reply::Size(spec.size))
}

fn build(
    pool: &Served,
    making: &str,
    id: &VolumeId,
    spec: &VolumeSpec,
    project: Option<ProjectId>,
) -> SysResult<FileId> {
    file::make_directory(&pool.directory, making, OWNER_ONLY)?;
    let outer = file::open(&pool.directory, making, OFlags::RDONLY | OFlags::DIRECTORY)?;
    if let Some(project) = project {
        let attributes = file::attributes(&outer)?;
        file::set_attributes(&outer, attributes.in_project(project.0))?;
    }
    write_spec(&outer, spec, true)?;
    let content = match spec.kind {
        VolumeKind::Directory { inodes, mode } => {
            file::make_directory(&outer, DATA, OWNER_ONLY)?;
            let data = file::open(&outer, DATA, OFlags::RDONLY | OFlags::DIRECTORY)?;
            rustix::fs::fchmod(&data, Mode::from_raw_mode(mode.get().into()))?;
            file::sync(&data)?;
            if let Some(project) = project {
                pool.filesystem.set_quota(project, spec.size.get(), inodes_limit(inodes.get()))?;
            }
            file::status(&data)?.id
        }
        VolumeKind::Image { sparse, .. } => {
            let image = file::create(&outer, IMAGE, Mode::RUSR | Mode::WUSR)?;
            allocate(&image, spec.size.get(), sparse)?;
            file::sync(&image)?;
            file::status(&image)?.id
        }
    };
    file::touch_and_sync(&outer)?;
    file::rename_new(&pool.directory, making, &pool.directory, id.as_str())?;
    // A volume that may not outlive a power cut is none: it gets its old name back, and goes.
    file::sync(&pool.directory).inspect_err(|_| {
        let _ = file::rename_new(&pool.directory, id.as_str(), &pool.directory, making);
    })?;
    Ok(content)
}

fn allocate(image: &OwnedFd, size: u64, sparse: bool) -> SysResult<()> {
    if sparse {
        return rustix::fs::ftruncate(image, size);
    }
    rustix::fs::fallocate(image.as_fd(), FallocateFlags::empty(), 0, size)
}

/// The quota's limit for so many inodes of a user: the volume's own directory counts as one.
pub fn inodes_limit(inodes: u64) -> u64 {
    inodes.saturating_add(1)
}

/// Takes a half-made volume out of the way and has it emptied; `false` if there was nothing.
fn discard(state: &State, index: usize, pool: &Served, name: &str, project: Option<ProjectId>, share: Share) -> bool {
    let doomed = format!("{DOOMED}{}.{}", state.graveyard.number(), name.trim_start_matches('.'));
    match file::rename_new(&pool.directory, name, &pool.directory, &doomed) {
        Ok(()) => {
            state.graveyard.bury(Doomed { pool: index, name: doomed, project, share });
            true
        }
        Err(Errno::NOENT) => false,
        Err(errno) => {
            log::error!("cannot take a half-made volume out of the way; the next start does name={name} errno={errno}");
            true
        }
    }
}
