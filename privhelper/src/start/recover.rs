//! Step 7 of the helper's life: everything it knows is rebuilt from the pools, and from the host's mounts and loop
//! devices. Nothing below a publish directory is walked: a foreign mount there may hang.

mod devices;
mod published;
mod volumes;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};

use bulkhead_protocol::{PoolName, QuotaMode, Text, VolumeId};

pub use self::devices::Devices;
pub(in crate::start) use self::devices::Found;
use super::config::{Config, PublishConfig};
use super::directory::Directory;
use super::filter::OnViolation;
use super::host::{Claims, Host};
use super::jail::JailedPool;
use super::judge::host::way;
use super::mounts::{self, Mounts};
use super::patience;
use super::pool::{Candidate, HostPool};
use super::privileges::Unprivileged;
use super::refusal::Refusal;
use super::split::{Split, SplitPool};
use crate::bookkeeping::{Deletions, Facts, Filesystem, Missing};
use crate::log;
use crate::ops;
use crate::server::Service;
use crate::state::{
    self, Attributes, FoundVolumes, Locks, Loops, Place, Placer, Pool, PoolConfig, PublishDirectory, Served, Sockets,
    State,
};
use crate::sys::file::{self, FileId};
use crate::sys::mountinfo::{Mount, MountTable};
use crate::sys::quota::ProjectId;
use crate::sys::{Error as SysError, mount, random};
use crate::threads;

/// What is known, what is missing, and the table that shows when that appears.
pub type Recovered = (State, Missing, MountTable);

/// What is rebuilt, and what is needed only for that. There is a [`State`] only when all of it is known.
struct Recovery {
    pools: Vec<Arc<Pool>>,
    publish_directories: Vec<PublishDirectory>,
    placer: Arc<Placer>,
    loops: Loops,
    volumes: FoundVolumes,
    unserved: BTreeMap<VolumeId, (PoolName, String)>,
    attached: BTreeMap<String, Vec<u32>>,
    /// The source of the tmpfs of device nodes.
    nodes: String,
    /// Which volume a published directory or an image belongs to.
    owners: BTreeMap<FileId, VolumeId>,
    /// Which volume has a project, by filesystem.
    projects: BTreeMap<((u32, u32), ProjectId), VolumeId>,
    /// Which volume the loop device with that number belongs to.
    devices: BTreeMap<u32, VolumeId>,
}

/// Rebuilds everything.
///
/// # Errors
/// A sentence when it cannot be determined what is mounted or attached.
pub fn recover(
    unprivileged: &Unprivileged,
    config: &Config,
    host: Host,
    split: Split,
    mut devices: Devices,
) -> Result<Recovered, Refusal> {
    let Split { mut pools, sockets, nodes, lines, watch } = split;
    let silent = devices.silent();
    let waiting = std::mem::take(&mut devices.waiting).into_iter().chain([watch]);
    let missing = missing(&host, &mut pools, waiting.collect());
    let Host { tables: [mut whole, beginning, changes], loop_control, publish, claims, .. } = host;
    // Every pool is locked by now: no other helper adds to these.
    let mounts = mounts::read(&mut whole)?;
    let (mut ways, mut positions, mut publish_directories) = (Vec::new(), Vec::new(), Vec::new());
    for (wanted, outside) in config.publish.iter().zip(publish) {
        let position = outside.position(&mounts)?;
        ways.push(way(unprivileged, &wanted.name, &outside.real_path, &position, &mounts)?);
        positions.push(position);
        publish_directories.push(publish_directory(wanted, outside));
    }
    let mut unserved = BTreeMap::new();
    for pool in &pools {
        let Err(why) = &pool.state else { continue };
        unserved.extend(pool.volumes.iter().map(|id| (id.clone(), (pool.config.name.clone(), why.to_string()))));
    }
    let seen = publish_directories.iter().map(|directory| (directory.name.clone(), directory.host_path.clone()));
    let placer = Arc::new(Placer::new(lines, seen.collect()));
    let (pools, emptiers) = serve(config, &placer, pools, claims, &mounts);
    let used = used_numbers(&pools)?;
    let mut recovery = Recovery {
        pools,
        publish_directories,
        loops: Loops::new(loop_control, Arc::clone(&placer), used, silent),
        placer,
        volumes: FoundVolumes::default(),
        unserved,
        attached: BTreeMap::new(),
        nodes: nodes.clone(),
        owners: BTreeMap::new(),
        projects: BTreeMap::new(),
        devices: BTreeMap::new(),
    };
    recovery.find_volumes();
    recovery.find_devices(&devices, &mounts)?;
    recovery.find_published(&mounts, &positions)?;
    let Recovery { pools, publish_directories, placer, loops, volumes, unserved, attached, .. } = recovery;
    let volumes = Arc::new(volumes.all_known());
    let of_pool = |(name, emptier)| (name, Deletions::new(emptier, Arc::clone(&volumes)));
    let state = State {
        driver: config.driver.clone(),
        pools,
        publish_directories,
        limits: config.limits,
        is_confined: config.on_violation == OnViolation::Kill,
        deletions: emptiers.into_iter().map(of_pool).collect(),
        unserved,
        attached,
        host: state::Host::new(nodes, ways, [whole, beginning], Arc::clone(&placer), Arc::clone(&volumes)),
        volumes,
        loops,
        placer,
        locks: Locks::default(),
        sockets: Sockets::new(sockets),
    };
    // Deleted volumes keep their projects and their shares until they are empty.
    state.pools.iter().filter(|pool| pool.served().is_ok()).for_each(|pool| state.wake_emptier(pool, true));
    Ok((state, missing, changes))
}

/// Takes over the filesystems in images that an earlier helper has left mounted, and waits for that as long as for a pool. One
/// that is being written out does not answer before: whoever wants it is told that it is busy, and all others are served.
///
/// # Errors
/// A sentence when there is no thread for it.
pub fn take_over(service: &Arc<Service>) -> Result<(), Refusal> {
    let (doing, done) = channel::<()>();
    let service = Arc::clone(service);
    threads::spawn(move || ops::take_over_filesystems(&service.state, || drop(doing)))?;
    if done.recv_timeout(patience::LIMIT) == Err(RecvTimeoutError::Timeout) {
        log::error!("a filesystem in an image does not answer: it, and those after it, are taken over when they do");
    }
    Ok(())
}

/// Returns how many numbers of loop devices earlier helpers may have used for volumes of pools that are served; where
/// nothing is known of that, a random number.
fn used_numbers(pools: &[Arc<Pool>]) -> Result<u64, Refusal> {
    let served = || pools.iter().filter_map(|pool| pool.state.as_ref().ok());
    let mut used = None;
    for served in served() {
        let recorded = served.recorded_numbers();
        used = used.max(recorded.map_err(|error| format!("cannot read the marker of a pool: {error}"))?);
    }
    // A pool that is not served may have a higher note than the others.
    if used.is_none() || pools.iter().any(|pool| pool.state.is_err()) {
        let random = random::number().map_err(|error| format!("cannot get a random number: {error}"))?;
        used = Some(used.unwrap_or_default().saturating_add(random.into()));
    }
    let used = used.unwrap_or_default();
    // Once there is a note, a change to it needs no block of a pool that is full by then. If this fails, it fails again
    // when it matters.
    served().for_each(|served| served.record_numbers(used).unwrap_or_default());
    Ok(used)
}

/// Returns what the helper is to watch for: the pools that it does not serve.
fn missing(host: &Host, pools: &mut [Candidate<SplitPool>], waiting: Vec<OwnedFd>) -> Missing {
    let mut missing = Missing { pools: Vec::new(), waiting };
    for pool in pools {
        missing.waiting.extend(pool.waiting.take());
        if let Err(refusal) = &pool.state {
            let condition = refusal.to_string();
            let (name, directory) = (&pool.config.name, &pool.config.directory);
            log::error!("a pool is not served pool={name} kind={:?} condition={condition:?}", refusal.why);
            let on_the_way = host.mounts.values().filter(|mount| directory.starts_with(&mount.point));
            missing.pools.push((directory.clone(), on_the_way.map(Mount::identity).collect()));
        }
    }
    missing
}

fn publish_directory(config: &PublishConfig, outside: Directory) -> PublishDirectory {
    let (name, host_path) = (config.name.clone(), Text::new(config.path.to_string_lossy()));
    PublishDirectory { name, host_path, real_path: outside.real_path, shape: config.shape }
}

/// Makes served pools of those that have come this far, and returns the connections to their emptiers. Pools on one filesystem
/// share its room and its project ids.
fn serve(
    config: &Config,
    placer: &Arc<Placer>,
    pools: Vec<Candidate<SplitPool>>,
    mut claims: Claims,
    mounts: &Mounts,
) -> (Vec<Arc<Pool>>, BTreeMap<PoolName, OwnedFd>) {
    let mut facts = BTreeMap::<_, Facts>::new();
    for (pool, found) in pools.iter().filter_map(|pool| Some((pool, &pool.state.as_ref().ok()?.0))) {
        let Ok(status) = file::status(&found.directory) else { continue };
        let one = facts_of(status.id.device, config, pool.config.quota, &found.host);
        let known = facts.entry(status.id.device).or_insert(one);
        let smallest = known.overhead.into_iter().chain(one.overhead).min();
        *known = Facts {
            counts_projects: known.counts_projects || one.counts_projects,
            is_whole_pool: known.is_whole_pool && one.is_whole_pool,
            overhead: smallest,
            ..*known
        };
    }
    let (mut filesystems, mut emptiers) = (BTreeMap::new(), BTreeMap::new());
    let mut serve_one = |config: &PoolConfig, split: SplitPool| -> Result<Served, Refusal> {
        let (JailedPool { host, directory, marker }, emptier) = split;
        let fail = |error: SysError| format!("cannot open it in the jail: {error}");
        let device = file::status(&directory).map_err(fail)?.id.device;
        let root = directory.try_clone().map_err(|error| error.to_string())?;
        let facts = *facts.get(&device).ok_or_else(|| "its filesystem cannot be inspected".to_owned())?;
        let asked = (Arc::clone(placer), config.name.clone());
        let make = || Arc::new(Filesystem::new(root, asked, facts, claims.remove(&device)));
        let filesystem = filesystems.entry(device).or_insert_with(make);
        let copy = mount::unique_id(&directory, "").ok().flatten();
        let (inner, outside) = (host.directory.position(mounts)?.inner, host.directory.real_path.clone());
        let place = Place { device, inner, outside, is_unmounted: AtomicBool::default(), copy };
        let filesystem = Arc::clone(filesystem);
        let filesystem = (filesystem, Attributes::new(Arc::clone(placer), config.name.clone()));
        let served = Served::new((directory, marker), filesystem, place, host.fit.inherited);
        // A helper that was killed may not have synced what it changed, and this one answers as if it had.
        served.sync_all().map_err(|error| format!("it cannot be synced to disk: {error}"))?;
        served.recorded_numbers().map_err(|error| format!("its marker cannot be read: {error}"))?;
        emptiers.insert(config.name.clone(), emptier);
        Ok(served)
    };
    let pools = pools.into_iter().map(|pool| {
        let Candidate { config, state, .. } = pool.then(&mut serve_one);
        Arc::new(Pool { config, state: state.map_err(|refusal| refusal.to_string()), trouble: OnceLock::new() })
    });
    (pools.collect(), emptiers)
}

fn facts_of(device: (u32, u32), config: &Config, quota: QuotaMode, host: &HostPool) -> Facts {
    Facts {
        device,
        is_xfs: host.fit.is_xfs,
        project_ids: config.project_ids,
        counts_projects: quota == QuotaMode::Enforced,
        is_whole_pool: host.fit.is_whole,
        overhead: host.fit.overhead,
        shares_blocks: host.fit.shares_blocks,
    }
}
