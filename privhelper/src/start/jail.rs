//! Step 3 of the helper's life: a root of its own, which holds the pools and the publish directories and nothing else.
//!
//! The order matters. The clones of the publish directories stay peers of the host's mounts; everything else is made
//! private before anything is mounted or detached. Otherwise the new root would be mounted over the host's own
//! directory, and detaching the old one would unmount what the kubelet has mounted.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use bulkhead_protocol::{PoolName, Socket};
use rustix::fs::{Mode, OFlags};

use super::config::Config;
use super::directory::{self, Directory, Role};
use super::host::Host;
use super::marker;
use super::pool::{Candidate, HostPool};
use super::refusal::{Refusal, Why};
use crate::log::shown;
use crate::state::{PoolConfig, SocketPlace};
use crate::sys::mount::{self, Flagged, MountAttrFlags};
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, file, namespace, process, walk, xfs};

/// The jail, seen from inside. Every directory is open, but nothing mounted below a publish directory is.
#[derive(Debug)]
pub struct Jail {
    /// The publish directories, in the order of the configuration.
    pub publish: Vec<OwnedFd>,
    /// Where the frontend's sockets go.
    pub sockets: BTreeMap<Socket, SocketPlace>,
    /// The directory for device nodes, and what it says it was mounted from.
    pub nodes: (OwnedFd, String),
    /// Where filesystems in images are mounted, for each pool that is configured for them.
    pub mounting: BTreeMap<PoolName, OwnedFd>,
    /// What else the jail shows: where.
    points: Vec<String>,
}

/// A pool that is open in the jail and locked.
#[derive(Debug)]
pub struct JailedPool {
    /// What was seen of it from outside.
    pub host: HostPool,
    /// Its directory, open for reading.
    pub directory: OwnedFd,
    /// Its marker, locked.
    pub marker: OwnedFd,
}

/// Where the device nodes are.
pub const NODES: &str = "bulkhead-devices";
/// Size, number of inodes and mode of the jail's root, which holds mount points only.
const ROOT_LIMITS: (&str, &str, &str) = ("64k", "128", "0700");
/// Size, number of inodes and mode of the directory of device nodes.
const NODES_LIMITS: (&str, &str, &str) = ("64k", "65536", "0700");
/// Size, number of inodes and mode of a mounter's root. The mounter is not its owner.
const MOUNTING_LIMITS: (&str, &str, &str) = ("64k", "65536", "0711");

impl Directory {
    /// An open directory belongs to the namespace in which it was opened and cannot be cloned from another: this opens
    /// the same one again.
    fn reopen(&self) -> SysResult<OwnedFd> {
        let again = directory::open(&self.path)?;
        if file::status(&again)?.id == file::status(&self.descriptor)?.id {
            Ok(again)
        } else {
            Err(SysError::of(Errno::STALE))
        }
    }

    fn clone_mount(&self) -> SysResult<Flagged> {
        match self.role {
            Role::Publish(_) => namespace::clone_of_tree(self.reopen()?),
            // Pods may have made device nodes in a pool.
            Role::Pool(_) | Role::Socket(_) => mount::clone_of(self.reopen()?, xfs::FLAGS),
        }
    }

    fn restrict(&self, clone: &Flagged) -> SysResult<()> {
        if let Role::Publish(_) = self.role { Ok(()) } else { namespace::make_private(clone) }
    }

    /// Opens the directory in the jail.
    fn open_inside(&self) -> SysResult<OwnedFd> {
        let access = if matches!(self.role, Role::Pool(_)) { OFlags::RDONLY } else { OFlags::PATH };
        walk::open_at_start(&self.role.point(), access | OFlags::DIRECTORY)
    }
}

/// Enters the jail.
///
/// # Errors
/// A sentence that names the step or the directory.
pub fn enter(config: &Config, host: &Host) -> Result<Jail, Refusal> {
    let step = |what: &'static str| move |error: SysError| format!("cannot enter the jail: {what}: {error}");
    let at = |directory: &Directory, error| format!("cannot enter the jail: show {}: {error}", shown(&directory.path));
    process::own_namespaces().map_err(step("unshare its namespaces"))?;
    let mut clones = Vec::new();
    for directory in host.directories() {
        clones.push((directory, directory.clone_mount().map_err(|error| at(directory, error))?));
    }
    namespace::make_all_private().map_err(step("make mounts private"))?;
    for (directory, clone) in &clones {
        directory.restrict(clone).map_err(|error| at(directory, error))?;
    }

    let root = namespace::tmpfs("bulkhead", ROOT_LIMITS).map_err(step("make its root"))?;
    let source = format!("{NODES}/{}", config.driver);
    let nodes = namespace::tmpfs(&source, NODES_LIMITS).map_err(step("make a place for device nodes"))?;
    // A publish directory is the only mount point that is sure to exist. It is covered only in this namespace.
    let none = || Why::Configuration.because("cannot enter the jail: there is no publish directory");
    let covered = host.publish.first().ok_or_else(none)?;
    let covered = covered.reopen().map_err(step("open a publish directory again"))?;
    mount::attach(&root, &covered).map_err(step("mount its root"))?;
    let hang =
        |clone: &Flagged, point: &str| mount::attach(clone, walk::make_directories(root.as_fd(), point, Mode::RWXU)?);
    for (directory, clone) in &clones {
        hang(clone, &directory.role.point()).map_err(|error| at(directory, error))?;
    }
    hang(&nodes, NODES).map_err(step("hang the device nodes"))?;
    for pool in config.pools.iter().filter(|pool| pool.filesystems > 0) {
        let made =
            namespace::tmpfs("bulkhead-mounting", MOUNTING_LIMITS).and_then(|place| hang(&place, &mounting(pool)));
        made.map_err(step("make a place for filesystems in images"))?;
    }
    mount::set_flags(&root, MountAttrFlags::MOUNT_ATTR_RDONLY).map_err(step("make its root read-only"))?;

    rustix::process::fchdir(&root).by("fchdir").map_err(step("enter its root"))?;
    drop((root, nodes, clones, covered));
    namespace::pivot_to_working_directory().map_err(|error| {
        format!("cannot enter the jail: {error}; EINVAL means that the host runs from its initramfs")
    })?;
    Ok(open(config, host, source).map_err(step("open its directories"))?)
}

/// Returns where the jail shows the place for the filesystems of a pool.
fn mounting(pool: &PoolConfig) -> String {
    format!("bulkhead-mounting/{}", pool.name)
}

fn open(config: &Config, host: &Host, source: String) -> SysResult<Jail> {
    let mut sockets = BTreeMap::new();
    for (socket, directory, name) in &host.sockets {
        sockets.insert(*socket, SocketPlace { directory: directory.open_inside()?, name: name.clone() });
    }
    let publish = host.publish.iter().map(Directory::open_inside).collect::<SysResult<_>>()?;
    let nodes = walk::open_at_start(NODES, OFlags::PATH | OFlags::DIRECTORY)?;
    let mut points: Vec<_> = host.directories().map(|directory| directory.role.point()).collect();
    let mut places = BTreeMap::new();
    for pool in config.pools.iter().filter(|pool| pool.filesystems > 0) {
        places.insert(pool.name.clone(), walk::open_at_start(&mounting(pool), OFlags::PATH | OFlags::DIRECTORY)?);
        points.push(mounting(pool));
    }
    Ok(Jail { publish, sockets, nodes: (nodes, source), mounting: places, points })
}

/// Opens every pool in the jail and locks it.
///
/// # Errors
/// A sentence when another helper took one meanwhile. Seen from outside the jail, the next start waits for it.
pub fn claim_pools(jail: &mut Jail, host: &mut Host) -> Result<Vec<Candidate<JailedPool>>, Refusal> {
    let claim = |pool: Candidate<HostPool>| {
        let was_free = pool.state.is_ok();
        let pool = pool.then(|config, found| jail.claim(config, found));
        let taken = pool.state.as_ref().err().filter(|refusal| was_free && refusal.why == Why::InUse).cloned();
        taken.map_or(Ok(pool), Err)
    };
    std::mem::take(&mut host.pools).into_iter().map(claim).collect()
}

impl Jail {
    /// Opens a pool in the jail and locks it. One that cannot be locked is taken out of the jail.
    ///
    /// # Errors
    /// A sentence when it is not to be served.
    fn claim(&mut self, config: &PoolConfig, host: HostPool) -> Result<JailedPool, Refusal> {
        let directory = host.directory.open_inside().map_err(|error| format!("cannot open it in the jail: {error}"))?;
        match marker::claim(&directory, config) {
            Ok(marker) => Ok(JailedPool { host, directory, marker }),
            Err(complaint) => {
                drop(directory);
                let point = host.directory.role.point();
                self.points.retain(|other| *other != point);
                namespace::detach_private(&point)
                    .map_err(|error| format!("{complaint}, and it cannot be taken out of the jail: {error}"))?;
                Err(complaint)
            }
        }
    }

    /// Leaves only the place for the filesystems of a pool to a third process, as its root, with namespaces of its own.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn enter_place_of(pool: &PoolConfig) -> SysResult<()> {
        Self::enter_place(&mounting(pool))
    }

    /// Leaves only one place of the jail to another process, as its root, with namespaces of its own.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn enter_place(place: &str) -> SysResult<()> {
        process::own_namespaces()?;
        namespace::make_all_private()?;
        namespace::pivot_to(place)
    }

    /// Leaves only the pools and the directories of the frontend's sockets visible to this process, in a mount namespace of
    /// its own, and opens them there: what was opened before leads back to all else.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn narrow_to_pools<'a>(&mut self, pools: impl Iterator<Item = &'a mut JailedPool>) -> SysResult<()> {
        let mut pools: Vec<_> = pools.collect();
        let sockets = self.sockets.keys().map(|socket| Role::Socket(*socket).point());
        self.narrow(&pools.iter().map(|pool| pool.host.directory.role.point()).chain(sockets).collect::<Vec<_>>())?;
        for pool in &mut pools {
            pool.directory = pool.host.directory.open_inside()?;
        }
        for (socket, place) in &mut self.sockets {
            place.directory = walk::open_at_start(&Role::Socket(*socket).point(), OFlags::PATH | OFlags::DIRECTORY)?;
        }
        Ok(())
    }

    /// Leaves only one pool visible to a second process, in a mount namespace of its own, and opens it there.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn narrow_to(&self, pool: &Directory) -> SysResult<OwnedFd> {
        self.narrow(&[pool.role.point()])?;
        pool.open_inside()
    }

    /// Leaves only some places visible to this process, in a mount namespace of its own.
    fn narrow(&self, kept: &[String]) -> SysResult<()> {
        process::own_mount_namespace()?;
        namespace::make_all_private()?;
        let points = self.points.iter().map(String::as_str).chain([NODES]);
        points.filter(|point| !kept.iter().any(|one| one == point)).try_for_each(namespace::detach_private)
    }
}
