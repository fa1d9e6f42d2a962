//! Steps 3 and 4: a root of the helper's own that holds the pools and the publish directories and nothing else, and the
//! proof that a mount made in there is seen outside.
//!
//! The order matters. The clones of the publish directories stay peers of the host's mounts; everything else is made
//! private before anything is mounted or detached. Otherwise the new root would be mounted over the host's own
//! directory, and detaching the old one would unmount what the kubelet has mounted.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use bulkhead_protocol::Socket;
use rustix::fs::{Mode, OFlags};

use crate::start::config::Config;
use crate::start::host::{Host, HostPublish};
use crate::state::Place;
use crate::sys::mount::{self, MountAttrFlags};
use crate::sys::{Errno, Result as SysResult, file, process};

/// The jail, seen from inside. Every directory is open, and nothing mounted below a publish directory is.
#[derive(Debug)]
pub struct Jail {
    /// The pools, in the order of the configuration; open for reading. Those that are not served are not there.
    pub pools: Vec<Option<OwnedFd>>,
    /// The publish directories, in the host's order.
    pub publish: Vec<OwnedFd>,
    /// Where the frontend's sockets go.
    pub sockets: BTreeMap<Socket, Place>,
    /// The directory for device nodes.
    pub nodes: OwnedFd,
}

/// Enters the jail.
///
/// # Errors
/// A sentence that names the step that failed.
pub fn enter(config: &Config, host: &Host) -> Result<Jail, String> {
    let step = |what: &'static str| move |errno: Errno| format!("cannot enter the jail: {what}: {errno}");
    process::own_namespaces().map_err(step("unshare its namespaces"))?;

    // An open directory stays in the namespace it was opened in and cannot be cloned from here: open each again, and
    // make sure that it is the same.
    let mut pools = Vec::new();
    for (pool, found) in config.pools.iter().zip(&host.pools) {
        pools.push(match found {
            Ok(found) => {
                Some(mount::clone_of(again(&pool.directory, &found.directory)?).map_err(step("clone a pool"))?)
            }
            Err(_) => None,
        });
    }
    let mut publish = Vec::new();
    for directory in &host.publish {
        let clone = mount::clone_of_tree(again(&directory.path, &directory.directory)?);
        publish.push(clone.map_err(|errno| {
            format!("cannot enter the jail: clone {}: {errno}; is its mount unbindable?", directory.path.display())
        })?);
    }
    let mut sockets = Vec::new();
    for found in &host.sockets {
        let clone = mount::clone_of(again(&found.path, &found.directory)?);
        sockets.push(clone.map_err(step("clone a socket's directory"))?);
    }

    mount::make_all_private().map_err(step("make mounts private"))?;
    for clone in pools.iter().flatten().chain(&sockets) {
        mount::make_private(clone).map_err(step("make a clone private"))?;
    }

    for clone in pools.iter().flatten() {
        // Pods may have written device nodes.
        let flags = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
        mount::set_flags(clone, flags).map_err(step("restrict a pool"))?;
    }

    let root = mount::tmpfs("64k", "128").map_err(step("make its root"))?;
    let nodes = mount::tmpfs("64k", "65536").map_err(step("make a place for device nodes"))?;
    let below = host.publish.first().ok_or("cannot enter the jail: there is no publish directory")?;
    let point = again(&below.path, &below.directory)?;
    mount::attach(&root, &point).map_err(step("mount its root"))?;
    let hang = |clone: &OwnedFd, path: &str| -> SysResult<()> {
        file::make_directories(root.as_fd(), path, Mode::RWXU)?;
        mount::attach(clone, file::open_below(root.as_fd(), path)?)
    };
    for (pool, clone) in config.pools.iter().zip(&pools) {
        if let Some(clone) = clone {
            hang(clone, &pool_path(pool.name.as_str())).map_err(step("hang a pool"))?;
        }
    }
    for (directory, clone) in host.publish.iter().zip(&publish) {
        hang(clone, &publish_path(directory)).map_err(step("hang a publish directory"))?;
    }
    for (found, clone) in host.sockets.iter().zip(&sockets) {
        hang(clone, socket_path(found.socket)).map_err(step("hang a socket's directory"))?;
    }
    hang(&nodes, NODES).map_err(step("hang the device nodes"))?;
    mount::set_flags(&root, MountAttrFlags::MOUNT_ATTR_RDONLY).map_err(step("make its root read-only"))?;

    rustix::process::fchdir(&root).map_err(step("enter its root"))?;
    drop((root, nodes, pools, publish, sockets, point));
    mount::pivot_to_working_directory().map_err(|errno| {
        format!("cannot enter the jail: pivot_root: {errno}; EINVAL means that the host runs from its initramfs")
    })?;
    open(config, host).map_err(step("open its directories"))
}

fn open(config: &Config, host: &Host) -> SysResult<Jail> {
    let directory = |path: &str, flags: OFlags| file::open_at_start(path, flags | OFlags::DIRECTORY);
    let mut jail = Jail {
        pools: Vec::new(),
        publish: Vec::new(),
        sockets: BTreeMap::new(),
        nodes: directory(NODES, OFlags::PATH)?,
    };
    for (pool, found) in config.pools.iter().zip(&host.pools) {
        jail.pools.push(match found {
            Ok(_) => Some(directory(&pool_path(pool.name.as_str()), OFlags::RDONLY)?),
            Err(_) => None,
        });
    }
    for found in &host.publish {
        jail.publish.push(directory(&publish_path(found), OFlags::PATH)?);
    }
    for found in &host.sockets {
        let place = Place { directory: directory(socket_path(found.socket), OFlags::PATH)?, name: found.name.clone() };
        jail.sockets.insert(found.socket, place);
    }
    Ok(jail)
}

/// Where the device nodes are.
const NODES: &str = "bulkhead-devices";

/// Where a pool is.
pub fn pool_path(name: &str) -> String {
    format!("bulkhead-pools/{name}")
}

fn publish_path(directory: &HostPublish) -> String {
    format!("publish/{}", directory.name)
}

fn socket_path(socket: Socket) -> &'static str {
    match socket {
        Socket::Csi => "sockets/csi",
        Socket::Registration => "sockets/registration",
    }
}

/// Opens a directory by its path in this mount namespace; it must be the one that was checked.
fn again(path: &Path, checked: &OwnedFd) -> Result<OwnedFd, String> {
    let open = || -> SysResult<OwnedFd> {
        let directory = file::open_at_start(path, OFlags::PATH | OFlags::DIRECTORY)?;
        if file::status(&directory)?.id == file::status(checked)?.id { Ok(directory) } else { Err(Errno::STALE) }
    };
    open().map_err(|errno| format!("cannot enter the jail: open {}: {errno}", path.display()))
}

/// Proves for each publish directory that a mount made in the jail is seen on the host, and that unmounting it is, too.
///
/// # Errors
/// A sentence that names the directory.
pub fn prove(host: &Host, jail: &Jail) -> Result<(), String> {
    for (outside, inside) in host.publish.iter().zip(&jail.publish) {
        let shown = outside.path.display();
        let proved = prove_one(&outside.directory, inside, &jail.nodes);
        match proved.map_err(|errno| format!("cannot try a mount in {shown}: {errno}"))? {
            Seen::Yes => {}
            Seen::NotMounted => {
                return Err(format!(
                    "a mount in {shown} is not seen by the host; run the helper in the host's mount namespace"
                ));
            }
            Seen::NotUnmounted => {
                return Err(format!(
                    "unmounting in {shown} is not seen by the host; run the helper in the host's mount namespace"
                ));
            }
        }
    }
    Ok(())
}

enum Seen {
    Yes,
    NotMounted,
    NotUnmounted,
}

/// What the trial mount is called. The kubelet takes no directory of that name for a pod.
const TRIAL: &str = ".bulkhead-trial";

fn prove_one(outside: &OwnedFd, inside: &OwnedFd, source: &OwnedFd) -> SysResult<Seen> {
    // A helper that was killed here may have left its trial behind.
    while file::status_at(inside, TRIAL).is_ok_and(|status| status.mount_root) {
        mount::unmount_entry(inside.as_fd(), TRIAL)?;
    }
    match file::make_directory(inside, TRIAL, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let seen = || -> SysResult<bool> {
        let status = file::status_at(outside, TRIAL)?;
        Ok(status.mount_root && status.id == file::status(source)?.id)
    };
    let clone = mount::clone_of(source)?;
    mount::attach(&clone, file::open_entry(inside, TRIAL)?)?;
    drop(clone);
    let mounted = seen();
    mount::unmount_entry(inside.as_fd(), TRIAL)?;
    let unmounted = seen().map(|seen| !seen);
    file::remove_directory(inside, TRIAL)?;
    Ok(match (mounted?, unmounted?) {
        (true, true) => Seen::Yes,
        (true, false) => Seen::NotUnmounted,
        (false, _) => Seen::NotMounted,
    })
}

/// Leaves only the pools in sight of a second process, in a mount namespace of its own, and opens them there.
pub fn narrow_to_pools(config: &Config, host: &Host, jail: &Jail) -> SysResult<Vec<Option<OwnedFd>>> {
    process::own_mount_namespace()?;
    mount::make_all_private()?;
    for directory in &host.publish {
        mount::detach_private(&publish_path(directory))?;
    }
    for socket in jail.sockets.keys() {
        mount::detach_private(socket_path(*socket))?;
    }
    mount::detach_private(NODES)?;
    let open = |name: &str| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        file::open_at_start(pool_path(name), flags)
    };
    let served = config.pools.iter().zip(&jail.pools);
    served.map(|(pool, found)| found.as_ref().map(|_| open(pool.name.as_str())).transpose()).collect()
}
