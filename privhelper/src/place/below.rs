//! Publish directories, and what the kubelet has recorded about the targets below them.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use bulkhead_protocol::{DriverName, PublishName, RelativePath, VolumeId};
use rustix::fs::{FileType, OFlags};

use super::shape::Shape;
use super::vol_data;
use super::wire::{Failure, Refusal};
use crate::sys::{Errno, Error as SysError, file, mount};

/// A directory below which volumes are published.
#[derive(Debug)]
pub struct Below {
    /// Its name in requests.
    pub name: PublishName,
    /// Which targets are allowed below it.
    pub shape: Shape,
    /// The directory in the jail.
    pub root: OwnedFd,
    /// The jail's mount of it, and what that has shown of its filesystem at the start. KERNEL(6.8): until then, a directory
    /// that is renamed while it is served goes unnoticed.
    pub copy: Option<(NonZeroU64, PathBuf)>,
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
    /// A refusal when the file is missing, does not belong to root, or names another volume or driver.
    pub fn check_vol_data(&self, path: &RelativePath, volume: &VolumeId, driver: &DriverName) -> Result<(), Failure> {
        if self.shape == Shape::Any {
            return Ok(());
        }
        let fail = |error: SysError| match error.errno {
            Errno::NOENT => Refusal::RecordMissing.into(),
            Errno::FBIG => Refusal::RecordTooLong.into(),
            _ => Failure::from(error),
        };
        let record = self.shape.vol_data(path).ok_or(Refusal::Shape)?;
        let file = file::open(&self.root, &record, OFlags::RDONLY).map_err(fail)?;
        let status = file::status(&file)?;
        if status.uid != 0 || status.file_type != FileType::RegularFile {
            return Err(Refusal::RecordOfOthers.into());
        }
        let content = file::read_up_to(&file, vol_data::MAX_LENGTH).map_err(fail)?;
        match vol_data::parse(&content).ok_or(Refusal::RecordMalformed)? {
            (found, _) if found != driver.as_str() => Err(Refusal::RecordOfAnotherDriver.into()),
            (_, found) if found != volume.as_str() => Err(Refusal::RecordOfAnotherVolume.into()),
            _ => Ok(()),
        }
    }

    /// Opens the directory that holds a target. Every directory on the way must belong to root alone: anybody else
    /// could swap two targets between a check of one and what follows from it.
    ///
    /// # Errors
    /// A refusal when it does not exist, when the path to it contains a symbolic link or crosses into another mount, or when
    /// users other than root may change a directory on it. All directories up to that one are root's alone.
    pub fn open_parent(&self, path: &RelativePath) -> Result<OwnedFd, Failure> {
        let how = OFlags::PATH | OFlags::DIRECTORY;
        let (mut directory, mut depth) = (file::open(&self.root, ".", how)?, 0_u16);
        let mut names = path.split_last().0.split('/').filter(|name| !name.is_empty());
        loop {
            if file::is_open_to_others(&file::status(&directory)?) {
                return Err(Refusal::OpenToOthers(depth).into());
            }
            let Some(name) = names.next() else { return Ok(directory) };
            directory = file::open(&directory, name, how).map_err(|error| match error.errno {
                Errno::NOENT | Errno::NOTDIR => Refusal::NoParent.into(),
                Errno::LOOP | Errno::XDEV => Refusal::Crosses.into(),
                _ => Failure::from(error),
            })?;
            depth = depth.saturating_add(1);
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
            shape: Shape::KubeletPods,
            root: walk::open_at_start(root, OFlags::PATH).expect("a directory"),
            copy: None,
        };
        let open = |root: &str, text: &str| pods(root).open_parent(&text.parse().expect("a relative path")).map(drop);
        assert!(open("/", "target").is_ok() && open("/usr", "lib/target").is_ok());
        assert_eq!(open("/usr", "no-such/lib/target"), Err(Refusal::NoParent.into()));
        assert_eq!(open("/usr", "bin/env/target"), Err(Refusal::NoParent.into()));
        assert_eq!(open("/", "proc/target"), Err(Refusal::Crosses.into()));
        assert_eq!(open("/tmp", "target"), Err(Refusal::OpenToOthers(0).into()));
        assert_eq!(open("/", "var/tmp/target"), Err(Refusal::OpenToOthers(2).into()));
    }
}
