//! Looking: use of a volume, pages of volumes, room in a pool. Nothing here changes anything.

use bulkhead_protocol::{
    Error, ErrorKind, Listed, MAX_LISTED, PoolName, PoolStatus, Reply, SIZE_STEP, TargetPath, Text, UpTo, Usage,
    VolumeId, VolumeKind,
};
use rustix::fs::{FileType, OFlags};

use super::existing;
use super::grow::open_image;
use super::loops::attached;
use super::target::hold;
use crate::state::{Purpose, Served, State, Volume, failed};
use crate::sys::file;
use crate::sys::loopdevice::MAJOR;

const NOT_ENFORCED: &str = "sizes are not enforced in this pool: it is configured with quota=none";

/// What a volume is and how much of it is used; where a target is given, only if it is published there.
pub fn usage(state: &State, id: &VolumeId, target: Option<&TargetPath>) -> Result<Reply, Error> {
    let volume = existing(state, id)?;
    let pool = state.pool_at(volume.pool)?;
    if let Some(target) = target {
        check_published(state, id, &volume, target)?;
    }
    let mut usage = Usage {
        pool: pool.config.name.clone(),
        spec: volume.spec,
        used_bytes: None,
        available_bytes: None,
        used_inodes: None,
        targets: u32::try_from(volume.targets.len()).unwrap_or(u32::MAX),
        condition: Text::default(),
    };
    let fail = |errno| failed("look at volume", id, errno);
    match volume.spec.kind {
        VolumeKind::Directory { .. } => match volume.project {
            Some(project) => {
                let quota = pool.filesystem.quota(project).map_err(fail)?;
                let room = pool.filesystem.writable().map_err(fail)?;
                usage.used_bytes = Some(quota.used_bytes);
                usage.available_bytes = Some(volume.spec.size.get().saturating_sub(quota.used_bytes).min(room));
                // The volume's own directory is none of the user's.
                usage.used_inodes = Some(quota.used_inodes.saturating_sub(1));
            }
            None => usage.condition = Text::new(NOT_ENFORCED),
        },
        VolumeKind::Image { .. } => {
            let image = open_image(pool, id, OFlags::PATH).and_then(file::status).map_err(fail)?;
            usage.used_bytes = Some(image.allocated);
            if image.size != volume.spec.size.get() {
                usage.condition =
                    Text::new(format!("the image has {} bytes, not the {} it must have", image.size, volume.spec.size));
            }
        }
    }
    Ok(Reply::Usage(usage))
}

/// For a block volume the kubelet's global map path will do: a bind mount, by the kubelet, of what we published.
fn check_published(state: &State, id: &VolumeId, volume: &Volume, target: &TargetPath) -> Result<(), Error> {
    let absent = || Error::new(ErrorKind::NotFound, format!("volume {id} is not published at {target}"));
    let directory = state.publish_directory(target).map_err(|_| absent())?;
    directory.check_shape(target, Purpose::Look).map_err(|_| absent())?;
    let held = hold(state, target).map_err(|error| if error.kind == ErrorKind::Refused { absent() } else { error })?;
    let status = held.status()?.ok_or_else(absent)?;
    let published = match volume.spec.kind {
        VolumeKind::Directory { .. } => {
            status.mount_root && volume.targets.get(target).is_some_and(|published| published.source == status.id)
        }
        VolumeKind::Image { .. } => {
            let number = attached(state, id, volume)?.map(|device| (MAJOR, device.number));
            status.file_type == FileType::BlockDevice && Some(status.device) == number
        }
    };
    if published { Ok(()) } else { Err(absent()) }
}

/// A page of volumes.
pub fn list(state: &State, after: Option<&VolumeId>, limit: u16) -> Result<Reply, Error> {
    let limit = usize::from(limit).min(MAX_LISTED);
    let mut taken = 0_usize;
    let page = state.volumes.page(after, |id, volume| {
        taken = taken.saturating_add(1);
        let pool = state.pools.get(volume.pool).filter(|_| taken <= limit)?;
        Some(Listed {
            volume: id.clone(),
            pool: pool.config.name.clone(),
            size: volume.spec.size,
            block: matches!(volume.spec.kind, VolumeKind::Image { .. }),
            targets: u32::try_from(volume.targets.len()).unwrap_or(u32::MAX),
        })
    });
    UpTo::try_from(page).map(Reply::Volumes).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))
}

/// Room and condition of a pool.
pub fn pool_status(state: &State, name: &PoolName) -> Result<Reply, Error> {
    let (index, pool) = state.pool(name)?;
    let room = pool.filesystem.room(&pool.config).map_err(|errno| failed("look for room in pool", name, errno))?;
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let available = room.available / SIZE_STEP * SIZE_STEP;
    let conditions = conditions(pool);
    Ok(Reply::Pool(PoolStatus {
        quota: pool.config.quota,
        total: room.total,
        available,
        largest_volume: available.min(room.free / SIZE_STEP * SIZE_STEP),
        promised: pool.filesystem.promised(),
        volumes: count(state.volumes.count(index)),
        emptying: count(state.graveyard.count(index)),
        conditions: UpTo::try_from(conditions).unwrap_or_default(),
    }))
}

fn conditions(pool: &Served) -> Vec<Text> {
    let mut conditions: Vec<String> = Vec::new();
    if !pool.has_quotas() {
        conditions.push(NOT_ENFORCED.to_owned());
    } else if let Ok(Some((project, bytes))) = pool.filesystem.strays() {
        conditions.push(format!(
            "{bytes} bytes are charged to projects of no volume (the first is {}): somebody may be evading a quota, see SECURITY.md",
            project.0
        ));
    }
    conditions.extend(pool.warnings.iter().cloned());
    conditions.into_iter().take(4).map(Text::new).collect()
}
