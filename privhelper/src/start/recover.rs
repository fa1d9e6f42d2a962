//! Step 6 of the helper's life: everything it knows is rebuilt from the pools, and from the host's mounts and loop
//! devices. Nothing below a publish directory is walked: a foreign mount there may hang.

mod devices;
mod published;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use bulkhead_protocol::{Bytes, Text, VolumeId, VolumeKind};
use rustix::fs::OFlags;

use self::published::{Place, device_number};
use super::config::{Config, PublishConfig};
use super::host::Host;
use super::jail::Jail;
use super::mountinfo::Table;
use super::pool::HostPool;
use crate::log;
use crate::state::layout::{self, Entry};
use crate::state::{
    Ballast, Deletion, Deletions, Filesystem, Kind, Locks, Loops, Pins, Pool, PoolConfig, PublishDirectory, Record,
    Served, Share, Sockets, State, Volume, Volumes, limits,
};
use crate::sys::file::{self, FileId};
use crate::sys::quota::ProjectId;
use crate::sys::{Errno, Result as SysResult};

/// What is rebuilt, and what is needed only for that.
struct Recovery {
    state: State,
    /// Pools on one filesystem share its space and its project ids.
    filesystems: BTreeMap<(u32, u32), Arc<Filesystem>>,
    /// Where the pools are, with the devices of their filesystems.
    places: Vec<((u32, u32), Place)>,
    /// Which volume a published directory or an image belongs to.
    owners: BTreeMap<FileId, VolumeId>,
    /// Which volume the loop device with that number belongs to.
    devices: BTreeMap<u32, VolumeId>,
    /// Loop devices to which certainly no volume is attached; free ones only if they have a node somewhere.
    vacant_devices: BTreeSet<u32>,
    /// Each with the index of its pool.
    deleted: Vec<(usize, Deletion)>,
}

/// Rebuilds everything. `emptiers` are the connections to the second processes, in the order of the configuration.
///
/// # Errors
/// A sentence when there is nothing left to serve.
pub fn recover(config: &Config, host: Host, jail: Jail, emptiers: Vec<Option<OwnedFd>>) -> Result<State, String> {
    // Every pool is locked by now: no other helper adds to these.
    let (mounts, loops) = (host.traces.mounts()?, host.traces.loops()?);
    let mut publish_directories = Vec::new();
    for (PublishConfig { name, path, shape }, root) in config.publish.iter().zip(jail.publish) {
        let host_path = Text::new(path.to_string_lossy());
        publish_directories.push(PublishDirectory { name: name.clone(), host_path, root, shape: *shape });
    }
    let state = State {
        driver: config.driver.clone(),
        pools: Vec::new(),
        publish_directories,
        limits: config.limits,
        volumes: Volumes::default(),
        pins: Pins::default(),
        unserved: BTreeMap::new(),
        loops: Loops::new(host.loop_control, jail.nodes),
        locks: Locks::default(),
        sockets: Sockets::new(jail.sockets),
    };
    let (filesystems, owners, devices) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let (vacant_devices, places, deleted) = (BTreeSet::new(), Vec::new(), Vec::new());
    let mut recovery = Recovery { state, filesystems, places, owners, devices, vacant_devices, deleted };
    let mut taken = Vec::new();
    for (((pool, found), directory), emptier) in config.pools.iter().zip(host.pools).zip(jail.pools).zip(emptiers) {
        let inside = directory.zip(emptier).ok_or_else(|| "it is not in the jail".to_owned());
        let take = |found| recovery.take(pool, config.project_ids, found, inside?, &mounts);
        taken.push((pool, found.and_then(take)));
    }
    // A pool that is there but cannot be listed does not make the start fail: what is published from it can still be
    // unpublished.
    for (pool, served) in taken {
        let served = served.and_then(|served| recovery.list(served));
        if let Err(condition) = &served {
            log::error!("a pool is not served pool={} condition={condition:?}", pool.name);
        }
        recovery.state.pools.push(Pool { config: pool.clone(), state: served });
    }
    // Deleted volumes keep their projects and their shares until they are empty, so all are noted before any is
    // emptied.
    for (pool, deletion) in std::mem::take(&mut recovery.deleted) {
        if let Ok(pool) = recovery.state.pool_at(pool) {
            pool.deletions.add(deletion);
        }
    }
    recovery.find_devices(&loops, &mounts.values().filter_map(device_number).collect())?;
    recovery.find_mounts(&mounts, &host.publish)?;
    Ok(recovery.state)
}

impl Recovery {
    /// Takes over a pool, given what was seen from outside.
    fn take(
        &mut self,
        config: &PoolConfig,
        project_ids: (u32, u32),
        found: HostPool,
        (directory, emptier): (OwnedFd, OwnedFd),
        mounts: &Table,
    ) -> Result<Served, String> {
        let fail = |errno: Errno| format!("cannot open it in the jail: {errno}");
        let device = file::status(&directory).map_err(fail)?.id.device;
        let place = Place::of(&found.directory, mounts)?;
        let root = directory.try_clone().map_err(|error| error.to_string())?;
        let filesystem = self.filesystems.entry(device).or_insert_with(|| Filesystem::new(root, project_ids));
        let filesystem = Arc::clone(filesystem);
        let HostPool { marker, inherited, journal, warnings, .. } = found;
        let marker = marker.ok_or("it is not locked")?;
        self.places.push((device, place));
        // A helper that was killed may not have synced what it renamed, and this one answers as if it had.
        file::sync(&directory).map_err(|errno| format!("it cannot be synced to disk: {errno}"))?;
        let (config, ballast) = (config.clone(), Ballast::open(&directory));
        let (deletions, unsynced) = (Deletions::new(emptier), Mutex::new(false));
        let _marker = marker;
        Ok(Served {
            config,
            directory,
            filesystem,
            inherited,
            journal,
            deletions,
            ballast,
            unsynced,
            warnings,
            _marker,
        })
    }

    /// Notes what is in the next pool.
    fn list(&mut self, served: Served) -> Result<Served, String> {
        let index = self.state.pools.len();
        let scanned = self.scan(index, &served);
        let swept = scanned.and_then(|()| if served.has_quotas() { served.filesystem.sweep() } else { Ok(()) });
        if let Err(errno) = swept {
            self.deleted.retain(|(pool, _)| *pool != index);
            return Err(format!("it cannot be listed: {errno}"));
        }
        Ok(served)
    }

    /// Goes through a pool's entries, once.
    fn scan(&mut self, index: usize, pool: &Served) -> SysResult<()> {
        let mut names = Vec::new();
        file::each_entry(&pool.directory, |name| {
            names.push(name.to_string_lossy().into_owned());
            Ok(())
        })?;
        // A name given below must not be one that already exists.
        for name in &names {
            if let Entry::Deleted(number) = Entry::of(name) {
                pool.deletions.note_number(number);
            }
        }
        for name in names {
            let foreign =
                || log::warning!("an entry of the pool is not a volume pool={} name={name:?}", pool.config.name);
            match Entry::of(&name) {
                Entry::OfPool => {}
                Entry::Foreign => foreign(),
                Entry::Unfinished | Entry::Deleted(_) => self.adopt_deleted(index, pool, name)?,
                Entry::Volume(id) => match self.adopt(index, pool, &id) {
                    Ok(true) => {}
                    Ok(false) => foreign(),
                    Err(why) => {
                        log::error!("a volume is not served pool={} volume={id} why={why:?}", pool.config.name);
                        self.state.unserved.insert(id, why);
                    }
                },
            }
        }
        Ok(())
    }

    /// Notes a volume that is unfinished or deleted.
    fn adopt_deleted(&mut self, index: usize, pool: &Served, mut name: String) -> SysResult<()> {
        let mut share = Share::default();
        if let Ok(directory) = layout::open_volume(&pool.directory, &name) {
            share.project = project_of(pool, &directory)?;
            share = Record::read(&directory).map_or(share, |record| Share::of(&record.spec, share.project));
        }
        pool.filesystem.adopt(share);
        if Entry::of(&name) == Entry::Unfinished {
            // It should not keep its name: the next attempt to create the volume needs it.
            name = pool.put_aside(&name).unwrap_or(name);
        }
        self.deleted.push((index, Deletion { name, share }));
        Ok(())
    }

    /// Notes a volume, and repairs what a crash may have left unfinished; `false` if the entry only has a volume's
    /// name.
    fn adopt(&mut self, index: usize, pool: &Served, id: &VolumeId) -> Result<bool, String> {
        let say = |errno: Errno| errno.to_string();
        let directory = match layout::open_volume(&pool.directory, id.as_str()) {
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(false),
            directory => directory.map_err(say)?,
        };
        let mut record = match Record::read(&directory) {
            Err(Errno::NODATA) => return Ok(false),
            Err(Errno::BADMSG) => return Err("its record is damaged, or from a later release".to_owned()),
            record => record.map_err(|errno| format!("its record cannot be read: {errno}"))?,
        };
        let project = project_of(pool, &directory).map_err(say)?;
        let content = match record.spec.kind {
            VolumeKind::Directory { inodes, .. } => {
                let data = layout::open_content(&pool.directory, id, Kind::Directory, OFlags::PATH).map_err(say)?;
                if let Some(project) = project {
                    restore_quota(pool, id, project, limits(record.spec.size, inodes)).map_err(say)?;
                }
                file::status(&data).map_err(say)?.id
            }
            VolumeKind::Image { .. } => finish_growth(pool, id, &mut record).map_err(say)?,
        };
        let volume = Volume { pool: index, project, record, content, targets: [].into(), device: None };
        let share = volume.share();
        if !self.state.volumes.insert(id.clone(), volume) {
            return Err("another pool has a volume with the same id".to_owned());
        }
        self.owners.insert(content, id.clone());
        pool.filesystem.adopt(share);
        Ok(true)
    }
}

fn project_of(pool: &Served, directory: &OwnedFd) -> SysResult<Option<ProjectId>> {
    if pool.has_quotas() { layout::project_of(directory) } else { Ok(None) }
}

/// Sets a quota that did not reach the disk before a power cut back to what the record says.
fn restore_quota(pool: &Served, id: &VolumeId, project: ProjectId, wanted: (u64, u64)) -> SysResult<()> {
    let quota = pool.filesystem.quota_at_start(project)?;
    if (quota.limit_bytes, quota.limit_inodes) == wanted {
        return Ok(());
    }
    log::warning!("a volume's quota is reset to the value in its record volume={id}");
    pool.filesystem.set_quota(project, wanted)
}

/// Leaves an image that was being grown with either size, and its record in agreement.
fn finish_growth(pool: &Served, id: &VolumeId, record: &mut Record) -> SysResult<FileId> {
    let image = layout::open_content(&pool.directory, id, Kind::Block, OFlags::RDWR)?;
    let status = file::status(&image)?;
    if status.allocated > status.size {
        // Blocks that were allocated for a growth that did not finish.
        rustix::fs::ftruncate(&image, status.size)?;
    }
    if let Some(size) = Bytes::try_from(status.size).ok().filter(|size| *size > record.spec.size) {
        record.spec.size = size;
        record.replace(&pool.directory, id)?;
    }
    Ok(status.id)
}
