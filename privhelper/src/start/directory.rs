//! The directories on the host that the jail shows, and what each is for.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_protocol::{PoolName, PublishName, Socket};
use rustix::fs::{Mode, OFlags};

use super::config::Config;
use super::mounts::{Mounts, Position};
use super::refusal::{Refusal, Why};
use crate::log::shown;
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, file, walk};

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
        (Err(SysError { errno: Errno::NOENT, .. }), Some((kubelet, below))) => {
            let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP;
            walk::make_directories(open(kubelet)?.as_fd(), &below.to_string_lossy(), mode)
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
    walk::open_at_start(path, OFlags::PATH | OFlags::DIRECTORY)
}

impl Directory {
    /// Returns what was opened at `path` in place of `wanted`, which is the same or below it.
    ///
    /// # Errors
    /// The kernel's error.
    #[expect(clippy::disallowed_methods, reason = "reads the name of what is open already, for comparing only")]
    pub fn new(role: Role, wanted: &Path, path: PathBuf, descriptor: OwnedFd) -> SysResult<Self> {
        let real_path = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
        let real_path = real_path.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)).by("readlink")?;
        let real_path = real_path.join(wanted.strip_prefix(&path).unwrap_or(Path::new("")));
        Ok(Self { role, path, real_path, descriptor })
    }

    /// Returns where it lies.
    ///
    /// # Errors
    /// A sentence when it cannot be inspected, or is not there any more.
    pub fn position(&self, mounts: &Mounts) -> Result<Position, Refusal> {
        let status = file::status(&self.descriptor);
        let status = status.map_err(|error| format!("cannot inspect {}: {error}", shown(&self.path)))?;
        Position::of(&self.real_path, status.mount_id, mounts)
    }
}

/// Refuses an open directory that others may change: they could take away a pool's marker, or hide a mount.
///
/// # Errors
/// A sentence on what is wrong and how to fix it.
pub fn check_owner(path: &Path, directory: impl AsFd) -> Result<(), Refusal> {
    let path = shown(path).to_string();
    let status = file::status(directory).map_err(|error| format!("cannot inspect {path}: {error}"))?;
    if file::is_open_to_others(&status) {
        return Err(Why::OpenToOthers.because(format!(
            "{path} can be changed by users other than root; run: chown root {path}; chmod go-w {path}"
        )));
    }
    Ok(())
}

impl Role {
    /// Returns where the jail shows the directory, without the leading slash.
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

/// Pools and publish directories must lie apart, whatever their names are: a pool below a publish directory would be
/// visible twice, and a publish directory that contains the kubelet's would evade the checks of the kubelet's targets and
/// records.
///
/// # Errors
/// A sentence that names two that overlap.
pub fn refuse_overlap(places: &[(&Directory, Position)]) -> Result<(), Refusal> {
    let mut rest = places;
    while let Some(((one, position), others)) = rest.split_first() {
        let is_below = |one: &Directory, other: &Directory| one.real_path.starts_with(&other.real_path);
        let overlaps = |(other, its): &&(&Directory, Position)| {
            position.overlaps(its) || is_below(one, other) || is_below(other, one)
        };
        if let Some((other, _)) = others.iter().find(overlaps) {
            return Err(Why::Overlap.because(format!("{} and {} overlap; keep them apart", one.role, other.role)));
        }
        rest = others;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether pools overlap that are on these filesystems, at these places there, and at these paths.
    fn overlap(places: &[(u32, &str, &str)]) -> Option<Refusal> {
        let directory = |(index, (_, _, path)): (usize, &(u32, &str, &str))| Directory {
            role: Role::Pool(format!("p{index}").parse().expect("a name")),
            path: path.into(),
            real_path: path.into(),
            descriptor: open(Path::new("/")).expect("the root directory"),
        };
        let directories: Vec<_> = places.iter().enumerate().map(directory).collect();
        let position =
            |(minor, inner, _): &(u32, &str, &str)| Position { mount: 1, device: (8, *minor), inner: (*inner).into() };
        let places: Vec<_> = directories.iter().zip(places.iter().map(position)).collect();
        refuse_overlap(&places).err()
    }

    #[test]
    fn directories_inside_one_another_are_refused_whichever_comes_first() {
        let one_filesystem = |inner: &[&'static str]| {
            let paths = ["/w", "/x", "/y", "/z"];
            overlap(&inner.iter().zip(paths).map(|(inner, path)| (1, *inner, path)).collect::<Vec<_>>())
        };
        assert_eq!(one_filesystem(&["/a", "/b", "/ab", "/a.b"]), None);
        let refused = Some(Why::Overlap.because("pool p1 and pool p2 overlap; keep them apart"));
        assert_eq!(one_filesystem(&["/x", "/a", "/a/b"]), refused);
        assert_eq!(one_filesystem(&["/x", "/a/b", "/a"]), refused);
        assert!(one_filesystem(&["/a", "/a"]).is_some());
        // The one that is mounted below the other is another filesystem.
        assert_eq!(overlap(&[(1, "/x", "/x"), (1, "/a", "/a"), (2, "/", "/a/b")]), refused);
        assert_eq!(overlap(&[(1, "/x", "/x"), (2, "/", "/a/b"), (1, "/a", "/a")]), refused);
    }

    #[test]
    fn the_same_place_on_two_filesystems_is_no_overlap() {
        assert_eq!(overlap(&[(1, "/", "/a"), (2, "/", "/b"), (3, "/a", "/c")]), None);
    }
}
