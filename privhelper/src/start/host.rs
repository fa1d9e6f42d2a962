//! Step 2 of the helper's life: what can only be seen, opened or judged while the host's own tree is in sight.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use bulkhead_protocol::Socket;
use rustix::fs::{FlockOperation, OFlags, flock};

use super::config::Config;
use super::directory::{self, Directory, Open, Role};
use super::filter::OnViolation;
use super::judge::host::judge_opened;
use super::marker;
use super::mounts::{self, Mounts};
use super::patience::{self, Needs};
use super::pool::{self, Candidate, HostPool};
use super::refusal::{Refusal, Why};
use crate::capabilities::CHILD;
use crate::log::shown;
use crate::state::PoolConfig;
use crate::state::layout::MARKER;
use crate::sys::mountinfo::MountTable;
use crate::sys::{Errno, Error as SysError, Result as SysResult, file, socket, walk};

/// What keeps other helpers from serving filesystems, by the filesystem's device.
pub type Claims = BTreeMap<(u32, u32), OwnedFd>;

/// The host, as far as the helper needs it.
#[derive(Debug)]
pub struct Host {
    /// `/dev/loop-control`.
    pub loop_control: OwnedFd,
    /// The mount table, open once for each who reads it: whole, its beginning, and to wait for changes.
    pub tables: [MountTable; 3],
    /// The directory of block devices, to list what loop devices there are.
    pub devices: OwnedFd,
    /// The pools, in the order of the configuration.
    pub pools: Vec<Candidate<HostPool>>,
    /// The publish directories, in the order of the configuration.
    pub publish: Vec<Directory>,
    /// The frontend's sockets: which, in which directory, under which name.
    pub sockets: Vec<(Socket, Directory, String)>,
    /// What keeps other helpers from serving the same filesystems.
    pub claims: Claims,
    /// The mounts when it was looked at.
    pub mounts: Mounts,
}

impl Host {
    /// Every directory that the jail shows.
    pub fn directories(&self) -> impl Iterator<Item = &Directory> {
        let pools = self.pools.iter().flat_map(|pool| &pool.state).map(|pool| &pool.directory);
        pools.chain(&self.publish).chain(self.sockets.iter().map(|(_, directory, _)| directory))
    }
}

/// Inspects the host. Nothing is changed except by `open`, and by whether each pool can be written to if `writes` says so.
///
/// # Errors
/// One sentence on what is wrong and how to fix it. A pool's own problem is in its entry instead.
pub fn inspect(config: &Config, open: Open, writes: bool) -> Result<Host, Refusal> {
    let say = |what: &'static str| move |error: SysError| format!("cannot open {what}: {error}");
    let table = || MountTable::open().map_err(say("/proc/self/mountinfo"));
    let mut tables = [table()?.with_changes(), table()?, table()?];
    let [whole, ..] = &mut tables;
    let mounts = mounts::read(whole)?;
    let devices = walk::open_at_start("/sys/block", OFlags::RDONLY | OFlags::DIRECTORY).map_err(say("/sys/block"))?;
    let loop_control = walk::open_at_start("/dev/loop-control", OFlags::RDWR)
        .map_err(|error| format!("cannot open /dev/loop-control: {error}; load the loop module (modprobe loop)"))?;
    let mut pools: Vec<_> =
        config.pools.iter().map(|pool| Candidate::inspect(pool, &mounts, writes, config.on_violation)).collect();
    refuse_copies(&mut pools);
    let find = |role: Role, wanted: &Path| {
        let directory =
            open(config, wanted).and_then(|(path, descriptor)| Directory::new(role, wanted, path, descriptor));
        directory.map_err(|error| format!("cannot open the directory {}: {error}", shown(wanted)))
    };
    let (mut publish, mut places) = (Vec::new(), Vec::new());
    for wanted in &config.publish {
        let directory = find(Role::Publish(wanted.name.clone()), &wanted.path)?;
        directory::check_owner(&directory.path, &directory.descriptor)?;
        places.push(directory.position(&mounts)?);
        publish.push(directory);
    }
    patience::judged(config.on_violation, |proof| judge_opened(proof, config, (&publish, &places), &mounts))?;
    let mut positions = Vec::new();
    for pool in pools.iter().flat_map(|pool| &pool.state) {
        positions.push((&pool.directory, pool.directory.position(&mounts)?));
    }
    positions.extend(publish.iter().zip(places));
    directory::refuse_overlap(&positions)?;
    let mut sockets = Vec::new();
    for (socket, path) in [(Socket::Csi, &config.csi_socket), (Socket::Registration, &config.registration_socket)] {
        if let Some((parent, name)) = path.as_ref().and_then(|path| Some((path.parent()?, path.file_name()?))) {
            sockets.push((socket, find(Role::Socket(socket), parent)?, name.to_string_lossy().into_owned()));
        }
    }
    Ok(Host { loop_control, tables, devices, pools, publish, sockets, claims: Claims::new(), mounts })
}

/// Two pools with one uuid are a pool and its copy, even if one of them is not served for another reason. Which is which
/// cannot be told, so neither is served.
fn refuse_copies(pools: &mut [Candidate<HostPool>]) {
    let uuids: Vec<_> = pools.iter().filter_map(|pool| pool.uuid.clone()).collect();
    let mut seen = BTreeSet::new();
    let copied: BTreeSet<_> = uuids.iter().filter(|uuid| !seen.insert(*uuid)).collect();
    let is_copied = |pool: &Candidate<HostPool>| pool.uuid.as_ref().is_some_and(|uuid| copied.contains(uuid));
    for pool in pools.iter_mut().filter(|pool| pool.state.is_ok() && is_copied(pool)) {
        let why = "another pool has the same uuid: one of them is a copy; serve only one, or give the copy a marker of its own (remove its .bulkhead, then bulkhead-setup init-pool)";
        pool.state = Err(Why::Ambiguous.because(why));
    }
}

/// Marks the new pools, gives other helpers two seconds to release theirs, and keeps them from the filesystems: two helpers
/// would promise the room on one twice. Failures are put in the pool's own entry. A child goes on waiting for a pool that
/// is locked by then.
pub fn mark_and_wait(host: &mut Host, on_violation: OnViolation) {
    for pool in &mut host.pools {
        if let Ok(found) = &mut pool.state
            && let Err(complaint) = mark_and_claim(&pool.config, found, &mut host.claims)
        {
            if complaint.why == Why::InUse {
                let wait = |_: &OwnedFd| while is_served(&pool.config.directory) {};
                let needs = Needs { capabilities: CHILD, root: None, on_violation };
                let waits = patience::in_child(Duration::from_millis(1), needs, wait, |_| ());
                pool.waiting = waits.ok().and_then(Result::err);
            }
            pool.state = Err(complaint);
        }
    }
}

fn mark_and_claim(config: &PoolConfig, found: &mut HostPool, claims: &mut Claims) -> Result<(), Refusal> {
    let directory = &found.directory.descriptor;
    let cannot = |error| format!("cannot write {}/{MARKER}: {error}", shown(&config.directory));
    if !found.fit.is_marked {
        found.fit.overhead = marker::make(directory, Some(&config.name)).map_err(cannot)?.overhead;
    }
    // What a predecessor publishes while the jail is being made may not be visible in it.
    marker::claim(directory, config)?;
    let device = file::status(directory).map_err(cannot)?.id.device;
    if let Entry::Vacant(entry) = claims.entry(device) {
        entry.insert(claim(device).map_err(|error| match error.errno {
            // A helper that starts has the name before the pool. Nobody waits for the name itself: users other than root can
            // have it, and would make helpers restart.
            Errno::ADDRINUSE => marker::claim(directory, config).err().unwrap_or_else(|| {
                Why::Configuration.because("another helper serves a pool on the same filesystem, and the two would promise its room twice; serve both pools with one helper")
            }),
            _ => format!("cannot keep other helpers from its filesystem: {error}").into(),
        })?);
    }
    Ok(())
}

/// Returns whether another helper serves the pool in a directory of the host, three seconds from now. The marker is open
/// for a moment only: while it is, the host cannot unmount the pool.
fn is_served(directory: &Path) -> bool {
    std::thread::sleep(Duration::from_secs(3));
    let marker = pool::reach(&directory.join(MARKER), OFlags::empty());
    marker.is_ok_and(|marker| flock(marker, FlockOperation::NonBlockingLockExclusive) == Err(Errno::AGAIN))
}

/// Claims a filesystem by a name that only one process of the host's network namespace can have.
///
/// # Errors
/// `ADDRINUSE` if one has it.
pub fn claim((major, minor): (u32, u32)) -> SysResult<OwnedFd> {
    socket::take_name(&format!("bulkhead-filesystem-{major}:{minor}"))
}
