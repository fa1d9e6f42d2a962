//! Step 5: the pools, the mounts and the loop devices noted at start rebuild all that is known. Nothing below a publish
//! directory is walked: a foreign mount there may hang.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bulkhead_protocol::{Bytes, MountFlags, RelativePath, TargetPath, Text, VolumeId, VolumeKind};
use rustix::fs::{FileType, OFlags};

use crate::log;
use crate::ops;
use crate::start::config::Config;
use crate::start::host::{Host, HostPool, HostPublish};
use crate::start::jail::Jail;
use crate::start::mountinfo::Mount;
use crate::state::{
    Claims, DATA, DOOMED, Device, Doomed, Filesystem, Graveyard, IMAGE, Loops, MAKING, MARKER, Pool, PoolConfig,
    PublishDirectory, Published, Purpose, Served, Share, Sockets, SpecError, State, Volume, Volumes, read_spec,
    write_spec,
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
pub fn recover(config: &Config, host: Host, jail: Jail, emptier: OwnedFd) -> Result<State, String> {
    // The proof was its last use, and it would be a way back.
    drop(host.namespace);
    let mut state = State {
        driver: config.driver.clone(),
        pools: Vec::new(),
        publish: Vec::new(),
        volumes: Volumes::default(),
        unserved: BTreeMap::new(),
        loops: Loops::new(host.loop_control, jail.nodes),
        claims: Claims::default(),
        sockets: Sockets::new(jail.sockets),
        graveyard: Graveyard::new(emptier),
    };
    for (found, root) in host.publish.iter().zip(jail.publish) {
        let host_path = Text::new(found.path.to_string_lossy());
        state.publish.push(PublishDirectory { name: found.name.clone(), host_path, root, shape: found.shape });
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
    let (mut owners, mut doomed, mut unserved) = (Owners::new(), Vec::new(), BTreeMap::new());
    for index in 0..state.pools.len() {
        let Some(Ok(pool)) = state.pools.get(index).map(|pool| &pool.state) else { continue };
        let scanned = scan(&state, index, pool, &mut owners, &mut doomed, &mut unserved);
        let swept = scanned.and_then(|()| if pool.has_quotas() { pool.filesystem.sweep() } else { Ok(()) });
        if let (Err(errno), Some(pool)) = (swept, state.pools.get_mut(index)) {
            log::error!("a pool is not served: it cannot be listed pool={} errno={errno}", pool.config.name);
            pool.state = Err(format!("it cannot be listed: {errno}"));
            doomed.retain(|doomed: &Doomed| doomed.pool != index);
        }
    }
    state.unserved = unserved;
    // Doomed volumes hold their project and their room until they are empty, so they are entered before any is buried.
    for doomed in doomed {
        state.graveyard.bury(doomed);
    }
    let devices = find_devices(&state, &host.loops, &owners);
    find_targets(&state, &host.mounts, &host.publish, &owners, &devices);
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
    file::unlock(&outside).map_err(fail)?;
    drop(outside);
    file::lock(&marker).map_err(|_| "another helper serves it now".to_owned())?;
    Ok(Served { config: config.clone(), directory, filesystem, inherited, warnings, _marker: marker })
}

/// Goes through a pool's entries, once.
fn scan(
    state: &State,
    index: usize,
    pool: &Served,
    owners: &mut Owners,
    doomed: &mut Vec<Doomed>,
    unserved: &mut BTreeMap<VolumeId, String>,
) -> SysResult<()> {
    let mut names = Vec::new();
    file::each_entry(&pool.directory, |name| {
        names.push(name.to_string_lossy().into_owned());
        Ok(())
    })?;
    for name in names {
        if name.starts_with(MAKING) || name.starts_with(DOOMED) {
            doomed.push(bury(state, index, pool, name)?);
        } else if let Ok(id) = name.parse::<VolumeId>() {
            match adopt(state, index, pool, &id, owners) {
                Ok(true) => {}
                Ok(false) => log::warning!("an entry of the pool is no volume pool={} name={name:?}", pool.config.name),
                Err(why) => {
                    log::error!("a volume is not served pool={} volume={id} why={why:?}", pool.config.name);
                    unserved.insert(id, why);
                }
            }
        } else if !matches!(name.as_str(), MARKER | "lost+found") {
            log::warning!("an entry of the pool is no volume pool={} name={name:?}", pool.config.name);
        }
    }
    Ok(())
}

/// Enters what was half made or is to be deleted.
fn bury(state: &State, index: usize, pool: &Served, name: String) -> SysResult<Doomed> {
    let number =
        name.strip_prefix(DOOMED).and_then(|rest| rest.split('.').next()).and_then(|number| number.parse().ok());
    state.graveyard.number_beyond(number.unwrap_or(0));
    let (mut project, mut share) = (None, Share::default());
    if let Ok(outer) = file::open(&pool.directory, &*name, OFlags::RDONLY | OFlags::DIRECTORY) {
        project = project_of(pool, &outer)?;
        share = read_spec(&outer).map_or(share, |(spec, _)| Share::of(&spec, project.is_some()));
    }
    // A half-made volume cannot keep its name: the next attempt to make it wants it.
    if name.starts_with(MAKING) {
        pool.filesystem.adopt(share, project);
        let fresh = format!("{DOOMED}{}.{}", state.graveyard.number(), name.trim_start_matches('.'));
        file::rename_new(&pool.directory, &name, &pool.directory, &fresh)?;
        return Ok(Doomed { pool: index, name: fresh, project, share });
    }
    pool.filesystem.adopt(share, project);
    Ok(Doomed { pool: index, name, project, share })
}

fn project_of(pool: &Served, outer: &OwnedFd) -> SysResult<Option<ProjectId>> {
    if !pool.has_quotas() {
        return Ok(None);
    }
    let project = file::attributes(outer)?.project;
    Ok((project != 0).then_some(ProjectId(project)))
}

/// Enters a volume, and mends what a crash may have left half done; `false` if the entry only has the name of one.
fn adopt(state: &State, index: usize, pool: &Served, id: &VolumeId, owners: &mut Owners) -> Result<bool, String> {
    let say = |errno: Errno| errno.to_string();
    let outer = match file::open(&pool.directory, id.as_str(), OFlags::RDONLY | OFlags::DIRECTORY) {
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(false),
        outer => outer.map_err(say)?,
    };
    let (mut spec, unused) = match read_spec(&outer) {
        Err(SpecError::Read(Errno::NODATA)) => return Ok(false),
        spec => spec.map_err(|error| format!("its record cannot be used: {error:?}"))?,
    };
    let project = project_of(pool, &outer).map_err(say)?;
    let content = match spec.kind {
        VolumeKind::Directory { inodes, .. } => {
            let data = file::open(&outer, DATA, OFlags::PATH | OFlags::DIRECTORY).map_err(say)?;
            if let Some(project) = project {
                let (bytes, inodes) = (spec.size.get(), ops::inodes_limit(inodes.get()));
                let quota = pool.filesystem.quota(project).map_err(say)?;
                if (quota.limit_bytes, quota.limit_inodes) != (bytes, inodes) {
                    log::warning!("a volume's quota is set back to what its record says volume={id}");
                    pool.filesystem.set_quota(project, bytes, inodes).map_err(say)?;
                }
            }
            file::status(&data).map_err(say)?.id
        }
        VolumeKind::Image { .. } => {
            let image = file::open(&outer, IMAGE, OFlags::RDWR).map_err(say)?;
            let status = file::status(&image).map_err(say)?;
            if status.allocated > status.size {
                // Room that was allocated for a growth that did not end.
                rustix::fs::ftruncate(&image, status.size).map_err(say)?;
            }
            match Bytes::try_from(status.size) {
                Ok(size) if size > spec.size => {
                    spec.size = size;
                    write_spec(&outer, &spec, unused).and_then(|()| file::touch_and_sync(&outer)).map_err(say)?;
                }
                _ => {}
            }
            status.id
        }
    };
    let volume = Volume { pool: index, project, spec, unused, content, targets: BTreeMap::new(), device: None };
    if !state.volumes.insert(id.clone(), volume) {
        return Err("another pool has a volume of that id".to_owned());
    }
    owners.insert(content, id.clone());
    pool.filesystem.adopt(Share::of(&spec, project.is_some()), project);
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
                log::warning!("a loop device cannot be looked at number={number} errno={errno}");
            }
        }
    }
    devices
}

/// Finds where volumes are published among the mounts that the host had at start.
fn find_targets(
    state: &State,
    mounts: &[Mount],
    publish: &[HostPublish],
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
        for (directory, found) in state.publish.iter().zip(publish) {
            let Some(path) = relative(mount, found) else { continue };
            let target = TargetPath { directory: directory.name.clone(), path };
            if let Some((id, source)) = owner_of(directory, &target, owners, devices) {
                let flags = flags(state, &id, mount);
                state.volumes.publish(&id, target, Published { source, flags });
            }
        }
    }
}

fn relative(mount: &Mount, directory: &HostPublish) -> Option<RelativePath> {
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
    let (id, purpose) = match status.file_type {
        FileType::Directory => (owners.get(&status.id), Purpose::Directory),
        FileType::BlockDevice if status.device.0 == MAJOR => (devices.get(&status.device.1), Purpose::Device),
        _ => return None,
    };
    // The kubelet binds what we published once more, at paths of its own.
    directory.check_shape(target, purpose).ok()?;
    Some((id?.clone(), status.id))
}

fn flags(state: &State, id: &VolumeId, mount: &Mount) -> MountFlags {
    match state.volumes.get(id).and_then(|volume| volume.device) {
        Some(device) => MountFlags { read_only: device.read_only, ..MountFlags::default() },
        None => mount.flags(),
    }
}
