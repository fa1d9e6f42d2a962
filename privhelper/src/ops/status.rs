//! Reports: usage of a volume, pages of volumes, room in a pool. Nothing here changes anything.

use std::time::{Duration, Instant};

use bulkhead_protocol::{
    Condition, ConditionKind, Error, ErrorKind, Listed, MAX_LISTED, PoolName, PoolStatus, Reply, SIZE_STEP, TargetPath,
    UpTo, Usage, VolumeId,
};
use rustix::fs::{FileType, OFlags};

use super::target::Target;
use crate::state::{Deletion, Kind, Served, Share, State, Strays, Volume, failed, layout};
use crate::sys::loopdevice::MAJOR;
use crate::sys::{Errno, file};

const NOT_ENFORCED: &str = "sizes are not enforced in this pool: it is configured with quota=none";

/// A volume's settings and usage. If a target is given, the volume must be published there.
pub fn usage(state: &State, id: &VolumeId, target: Option<&TargetPath>) -> Result<Reply, Error> {
    let volume = state.volumes.get(id).ok_or_else(|| state.unknown(id))?;
    let pool = state.pool_at(volume.pool)?;
    if let Some(target) = target {
        check_published(state, id, &volume, target)?;
    }
    let mut usage = Usage {
        pool: pool.config.name.clone(),
        spec: volume.record.spec,
        used_bytes: None,
        available_bytes: None,
        used_inodes: None,
        targets: count(volume.targets.len()),
        condition: pool.failure(),
    };
    if usage.condition.is_some() {
        return Ok(Reply::Usage(usage));
    }
    let fail = |errno| failed("inspect volume", id, errno);
    match volume.kind() {
        Kind::Directory => match volume.project {
            Some(project) => {
                let quota = pool.filesystem.quota(project).map_err(fail)?;
                let free = pool.filesystem.space().map_err(fail)?.free;
                usage.used_bytes = Some(quota.used_bytes);
                usage.available_bytes = Some(usage.spec.size.get().saturating_sub(quota.used_bytes).min(free));
                // The volume's own directory is not the user's.
                usage.used_inodes = Some(quota.used_inodes.saturating_sub(1));
            }
            None => usage.condition = Some(Condition::new(ConditionKind::NotEnforced, NOT_ENFORCED)),
        },
        Kind::Block => {
            let image = layout::open_content(&pool.directory, id, Kind::Block, OFlags::PATH);
            let image = image.and_then(file::status).map_err(fail)?;
            usage.used_bytes = Some(image.allocated);
            if image.size != usage.spec.size.get() {
                let text = format!("the image has {} bytes instead of {}", image.size, usage.spec.size);
                usage.condition = Some(Condition::new(ConditionKind::Other, text));
            }
        }
    }
    Ok(Reply::Usage(usage))
}

/// Checks that a volume is published at a target. For a block volume, the kubelet's global map path will do as well:
/// that is where the kubelet binds what we published.
fn check_published(state: &State, id: &VolumeId, volume: &Volume, target: &TargetPath) -> Result<(), Error> {
    let absent = || Error::new(ErrorKind::NotFound, format!("volume {id} is not published at {target}"));
    let directory = state.publish_directory(target).map_err(|_| absent())?;
    if !directory.shape.allows_look(&target.path, volume.kind()) {
        return Err(absent());
    }
    let opened = Target::open(state, target);
    let opened = opened.map_err(|error| if error.kind == ErrorKind::Refused { absent() } else { error })?;
    let published = match volume.kind() {
        Kind::Directory => match (volume.published_at(target), opened.mount()?) {
            (Some(published), Some(mount)) => mount.is(published, volume, state),
            _ => false,
        },
        Kind::Block => {
            let status = opened.status()?.ok_or_else(absent)?;
            let number = volume.device.map(|device| (MAJOR, device.number));
            status.file_type == FileType::BlockDevice && Some(status.device) == number
        }
    };
    if published { Ok(()) } else { Err(absent()) }
}

/// A page of volumes.
pub fn list(state: &State, after: Option<&VolumeId>, limit: u16) -> Result<Reply, Error> {
    let page = state.volumes.page(after, usize::from(limit).min(MAX_LISTED), |id, volume| {
        Some(Listed {
            volume: id.clone(),
            pool: state.pools.get(volume.pool)?.config.name.clone(),
            size: volume.record.spec.size,
            block: volume.kind() == Kind::Block,
            targets: count(volume.targets.len()),
        })
    });
    UpTo::try_from(page).map(Reply::Volumes).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))
}

/// Free space and condition of a pool.
pub fn pool_status(state: &State, name: &PoolName) -> Result<Reply, Error> {
    let (index, pool) = state.pool(name)?;
    let filesystem = &pool.filesystem;
    let hangs = filesystem.in_progress.hangs_for(Instant::now());
    // Held to the end: looking for stray projects may take forever as well.
    let _admitted = hangs.is_none().then(|| filesystem.in_progress.admit(name)).transpose()?;
    let (failure, room) = match hangs {
        Some(_) => (None, filesystem.no_room()),
        None => match pool.failure() {
            None => (None, filesystem.room(&pool.config, state.measure(pool)?)),
            failure => (failure, filesystem.no_room()),
        },
    };
    let full = state.check_number_of_volumes().err();
    let available = if full.is_some() { 0 } else { whole_steps(room.available) };
    Ok(Reply::Pool(PoolStatus {
        quota: pool.config.quota,
        total: room.total,
        available,
        largest_volume: available.min(whole_steps(room.free)),
        promised: room.promised,
        volumes: count(state.volumes.count(index)),
        emptying: count(pool.deletions.count()),
        conditions: UpTo::try_from(conditions(pool, full, hangs, failure)).unwrap_or_default(),
    }))
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The largest valid size that does not exceed `bytes`.
fn whole_steps(bytes: u64) -> u64 {
    bytes.saturating_sub(bytes % SIZE_STEP)
}

fn conditions(
    pool: &Served,
    full: Option<Error>,
    hangs: Option<Duration>,
    failure: Option<Condition>,
) -> Vec<Condition> {
    let full = full.map(|error| Condition::new(ConditionKind::VolumeLimit, error.to_string()));
    let mut conditions: Vec<Condition> = full.into_iter().chain(failure).collect();
    let mut add = |kind, text: String| conditions.push(Condition::new(kind, text));
    if let Some(time) = hangs {
        let text = format!(
            "its filesystem does not answer: an operation has waited for {} seconds; see whether it is frozen (fsfreeze) or its disk hangs (dmesg)",
            time.as_secs()
        );
        add(ConditionKind::NotAnswering, text);
    }
    if !pool.has_quotas() {
        add(ConditionKind::NotEnforced, NOT_ENFORCED.to_owned());
    } else if hangs.is_none() {
        match pool.filesystem.strays().map(|strays| evasion(&strays)) {
            // Another status request is already looking.
            Ok(None) | Err(Errno::BUSY) => {}
            Ok(Some(text)) => add(ConditionKind::QuotaEvasion, text),
            Err(errno) => {
                add(ConditionKind::Other, format!("cannot look for projects that belong to no volume: {errno}"))
            }
        }
    }
    if let Some(stuck) = pool.deletions.stuck() {
        let text = format!(
            "deleted volumes cannot be emptied: the filesystem has not answered for {} s; is it frozen, or is its disk gone?",
            stuck.as_secs()
        );
        add(ConditionKind::NotAnswering, text);
    }
    let charged = pool.deletions.charged();
    if let Some(Deletion { name, share: Share { project: Some(project), .. }, .. }) = charged.first() {
        let text = format!(
            "deleted volumes whose space cannot be released yet: {}; something is still charged to their projects (the first is {}, of {name}): an open file, or one that was moved into the project",
            charged.len(),
            project.0
        );
        add(ConditionKind::NotReleased, text);
    }
    for warning in &pool.warnings {
        add(ConditionKind::Other, warning.clone());
    }
    conditions.truncate(4);
    conditions
}

fn evasion(strays: &Strays) -> Option<String> {
    let seen = strays.first.map(|first| {
        format!(
            "{} bytes and {} files are charged to projects that no volume has (the first is {}): a pod may be evading its quota; see SECURITY.md",
            strays.bytes, strays.inodes, first.0
        )
    });
    let cut = strays.cut.then(|| "there are too many projects to check them all".to_owned());
    let parts: Vec<String> = cut.into_iter().chain(seen).collect();
    (!parts.is_empty()).then(|| parts.join(", and "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::quota::ProjectId;

    #[test]
    fn evasion_is_told_by_bytes_by_files_and_by_what_was_not_looked_at() {
        let text = |first: Option<u32>, cut| {
            let strays = Strays { first: first.map(ProjectId), bytes: 0, inodes: 9, cut };
            evasion(&strays).unwrap_or_default()
        };
        assert_eq!(text(None, false), "");
        assert!(
            text(Some(4711), false)
                .starts_with("0 bytes and 9 files are charged to projects that no volume has (the first is 4711)")
        );
        assert_eq!(text(None, true), "there are too many projects to check them all");
        assert!(text(Some(1), true).starts_with("there are too many projects to check them all, and 0 bytes and 9"));
    }

    #[test]
    fn sizes_are_rounded_down_to_whole_steps() {
        for (bytes, whole) in [(0, 0), (4095, 0), (4096, 4096), (8191, 4096), (u64::MAX, u64::MAX - 4095)] {
            assert_eq!(whole_steps(bytes), whole, "{bytes}");
        }
        assert_eq!((count(3), count(usize::MAX)), (3, u32::MAX));
    }
}
