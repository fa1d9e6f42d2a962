//! Targets: opening, checking, making, mounting on and removing them.

use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};

use bulkhead_protocol::{Error, ErrorKind, TargetPath};
use caps::Capability;
use rustix::fs::{FileType, Mode};

use super::below::{Below, Obstacle};
use super::kind::Kind;
use super::wire::Proof;
use crate::errors::{busy, exists, failed, refused};
use crate::sys::capability::raise;
use crate::sys::file::{self, FileId, Status};
use crate::sys::mount::{self, MountAttrFlags};
use crate::sys::{Errno, Error as SysError, Result as SysResult};

/// A target, with the directory that holds it open.
pub struct Target<'a> {
    /// Its path.
    pub path: &'a TargetPath,
    parent: OwnedFd,
    name: &'a str,
}

/// What is mounted at a target.
#[derive(Clone, Copy, Debug)]
pub enum Mounted {
    /// Its root.
    Seen(Status),
    /// It cannot be inspected.
    Unreadable,
}

/// The modes of the targets that the helper makes. The sticky bit has no effect on a file, nor on a directory that
/// nobody else may write to. Here it marks what the helper made, so that it is recognized after a crash.
const DIRECTORY_MODE: u32 = 0o1750;
/// See [`DIRECTORY_MODE`].
const FILE_MODE: u32 = 0o1600;

fn is_marked(file_type: FileType, mode: u32) -> bool {
    match file_type {
        FileType::Directory => mode & 0o7777 == DIRECTORY_MODE,
        FileType::RegularFile => mode & 0o7777 == FILE_MODE,
        _ => false,
    }
}

impl<'a> Target<'a> {
    /// Opens the directory that holds a target.
    ///
    /// # Errors
    /// `NotFound` when the directory does not exist; `Refused` when the path to it contains a symbolic link or crosses
    /// into another mount, or when users other than root may change a directory on it.
    pub fn open(below: &'a Below, path: &'a TargetPath) -> Result<Self, Error> {
        let parent = below.open_parent(&path.path);
        let parent = parent.map_err(|Obstacle { error, directory }| match error.errno {
            Errno::NOENT | Errno::NOTDIR => {
                Error::new(ErrorKind::NotFound, format!("the directory of target {path} does not exist"))
            }
            Errno::LOOP | Errno::XDEV => {
                refused(format!("the path to target {path} contains a symbolic link or crosses into another mount"))
            }
            Errno::PERM => {
                refused(format!(
                    "{directory}, on the way to target {path}, can be changed by users other than root; run: chown root {directory}; chmod go-w {directory}"
                ))
            }
            _ => failed("open the directory of target", path, error),
        })?;
        Ok(Self { path, parent, name: path.path.split_last().1 })
    }

    /// The id of the directory that holds the target.
    pub fn parent_id(&self) -> Result<FileId, Error> {
        Ok(file::status(&self.parent).map_err(|error| failed("inspect the directory of target", self.path, error))?.id)
    }

    /// Returns what is at the target, if anything.
    pub fn status(&self) -> Result<Option<Status>, Error> {
        match file::status_at(&self.parent, self.name) {
            Ok(status) => Ok(Some(status)),
            Err(SysError { errno: Errno::NOENT, .. }) => Ok(None),
            Err(error) => Err(failed("inspect target", self.path, error)),
        }
    }

    /// What is mounted at the target, if anything.
    pub fn mount(&self) -> Result<Option<Mounted>, Error> {
        let cannot = |error| failed("inspect target", self.path, error);
        match file::status_at(&self.parent, self.name) {
            Ok(status) => Ok(status.mount_root.then_some(Mounted::Seen(status))),
            Err(SysError { errno: Errno::NOENT, .. }) => Ok(None),
            // The filesystem of its directory answers.
            Err(SysError { errno: Errno::IO, .. }) => {
                file::status(&self.parent).map(|_| Some(Mounted::Unreadable)).map_err(cannot)
            }
            Err(error) => Err(cannot(error)),
        }
    }

    /// The id of the filesystem of what is mounted at the target (`f_fsid`).
    pub fn filesystem_id(&self) -> Result<u64, Error> {
        let found = file::open_entry(&self.parent, self.name).and_then(file::filesystem_id);
        found.map_err(|error| failed("inspect target", self.path, error))
    }

    /// The id of the mount at the target that is never reused, on kernels that have one.
    pub fn unique_id(&self) -> Result<Option<NonZeroU64>, Error> {
        mount::unique_id(&self.parent, self.name).map_err(|error| failed("inspect target", self.path, error))
    }

    /// Makes the target afresh. Anything already there must be empty and of the right type.
    fn make(&self, kind: Kind) -> Result<(), Error> {
        self.clear(Some(kind))?;
        let made = if kind.is_device() {
            file::create(&self.parent, self.name, Mode::from_raw_mode(FILE_MODE)).map(drop)
        } else {
            file::make_directory(&self.parent, self.name, Mode::from_raw_mode(DIRECTORY_MODE))
        };
        made.map_err(|error| failed("make target", self.path, error))
    }

    /// Removes a target that is an empty directory or an empty file, and not a mount. If a kind of volume is wanted
    /// there, it must be of the type for that kind.
    pub fn clear(&self, wanted: Option<Kind>) -> Result<(), Error> {
        let Some(status) = self.status()? else { return Ok(()) };
        let incompatible = |is: &str| Error::new(ErrorKind::Incompatible, format!("target {} {is}", self.path));
        if status.mount_root {
            return Err(exists(format!("something else is mounted at target {}; unmount it first", self.path)));
        }
        let removed = match (status.file_type, wanted.map(Kind::is_device)) {
            (FileType::Directory, Some(true)) => {
                return Err(incompatible("is a directory, but must be a file; remove it"));
            }
            (FileType::RegularFile, Some(false)) => {
                return Err(incompatible("is a file, but must be a directory; remove it"));
            }
            (FileType::Directory, _) => file::remove_directory(&self.parent, self.name),
            (FileType::RegularFile, _) if status.size == 0 => file::remove(&self.parent, self.name),
            (FileType::RegularFile, _) => return Err(incompatible("is a file with content; remove it")),
            _ => return Err(incompatible("is neither a directory nor a file; remove it")),
        };
        removed.map_err(|error| match error.errno {
            Errno::NOTEMPTY | Errno::EXIST => incompatible("is a directory that is not empty; empty it"),
            _ => failed("remove target", self.path, error),
        })
    }

    /// Returns whether what is at the target was made by [`Self::make`], in this helper or an earlier one.
    pub fn is_marked(&self) -> Result<bool, Error> {
        Ok(self.status()?.is_some_and(|status| status.uid == 0 && is_marked(status.file_type, status.mode)))
    }

    /// Makes the target and binds `content` to it, with the flags set before anybody can see the mount. Returns what
    /// was bound, and what will prove that it is gone.
    pub fn bind(&self, kind: Kind, content: impl AsFd, flags: MountAttrFlags) -> Result<(FileId, Proof), Error> {
        let parent = self.parent_id()?;
        self.make(kind)?;
        let bound = || -> SysResult<(FileId, Option<NonZeroU64>)> {
            let source = file::status(&content)?.id;
            let entry = file::open_entry(&self.parent, self.name)?;
            let _raised = raise(Capability::CAP_SYS_ADMIN)?;
            let mount = mount::clone_of(&content)?;
            let unique = mount::unique_id(&mount, "")?;
            mount::set_flags(&mount, flags)?;
            mount::attach(&mount, &entry)?;
            Ok((source, unique))
        };
        let (source, unique) = bound().map_err(|error| {
            // Nothing is mounted: remove the target again.
            let _ = self.clear(None);
            failed("publish at target", self.path, error)
        })?;
        Ok((source, proof(unique, parent)))
    }

    /// Unmounts the topmost mount at the target.
    ///
    /// # Errors
    /// `Busy` when it is still in use.
    pub fn unmount(&self) -> Result<(), Error> {
        let unmounted =
            raise(Capability::CAP_SYS_ADMIN).and_then(|_raised| mount::unmount_entry(self.parent.as_fd(), self.name));
        unmounted.map_err(|error| match error.errno {
            Errno::BUSY => {
                busy(format!("target {} is busy: a process or a mount inside the volume uses it", self.path))
            }
            _ => failed("unmount target", self.path, error),
        })
    }
}

/// Returns what will prove that a mount in this directory is gone. Its id does only if the kernel can be asked for it:
/// the filter of a service manager may be older than statmount(2).
pub fn proof(unique: Option<NonZeroU64>, parent: FileId) -> Proof {
    let is_found = |id: &NonZeroU64| matches!(mount::find(*id), Ok(()) | Err(SysError { errno: Errno::OVERFLOW, .. }));
    unique.filter(is_found).map_or(Proof::Place(parent), Proof::Id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_modes_are_marks() {
        for (file_type, mode, marked) in [
            (FileType::Directory, 0o041_750, true),
            (FileType::RegularFile, 0o101_600, true),
            (FileType::Directory, 0o040_750, false),
            (FileType::Directory, 0o041_777, false),
            (FileType::Directory, 0o043_750, false),
            (FileType::Directory, 0o041_600, false),
            (FileType::RegularFile, 0o100_600, false),
            (FileType::RegularFile, 0o101_750, false),
            (FileType::Fifo, 0o011_600, false),
        ] {
            assert_eq!(is_marked(file_type, mode), marked, "{file_type:?} {mode:o}");
        }
    }
}
