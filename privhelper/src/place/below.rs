//! Publish directories, and what the kubelet has recorded about the targets below them.

use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use bulkhead_protocol::{DriverName, Error, PublishName, RelativePath, TargetPath, Text, VolumeId};
use rustix::fs::{FileType, OFlags};

use super::shape::Shape;
use super::vol_data;
use crate::errors::{failed, refused};
use crate::sys::{Errno, Error as SysError, Result as SysResult, file, mount};

/// A directory below which volumes are published.
#[derive(Debug)]
pub struct Below {
    /// Its name in requests.
    pub name: PublishName,
    /// Its path as seen on the host.
    pub host_path: Text,
    /// Which targets are allowed below it.
    pub shape: Shape,
    /// The directory in the jail.
    pub root: OwnedFd,
    /// The jail's mount of it, and what that has shown of its filesystem at the start. KERNEL(6.8): until then, a directory
    /// that is renamed while it is served goes unnoticed.
    pub copy: Option<(NonZeroU64, PathBuf)>,
}

/// Why the directory that holds a target cannot be used.
#[derive(Debug)]
pub struct Obstacle {
    /// The kernel's error, or `PERM`.
    pub error: SysError,
    /// The directory on the way, as seen on the host.
    pub directory: String,
}

impl Below {
    /// Returns whether it was renamed or replaced since the start.
    pub fn is_moved(&self) -> bool {
        self.copy.as_ref().is_some_and(|(copy, inner)| mount::root_of(*copy).is_ok_and(|now| now != *inner))
    }

    /// Checks that the kubelet has recorded, in `vol_data.json`, that this very volume of ours belongs at the target.
    /// Below other publish directories there is no such file.
    ///
    /// # Errors
    /// `Refused` when the file is missing, does not belong to root, or names another volume or driver.
    pub fn check_vol_data(&self, target: &TargetPath, volume: &VolumeId, driver: &DriverName) -> Result<(), Error> {
        if self.shape == Shape::Any {
            return Ok(());
        }
        let refused = |why: &str| {
            refused(format!("cannot publish volume {volume} at {target}: the kubelet's file vol_data.json {why}"))
        };
        let fail = |error: SysError| match error.errno {
            Errno::NOENT => refused("is missing"),
            Errno::FBIG => refused("is longer than any that the kubelet writes"),
            _ => failed("read the kubelet's vol_data.json for target", target, error),
        };
        let path = self.shape.vol_data(&target.path).ok_or_else(|| refused("does not exist for such a target"))?;
        let file = file::open(&self.root, &path, OFlags::RDONLY).map_err(fail)?;
        let status = file::status(&file).map_err(fail)?;
        if status.uid != 0 || status.file_type != FileType::RegularFile {
            return Err(refused("is not a file that belongs to root"));
        }
        let content = file::read_up_to(&file, vol_data::MAX_LENGTH).map_err(fail)?;
        let found = vol_data::parse(&content).ok_or_else(|| refused("is not a JSON object of strings"))?;
        if found.driver != driver.as_str() {
            return Err(refused("names another driver"));
        }
        if found.volume != volume.as_str() {
            return Err(refused("names another volume"));
        }
        Ok(())
    }

    /// Opens the directory that holds a target. Every directory on the way must belong to root alone: anybody else
    /// could swap two targets between a check of one and what follows from it.
    ///
    /// # Errors
    /// `PERM` when users other than root may change a directory. All directories up to the obstacle are root's alone.
    pub fn open_parent(&self, path: &RelativePath) -> Result<OwnedFd, Obstacle> {
        let mut directory = self.host_path.to_string();
        self.walk(path, &mut directory).map_err(|error| Obstacle { error, directory })
    }

    fn walk(&self, path: &RelativePath, shown: &mut String) -> SysResult<OwnedFd> {
        let mut directory = file::open_below(self.root.as_fd(), "")?;
        let mut names = path.split_last().0.split('/').filter(|name| !name.is_empty());
        loop {
            if file::is_open_to_others(&file::status(&directory)?) {
                return Err(SysError::of(Errno::PERM));
            }
            let Some(name) = names.next() else { return Ok(directory) };
            shown.push('/');
            shown.push_str(name);
            directory = file::open_below(directory.as_fd(), name)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::walk;

    #[test]
    fn every_directory_that_leads_to_a_target_belongs_to_root_alone() {
        let pods = |root: &str| Below {
            name: "pods".parse().expect("a name"),
            host_path: Text::new("/k/pods"),
            shape: Shape::KubeletPods,
            root: walk::open_at_start(root, OFlags::PATH).expect("a directory"),
            copy: None,
        };
        let open = |root: &str, text: &str| pods(root).open_parent(&text.parse().expect("a relative path")).map(drop);
        assert!(open("/", "target").is_ok() && open("/usr", "lib/target").is_ok());
        let obstacle = |root, text| open(root, text).map_err(|found| (found.error.errno, found.directory));
        assert_eq!(obstacle("/usr", "no-such/lib/target"), Err((Errno::NOENT, "/k/pods/no-such".to_owned())));
        assert_eq!(obstacle("/tmp", "target"), Err((Errno::PERM, "/k/pods".to_owned())));
    }
}
