//! Step 2 of the helper's life: what can only be seen, opened or judged while the host's own tree is in sight.

use std::os::fd::OwnedFd;
use std::path::Path;

use bulkhead_protocol::Socket;
use rustix::fs::OFlags;

use super::config::Config;
use super::directory::{self, Directory, Open, Role};
use super::filter::{NOT_CONFINED, OnViolation};
use super::marker;
use super::pool::{self, HostPool};
use super::traces::Traces;
use crate::state::layout::MARKER;
use crate::sys::file;

/// The host, as far as the helper needs it.
#[derive(Debug)]
pub struct Host {
    /// `/dev/loop-control`.
    pub loop_control: OwnedFd,
    /// The pools, in the order of the configuration, or why one is not to be served.
    pub pools: Vec<Result<HostPool, String>>,
    /// The publish directories, in the order of the configuration.
    pub publish: Vec<Directory>,
    /// The frontend's sockets: which, in which directory, under which name.
    pub sockets: Vec<(Socket, Directory, String)>,
    /// The table of mounts and the directory of block devices. Earlier helpers may have left something in either. These
    /// are read once the pools are locked, since a helper publishes until it releases them.
    pub traces: Traces,
}

impl Host {
    /// Every directory that the jail shows.
    pub fn directories(&self) -> impl Iterator<Item = &Directory> {
        let pools = self.pools.iter().flatten().map(|pool| &pool.directory);
        pools.chain(&self.publish).chain(self.sockets.iter().map(|(_, directory, _)| directory))
    }
}

/// Inspects the host. Nothing is changed except by `open`.
///
/// # Errors
/// One sentence on what is wrong and how to fix it. A pool's own problem is in its entry instead.
pub fn inspect(config: &Config, open: Open) -> Result<Host, String> {
    check_kernel(&rustix::system::uname().release().to_string_lossy())?;
    let traces = Traces::open()?;
    let mounts = traces.mounts()?;
    let loop_control = file::open_at_start("/dev/loop-control", OFlags::RDWR)
        .map_err(|errno| format!("cannot open /dev/loop-control: {errno}; load the loop module (modprobe loop)"))?;
    let mut pools: Vec<_> = config.pools.iter().map(|pool| pool::inspect(pool, &mounts)).collect();
    if config.on_violation == OnViolation::Log {
        let warn = |pool: &mut HostPool| pool.warnings.push(NOT_CONFINED.to_owned());
        pools.iter_mut().flatten().for_each(warn);
    }
    let find = |role: Role, wanted: &Path| {
        let directory =
            open(config, wanted).and_then(|(path, descriptor)| Directory::new(role, wanted, path, descriptor));
        directory.map_err(|errno| format!("cannot open the directory {}: {errno}", wanted.display()))
    };
    let mut publish = Vec::new();
    for wanted in &config.publish {
        let directory = find(Role::Publish(wanted.name.clone()), &wanted.path)?;
        directory.check_publish(&mounts)?;
        publish.push(directory);
    }
    let served = pools.iter().flatten().map(|pool| &pool.directory);
    let places: Vec<_> = served.chain(&publish).map(|place| (&place.role, place.real_path.as_path())).collect();
    directory::refuse_overlap(&places)?;
    let mut sockets = Vec::new();
    for (socket, path) in [(Socket::Csi, &config.csi_socket), (Socket::Registration, &config.registration_socket)] {
        if let Some((parent, name)) = path.as_ref().and_then(|path| Some((path.parent()?, path.file_name()?))) {
            sockets.push((socket, find(Role::Socket(socket), parent)?, name.to_string_lossy().into_owned()));
        }
    }
    Ok(Host { loop_control, pools, publish, sockets, traces })
}

/// Marks the new pools, and waits until no other helper serves any. Failures are put in the pool's own entry.
pub fn mark_and_wait(config: &Config, host: &mut Host) {
    for (pool, entry) in config.pools.iter().zip(&mut host.pools) {
        let Ok(HostPool { directory, marked, .. }) = entry else { continue };
        let directory = &directory.descriptor;
        let made = if *marked { Ok(()) } else { marker::make(directory, Some(&pool.name)) };
        let made = made.map_err(|errno| format!("cannot write {}/{MARKER}: {errno}", pool.directory.display()));
        // What a predecessor publishes while the jail is being made may not be visible in it.
        if let Err(complaint) = made.and_then(|()| marker::claim(directory, pool).map(drop)) {
            *entry = Err(complaint);
        }
    }
}

/// 5.14 is the first kernel with quotactl_fd(2); everything else that is needed is older.
///
/// # Errors
/// A sentence when a kernel of that release is too old.
pub fn check_kernel(release: &str) -> Result<(), String> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 14) { Ok(()) } else { Err(format!("kernel {release} is too old: 5.14 or later is needed")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_from_5_14_on_are_accepted() {
        for release in ["5.14", "5.14.0-362.el9", "5.100.1", "6.1.0-32-amd64", "10.0"] {
            check_kernel(release).expect(release);
        }
        for release in ["5.13.19", "5.1", "4.19.0", "3.99", "", "next"] {
            assert!(check_kernel(release).unwrap_err().contains("5.14 or later"), "{release:?}");
        }
    }
}
