//! The directories on the host that the jail shows, and what each is for.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_protocol::{PoolName, PublishName, Socket};
use rustix::fs::{Mode, OFlags};

use super::config::Config;
use super::mountinfo::Table;
use crate::sys::{Errno, Result as SysResult, file};

/// What a directory is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// A pool. The jail shows it alone, without the mounts below it.
    Pool(PoolName),
    /// Volumes are published in it. The jail has a peer of it: mounts propagate both ways, including those below it.
    Publish(PublishName),
    /// The frontend's socket is made in it. The jail shows it alone.
    Socket(Socket),
}

/// A directory that the jail is to show, open on the host.
#[derive(Debug)]
pub struct Directory {
    /// What it is for.
    pub role: Role,
    /// Where it can be opened again.
    pub path: PathBuf,
    /// Its path without symbolic links, for comparing only.
    pub real_path: PathBuf,
    /// The directory that was checked.
    pub descriptor: OwnedFd,
}

/// How a directory of the configuration is opened; the helper uses [`open_or_make`].
pub type Open = fn(&Config, &Path) -> SysResult<(PathBuf, OwnedFd)>;

/// Opens a directory. What is missing below the kubelet's directory is created, with the mode that the kubelet gives
/// it.
///
/// # Errors
/// The kernel's error.
pub fn open_or_make(config: &Config, path: &Path) -> SysResult<(PathBuf, OwnedFd)> {
    let directory = match (open(path), config.below_kubelet(path)) {
        (Err(Errno::NOENT), Some((kubelet, below))) => {
            let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP;
            file::make_directories(open(kubelet)?.as_fd(), &below.to_string_lossy(), mode)
        }
        (opened, _) => opened,
    };
    Ok((path.to_owned(), directory?))
}

/// Opens a directory for path resolution.
///
/// # Errors
/// The kernel's error.
pub fn open(path: &Path) -> SysResult<OwnedFd> {
    file::open_at_start(path, OFlags::PATH | OFlags::DIRECTORY)
}

impl Directory {
    /// What was opened at `path` in place of `wanted`, which is the same or below it.
    ///
    /// # Errors
    /// The kernel's error.
    #[expect(clippy::disallowed_methods, reason = "reads the name of what is open already, for comparing only")]
    pub fn new(role: Role, wanted: &Path, path: PathBuf, descriptor: OwnedFd) -> SysResult<Self> {
        let real_path = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
        let real_path = real_path.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let real_path = real_path.join(wanted.strip_prefix(&path).unwrap_or(Path::new("")));
        Ok(Self { role, path, real_path, descriptor })
    }

    /// Refuses a publish directory that others may change, or whose mounts the host would not see.
    ///
    /// # Errors
    /// A sentence on what is wrong and how to fix it.
    pub fn check_publish(&self, mounts: &Table) -> Result<(), String> {
        let shown = self.path.display();
        let status = file::status(&self.descriptor).map_err(|errno| format!("cannot inspect {shown}: {errno}"))?;
        if file::is_open_to_others(&status) {
            return Err(format!(
                "{shown} can be changed by users other than root, who could hide a mount in it; run: chown root {shown}; chmod go-w {shown}"
            ));
        }
        let mount =
            mounts.get(&status.mount_id).ok_or_else(|| format!("{shown} is not on any mount of this namespace"))?;
        let point = mount.point.display();
        if mount.peers.is_none() {
            return Err(format!(
                "{shown}: its mount {point} is not shared, so what is published would be visible nowhere else; run: mount --make-rshared {point}"
            ));
        }
        if mount.slave {
            return Err(format!(
                "{shown}: its mount {point} is a slave, so the host would not see what is published; run the helper in the host's mount namespace, or with Bidirectional propagation"
            ));
        }
        Ok(())
    }
}

impl Role {
    /// Where the jail shows the directory, without the leading slash.
    pub fn point(&self) -> String {
        match self {
            Self::Pool(name) => format!("bulkhead-pools/{name}"),
            Self::Publish(name) => format!("publish/{name}"),
            Self::Socket(Socket::Csi) => "sockets/csi".to_owned(),
            Self::Socket(Socket::Registration) => "sockets/registration".to_owned(),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(name) => write!(out, "pool {name}"),
            Self::Publish(name) => write!(out, "publish directory {name}"),
            Self::Socket(_) => write!(out, "the directory of a socket"),
        }
    }
}

/// Pools and publish directories must lie apart: a pool below a publish directory would be visible twice, and a publish
/// directory that contains the kubelet's would evade the checks of the kubelet's targets and records.
///
/// # Errors
/// A sentence that names two that overlap.
pub fn refuse_overlap(places: &[(&Role, &Path)]) -> Result<(), String> {
    let mut rest = places;
    while let Some(((role, path), others)) = rest.split_first() {
        if let Some((other, _)) = others.iter().find(|(_, other)| path.starts_with(other) || other.starts_with(path)) {
            return Err(format!("{role} and {other} overlap; keep them apart"));
        }
        rest = others;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlap(paths: &[&str]) -> Option<String> {
        let roles: Vec<_> =
            (0..paths.len()).map(|index| Role::Pool(format!("p{index}").parse().expect("a name"))).collect();
        let places: Vec<_> = roles.iter().zip(paths.iter().map(Path::new)).collect();
        refuse_overlap(&places).err()
    }

    #[test]
    fn directories_inside_one_another_are_refused_whichever_comes_first() {
        assert_eq!(overlap(&["/a", "/b", "/ab", "/a.b"]), None);
        let refused = Some("pool p1 and pool p2 overlap; keep them apart".to_owned());
        assert_eq!(overlap(&["/x", "/a", "/a/b"]), refused);
        assert_eq!(overlap(&["/x", "/a/b", "/a"]), refused);
        assert!(overlap(&["/a", "/a"]).is_some());
    }
}
