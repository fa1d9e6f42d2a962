//! Step 5 of the helper's life: other processes. For each pool one empties deleted volumes, and another mounts filesystems in
//! images if there are to be any; the placer places what is published. This one goes on as the keeper, which sees none of
//! the publish directories any more.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bulkhead_protocol::{PoolName, Socket};
use rustix::fs::OFlags;

use super::config::Config;
use super::directory::Directory;
use super::filter::{self, Process};
use super::jail::{Jail, JailedPool};
use super::landlock::{self, TO_EMPTY, TO_KEEP, TO_LISTEN};
use super::pool::Candidate;
use super::privileges;
use super::refusal::Refusal;
use crate::place::{Below, Mounting, Nodes, Place, PoolPlace};
use crate::server::lines_for;
use crate::state::layout::{self, Entry};
use crate::state::{PoolConfig, SocketPlace};
use crate::sys::quota::ProjectId;
use crate::sys::{Error as SysError, Result as SysResult, file, mount, packet, process, socket, walk};
use crate::{emptier, log, mounter, place};

/// A pool with its emptier.
pub type SplitPool = (JailedPool, OwnedFd);

/// What is left to the keeper.
#[derive(Debug)]
pub struct Split {
    /// The pools.
    pub pools: Vec<Candidate<SplitPool>>,
    /// Where the frontend's sockets go.
    pub sockets: BTreeMap<Socket, SocketPlace>,
    /// What the directory of device nodes says it was mounted from.
    pub nodes: String,
    /// The lines to the placer.
    pub lines: Vec<OwnedFd>,
    /// A connection to the placer, which is hung up when it has ended.
    pub watch: OwnedFd,
}

impl Split {
    /// The directories that the keeper works in, and what it may do there.
    pub fn directories(&self) -> Vec<(&OwnedFd, u32)> {
        let pools = self.pools.iter().filter_map(|pool| Some((&pool.state.as_ref().ok()?.0.directory, TO_KEEP)));
        pools.chain(self.sockets.values().map(|place| (&place.directory, TO_LISTEN))).collect()
    }
}

/// Forks an emptier for each pool that is to be served, a mounter if the pool is configured for filesystems in images, and
/// the placer.
///
/// # Errors
/// A sentence on what failed.
pub fn split(config: &Config, mut jail: Jail, pools: Vec<Candidate<JailedPool>>) -> Result<Split, Refusal> {
    let (mut split, mut mounters) = (Vec::new(), BTreeMap::new());
    for pool in pools {
        let place = jail.mounting.remove(&pool.config.name);
        let of_jailed =
            |jailed: &JailedPool| fork("emptier", |line| live_as_emptier(config, &jail, &jailed.host.directory, &line));
        let emptier = pool.state.as_ref().ok().map(of_jailed).transpose()?;
        if let (Some(place), Ok(_)) = (place, &pool.state) {
            let line = fork("mounter", |line| live_as_mounter(config, &pool.config, &line))?;
            mounters.insert(pool.config.name.clone(), Mounting::new(line, place));
        }
        split.push(pool.then(|_, jailed| Ok((jailed, emptier.ok_or_else(|| "it has no emptier".to_owned())?))));
    }
    let failed = |what: &'static str| move |error: SysError| format!("{what}: {error}");
    let pairs: SysResult<Vec<_>> = (0..lines_for(config.pools.len())).map(|_| packet::pair()).collect();
    let pairs = pairs.map_err(failed("cannot create the socket pairs for the placer"))?;
    let (lines, theirs) = pairs.into_iter().unzip();
    let nodes = jail.nodes.1.clone();
    let place = take_place(config, &mut jail, &split, mounters).map_err(failed("cannot open what the placer needs"))?;
    let watch = fork("placer", |watch| live_as_placer(config, place, theirs, watch))?;
    let jailed = split.iter_mut().filter_map(|pool| Some(&mut pool.state.as_mut().ok()?.0));
    jail.narrow_to_pools(jailed).map_err(failed("cannot leave the publish directories to the placer"))?;
    Ok(Split { pools: split, sockets: jail.sockets, nodes, lines, watch })
}

/// What the placer is to have, and nobody else: the publish directories, among others.
fn take_place(
    config: &Config,
    jail: &mut Jail,
    pools: &[Candidate<SplitPool>],
    mut mounters: BTreeMap<PoolName, Mounting>,
) -> SysResult<Place> {
    let publish = config.publish.iter().zip(std::mem::take(&mut jail.publish)).map(|(wanted, root)| {
        let copy = mount::unique_id(&root, "").ok().flatten();
        let copy = copy.and_then(|copy| Some((copy, mount::root_of(copy).ok()?)));
        Below { name: wanted.name.clone(), shape: wanted.shape, root, copy }
    });
    let mut places = Vec::new();
    for (name, pool) in pools.iter().filter_map(|pool| Some((&pool.config.name, &pool.state.as_ref().ok()?.0))) {
        let (directory, marker) = (walk::duplicate(&pool.directory)?, walk::duplicate(&pool.marker)?);
        let (device, mounting) = (file::status(&directory)?.id.device, mounters.remove(name));
        places.push(PoolPlace { name: name.clone(), directory, marker, device, mounting });
    }
    let (driver, project_ids, beyond) = (config.driver.clone(), config.project_ids, BTreeMap::new());
    let nodes = Nodes::new(walk::duplicate(&jail.nodes.0)?);
    Ok(Place { driver, publish: publish.collect(), pools: places, nodes, project_ids, beyond })
}

/// The projects of a pool's volumes that are not in the range: it was another when they were made.
fn projects_beyond((first, last): (u32, u32), pool: &OwnedFd) -> SysResult<BTreeSet<ProjectId>> {
    let mut found = BTreeSet::new();
    walk::each_entry(pool, |name| {
        if matches!(Entry::of(&name.to_string_lossy()), Entry::OfPool | Entry::Foreign) {
            return Ok(());
        }
        let opened = file::open(pool, name, OFlags::RDONLY | OFlags::DIRECTORY);
        let project = opened.and_then(layout::project_of).ok().flatten();
        found.extend(project.filter(|project| !(first..=last).contains(&project.0)));
        Ok(())
    })?;
    Ok(found)
}

/// Forks a process of this name that does `live`, and returns the connection to it.
fn fork(name: &'static str, live: impl FnOnce(OwnedFd) -> Result<(), Refusal>) -> Result<OwnedFd, Refusal> {
    let (line, other) =
        packet::pair().map_err(|error| format!("cannot create the socket pair for the {name}: {error}"))?;
    if !log::fork(name).map_err(|error| format!("cannot fork the {name}: {error}"))? {
        return Ok(line);
    }
    // With its connection the keeper ends, even if nobody reads its last words.
    let result = live(other);
    if let Err(complaint) = &result {
        log::last_words(&format!("the {name} of the helper stops complaint={:?}", complaint.to_string()));
    }
    std::process::exit(i32::from(result.is_err()));
}

fn live_as_emptier(config: &Config, jail: &Jail, pool: &Directory, keeper: &OwnedFd) -> Result<(), Refusal> {
    let pool =
        jail.narrow_to(pool).map_err(|error| format!("cannot leave the other directories of the jail: {error}"))?;
    keep_only(&[pool.as_fd(), keeper.as_fd()])?;
    privileges::drop_all_but(privileges::EMPTIER)?;
    landlock::confine(Process::Emptier, &[(&pool, TO_EMPTY)])?;
    filter::install(Process::Emptier, config.on_violation)?;
    Ok(emptier::run(keeper, &pool)?)
}

fn live_as_mounter(config: &Config, pool: &PoolConfig, placer: &OwnedFd) -> Result<(), Refusal> {
    Jail::enter_place_of(pool).map_err(|error| format!("cannot leave the jail for the mounter's own: {error}"))?;
    keep_only(&[placer.as_fd()])?;
    process::leave_children().map_err(|error| format!("cannot leave the mounter's children alone: {error}"))?;
    privileges::become_user(config.mounter_uid)?;
    privileges::drop_all_but(privileges::MOUNTER)?;
    landlock::confine(Process::Mounter, &[])?;
    filter::install(Process::Mounter, config.on_violation)?;
    Ok(mounter::run(placer)?)
}

fn live_as_placer(config: &Config, mut place: Place, lines: Vec<OwnedFd>, watch: OwnedFd) -> Result<(), Refusal> {
    let lines_of = lines.iter().map(AsFd::as_fd);
    keep_only(&place.descriptors().into_iter().chain(lines_of).chain([watch.as_fd()]).collect::<Vec<_>>())?;
    privileges::drop_all_but(privileges::PLACER)?;
    for pool in &place.pools {
        // What cannot be listed is not served by the keeper either.
        let found = projects_beyond(place.project_ids, &pool.directory);
        place.beyond.entry(pool.device).or_default().extend(found.unwrap_or_default());
    }
    place::run(place, lines, watch, || filter::install(Process::Placer, config.on_violation))
}

/// Closes what this process has inherited. What is closed here still has owners in its copy of the memory; it ends without
/// returning to them.
fn keep_only(keep: &[BorrowedFd<'_>]) -> Result<(), Refusal> {
    Ok(socket::close_all_but(keep).map_err(|error| format!("cannot close the other descriptors: {error}"))?)
}
