//! Step 5: the pools, the mounts and the loop devices noted at start rebuild all that is known. Nothing below a publish
//! directory is walked: a foreign mount there may hang.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bulkhead_protocol::{Bytes, MountFlags, RelativePath, TargetPath, Text, VolumeId, VolumeKind};
use rustix::fs::{FileType, OFlags};

use super::config::Config;
use super::directory::Directory;
use super::host::{Host, Traces};
use super::jail::Jail;
use super::mountinfo::Mount;
use super::pool::HostPool;
use crate::log;
use crate::state::layout::{self, Entry, MARKER};
use crate::state::{
    Deletion, Deletions, Device, Filesystem, Kind, Locks, Loops, Pool, PoolConfig, PublishDirectory, Published, Record,
    Served, Share, Sockets, State, Volume, Volumes, limits,
};
use crate::sys::file::{self, FileId};
use crate::sys::loopdevice::MAJOR;
use crate::sys::quota::ProjectId;
use crate::sys::{Errno, Result as SysResult};

/// Which volume a published directory or an image belongs to.
type Owners = BTreeMap<FileId, VolumeId>;

/// Rebuilds everything. `emptier` is the line to the second process.
///
/// # Errors
/// A sentence, when there is nothing left to serve.
pub fn recover(config: &Config, host: Host, traces: &Traces, jail: Jail, emptier: OwnedFd) -> Result<State, String> {
    // The proof was its last use, and it would be a way back.
    drop(host.namespace);
    let mut state = State {
        driver: config.driver.clone(),
        pools: Vec::new(),
        publish_directories: Vec::new(),
        volumes: Volumes::default(),
        unserved: BTreeMap::new(),
        loops: Loops::new(host.loop_control, jail.nodes),
        locks: Locks::default(),
        sockets: Sockets::new(jail.sockets),
        deletions: Deletions::new(emptier),
    };
    for (publish, root) in config.publish.iter().zip(jail.publish) {
        let host_path = Text::new(publish.path.to_string_lossy());
        state.publish_directories.push(PublishDirectory {
            name: publish.name.clone(),
            host_path,
            root,
            shape: publish.shape,
        });
    }
    let mut filesystems = BTreeMap::new();
    for ((config_pool, found), directory) in config.pools.iter().zip(host.pools).zip(jail.pools) {
        let served = match (found, directory) {
            (Ok(found), Some(directory)) => serve(config_pool, config.project_ids, found, directory, &mut filesystems),
            (Err(condition), _) => Err(condition),
            (Ok(_), None) => Err("it is not in the jail".to_owned()),
        };
        if let Err(condition) = &served {
            log::error!("a pool is not served pool={} condition={condition:?}", config_pool.name);
        }
        state.pools.push(Pool { config: config_pool.clone(), state: served });
    }
    if state.pools.iter().all(|pool| pool.state.is_err()) {
        return Err("no pool can be served; see the lines above".to_owned());
    }
    let (mut owners, mut deleted, mut unserved) = (Owners::new(), Vec::new(), BTreeMap::new());
    for index in 0..state.pools.len() {
        let Some(Ok(pool)) = state.pools.get(index).map(|pool| &pool.state) else { continue };
        let scanned = scan(&state, index, pool, &mut owners, &mut deleted, &mut unserved);
        let swept = scanned.and_then(|()| if pool.has_quotas() { pool.filesystem.sweep() } else { Ok(()) });
        if let (Err(errno), Some(pool)) = (swept, state.pools.get_mut(index)) {
            log::error!("a pool is not served: it cannot be listed pool={} errno={errno}", pool.config.name);
            pool.state = Err(format!("it cannot be listed: {errno}"));
            deleted.retain(|deletion: &Deletion| deletion.pool != index);
        }
    }
    state.unserved = unserved;
    // Deleted volumes keep their projects and their shares until they are empty, so all are noted before any is emptied.
    for deletion in deleted {
        state.deletions.add(deletion);
    }
    let devices = find_devices(&state, &traces.loops, &owners);
    find_targets(&state, &traces.mounts, &host.publish, &owners, &devices);
    Ok(state)
}

fn serve(
    config: &PoolConfig,
    project_ids: (u32, u32),
    found: HostPool,
    directory: OwnedFd,
    filesystems: &mut BTreeMap<(u32, u32), Arc<Filesystem>>,
) -> Result<Served, String> {
    let fail = |errno: Errno| format!("cannot open it in the jail: {errno}");
    let device = file::status(&directory).map_err(fail)?.id.device;
    let root = directory.try_clone().map_err(|error| error.to_string())?;
    let filesystem = Arc::clone(filesystems.entry(device).or_insert_with(|| Filesystem::new(root, project_ids)));
    // A descriptor from outside would keep the host from unmounting the pool: take the lock again from inside.
    let marker = file::open(&directory, MARKER, OFlags::RDONLY).map_err(fail)?;
    let HostPool { marker: outside, inherited, warnings, .. } = found;
    if let Some(outside) = outside {
        file::unlock(&outside).map_err(fail)?;
    }
    file::lock(&marker).map_err(|_| "another helper serves it now".to_owned())?;
    Ok(Served { config: config.clone(), directory, filesystem, inherited, warnings, _marker: marker })
}

/// Goes through a pool's entries, once.
fn scan(
    state: &State,
    index: usize,
    pool: &Served,
    owners: &mut Owners,
    deleted: &mut Vec<Deletion>,
    unserved: &mut BTreeMap<VolumeId, String>,
) -> SysResult<()> {
    let mut names = Vec::new();
    file::each_entry(&pool.directory, |name| {
        names.push(name.to_string_lossy().into_owned());
        Ok(())
    })?;
    for name in names {
        let foreign = || log::warning!("an entry of the pool is not a volume pool={} name={name:?}", pool.config.name);
        match Entry::of(&name) {
            Entry::Unfinished => deleted.push(adopt_deleted(state, index, pool, name)?),
            Entry::Deleted(number) => {
                state.deletions.note_number(number);
                deleted.push(adopt_deleted(state, index, pool, name)?);
            }
            Entry::Volume(id) => match adopt(state, index, pool, &id, owners) {
                Ok(true) => {}
                Ok(false) => foreign(),
                Err(why) => {
                    log::error!("a volume is not served pool={} volume={id} why={why:?}", pool.config.name);
                    unserved.insert(id, why);
                }
            },
            Entry::OfPool => {}
            Entry::Foreign => foreign(),
        }
    }
    Ok(())
}

/// Notes a volume that is unfinished or deleted.
fn adopt_deleted(state: &State, index: usize, pool: &Served, mut name: String) -> SysResult<Deletion> {
    let mut share = Share::default();
    if let Ok(directory) = layout::open_volume(&pool.directory, &name) {
        share.project = project_of(pool, &directory)?;
        if let Ok(record) = Record::read(&directory) {
            share = Share::of(&record.spec, share.project);
        }
    }
    pool.filesystem.adopt(share);
    // An unfinished volume cannot keep its name: the next attempt to create it needs the name.
    if Entry::of(&name) == Entry::Unfinished {
        let deleted = layout::deleted_name(state.deletions.new_number(), &name);
        file::rename_new(&pool.directory, &name, &pool.directory, &deleted)?;
        name = deleted;
    }
    Ok(Deletion { pool: index, name, share })
}

fn project_of(pool: &Served, directory: &OwnedFd) -> SysResult<Option<ProjectId>> {
    if pool.has_quotas() { layout::project_of(directory) } else { Ok(None) }
}

/// Notes a volume, and mends what a crash may have left unfinished; `false` if the entry only has the name of one.
fn adopt(state: &State, index: usize, pool: &Served, id: &VolumeId, owners: &mut Owners) -> Result<bool, String> {
    let say = |errno: Errno| errno.to_string();
    let directory = match layout::open_volume(&pool.directory, id.as_str()) {
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(false),
        directory => directory.map_err(say)?,
    };
    let mut record = match Record::read(&directory) {
        Err(Errno::NODATA) => return Ok(false),
        Err(Errno::BADMSG) => return Err("its record is damaged, or of a later release".to_owned()),
        record => record.map_err(|errno| format!("its record cannot be read: {errno}"))?,
    };
    let project = project_of(pool, &directory).map_err(say)?;
    let content = match record.spec.kind {
        VolumeKind::Directory { inodes, .. } => {
            let data = layout::open_content(&pool.directory, id, Kind::Directory, OFlags::PATH).map_err(say)?;
            if let Some(project) = project {
                let size = record.spec.size;
                let (quota, wanted) = (pool.filesystem.quota(project).map_err(say)?, limits(size, inodes));
                if (quota.limit_bytes, quota.limit_inodes) != wanted {
                    log::warning!("a volume's quota is reset to the value in its record volume={id}");
                    pool.filesystem.set_quota(project, wanted).map_err(say)?;
                }
            }
            file::status(&data).map_err(say)?.id
        }
        VolumeKind::Image { .. } => {
            let image = layout::open_content(&pool.directory, id, Kind::Block, OFlags::RDWR).map_err(say)?;
            let status = file::status(&image).map_err(say)?;
            if status.allocated > status.size {
                // Blocks that were allocated for a growth that did not finish.
                rustix::fs::ftruncate(&image, status.size).map_err(say)?;
            }
            match Bytes::try_from(status.size) {
                Ok(size) if size > record.spec.size => {
                    record.spec.size = size;
                    record.replace(&pool.directory, id).map_err(say)?;
                }
                _ => {}
            }
            status.id
        }
    };
    let volume = Volume { pool: index, project, record, content, targets: BTreeMap::new(), device: None };
    let share = volume.share();
    if !state.volumes.insert(id.clone(), volume) {
        return Err("another pool has a volume with the same id".to_owned());
    }
    owners.insert(content, id.clone());
    pool.filesystem.adopt(share);
    Ok(true)
}

/// Finds the loop devices that back images of ours, and notes those that are free.
fn find_devices(state: &State, numbers: &[u32], owners: &Owners) -> BTreeMap<u32, VolumeId> {
    let mut devices = BTreeMap::new();
    for number in numbers {
        match state.loops.examine(*number) {
            Ok(Some(binding)) => match owners.get(&binding.image) {
                Some(id) => {
                    devices.insert(*number, id.clone());
                    let device = Device { number: *number, read_only: binding.read_only };
                    state.volumes.update(id, |volume| volume.device = Some(device));
                }
                None => state.loops.remove_node(*number),
            },
            Ok(None) => {}
            Err(errno) => {
                state.loops.remove_node(*number);
                log::warning!("cannot inspect a loop device number={number} errno={errno}");
            }
        }
    }
    devices
}

/// Finds where volumes are published among the mounts that the host had at start.
fn find_targets(
    state: &State,
    mounts: &[Mount],
    publish: &[Directory],
    owners: &Owners,
    devices: &BTreeMap<u32, VolumeId>,
) {
    for mount in mounts {
        // Only what may be ours is looked at: anything else may hang.
        let of_pool = state
            .pools
            .iter()
            .filter_map(|pool| pool.state.as_ref().ok())
            .any(|pool| file::status(&pool.directory).is_ok_and(|status| status.id.device == mount.device));
        let of_node = mount.filesystem == "tmpfs"
            && mount.root.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"loop"));
        if !of_pool && !of_node {
            continue;
        }
        for (directory, found) in state.publish_directories.iter().zip(publish) {
            let Some(path) = relative(mount, found) else { continue };
            let target = TargetPath { directory: directory.name.clone(), path };
            if let Some((id, source)) = owner_of(directory, &target, owners, devices) {
                let flags = flags(state, &id, mount);
                state.volumes.add_target(&id, target, Published { source, flags });
            }
        }
    }
}

fn relative(mount: &Mount, directory: &Directory) -> Option<RelativePath> {
    mount.point.strip_prefix(&directory.real_path).ok()?.to_str()?.parse().ok()
}

fn owner_of(
    directory: &PublishDirectory,
    target: &TargetPath,
    owners: &Owners,
    devices: &BTreeMap<u32, VolumeId>,
) -> Option<(VolumeId, FileId)> {
    let (parent, name) = target.path.split_last();
    let parent = file::open_below(directory.root.as_fd(), parent).ok()?;
    let status = file::status_at(parent, name).ok().filter(|status| status.mount_root)?;
    let (id, kind) = match status.file_type {
        FileType::Directory => (owners.get(&status.id), Kind::Directory),
        FileType::BlockDevice if status.device.0 == MAJOR => (devices.get(&status.device.1), Kind::Block),
        _ => return None,
    };
    // The kubelet binds what we published once more, at paths of its own.
    directory.check_shape(target, kind).ok()?;
    Some((id?.clone(), status.id))
}

fn flags(state: &State, id: &VolumeId, mount: &Mount) -> MountFlags {
    match state.volumes.get(id).and_then(|volume| volume.device) {
        Some(device) => MountFlags { read_only: device.read_only, ..MountFlags::default() },
        None => mount.flags(),
    }
}
